"""The choices of the bench's command line, and its output."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from dataclasses import replace

import pytest

from bench import clients, ours, report
from bench.__main__ import main, parser
from bench.job import Job
from bench.plots import draw
from bench.runner import Outcome, codecs, job_of, order
from bench.scenarios import SCENARIOS, rows, select
from bench.verdicts import REQUIREMENTS, verdicts

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def _chosen(*names: str) -> set[str]:
    arguments = parser().parse_args(names)
    return {scenario.name for scenario in select(arguments.scenarios, arguments.quick)}


def test_all_scenarios_run_by_default_and_fewer_when_quick() -> None:
    assert _chosen() == set(BY_NAME)
    quick = _chosen("--quick")
    assert {"1a", "1b", "2", "3-1000", "3-10000", "4"} <= quick < set(BY_NAME)


def test_scenarios_are_chosen_by_the_beginning_of_their_names() -> None:
    assert _chosen("--scenarios", "1,5-z") == {"1a", "1b", "1c", "1d-100", "1d-1000", "5-zstd"}
    # Numbers match as a whole.
    assert _chosen("--scenarios", "3-1000,1d-100") == {"3-1000", "1d-100"}
    # A selected scenario runs even if it is slow.
    assert _chosen("--quick", "--scenarios", "6") == {"6"}
    with pytest.raises(ValueError, match="no such scenario: '0'; there are: 1a, 1b, 1c"):
        select("1,0", quick=False)


def test_clients_are_chosen_by_a_part_of_their_names() -> None:
    labels = [row.label for row in rows(BY_NAME["1a"], "aiokafka, raw")]
    assert labels == ["aiokafka (uvloop)", "aiokafka (asyncio)", "raw socket"]


def test_a_mistake_on_the_command_line_ends_with_a_hint(capsys) -> None:
    for arguments, hint in (
        (["--scenarios", "nine"], "no such scenario: 'nine'"),
        (["--clients", "nobody"], "no client's name contains 'nobody'"),
        (["--rounds", "-1"], "--rounds and --records must be at least 1"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert hint in capsys.readouterr().err


def test_the_list_runs_nothing(capsys) -> None:
    assert main(["--list", "--scenarios", "4", "--clients", "raw"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["    raw socket"]


def test_the_most_specific_option_of_a_job_counts() -> None:
    scenario = BY_NAME["2"]
    distinct = next(row for row in scenario.rows if row.options)
    full, quick = job_of(scenario, distinct, {}, quick=False), job_of(scenario, distinct, {}, quick=True)
    assert full.distinct
    assert full.records > quick.records
    assert job_of(scenario, distinct, {"records": 7}, quick=True).records == 7


def test_every_job_can_be_made_and_every_row_has_a_client_that_can_do_it() -> None:
    from importlib import import_module

    for scenario in SCENARIOS:
        assert len({row.label for row in scenario.rows}) == len(scenario.rows)
        for row in scenario.rows:
            job_of(scenario, row, {}, quick=False)
            job_of(scenario, row, {}, quick=True)
            assert callable(getattr(import_module(clients.CLIENTS[row.client].module), row.work)), row.label


def test_each_round_has_another_order_of_all_rows() -> None:
    scenario = BY_NAME["5-zstd"]
    orders = [order(list(scenario.rows), number) for number in range(5)]
    assert len({tuple(row.label for row in one) for one in orders}) == 5
    for one in orders:
        assert {row.label for row in one} == {row.label for row in scenario.rows}
        # It needs the number of records in the others' batches.
        assert one[-1].label == "zstd alone"


def _outcome() -> Outcome:
    scenario = replace(BY_NAME["4"], rows=BY_NAME["4"].rows[:1] + BY_NAME["4"].rows[-1:])
    results = {
        row.label: [
            {"round": number, "p50_us": 100.0 * (number + 1) / place, "p99_us": 300.0, "cpu_us": 50.0 / place}
            for number in range(3)
        ]
        for place, row in enumerate(scenario.rows, 1)
    }
    return Outcome(scenario, 3, results, {"somebody": "Go is not installed"}, {"another": "3 of 4 records are stored"})


def test_every_requirement_uses_figures_of_a_scenario() -> None:
    """With a figure for every metric of every row, every requirement is measured."""
    complete = {
        scenario.name: {
            row.label: [
                {"round": 0, **dict.fromkeys(("cpu_us", "rate", *(metric.key for metric in scenario.metrics)), 1.0)}
            ]
            for row in scenario.rows
        }
        for scenario in SCENARIOS
    }
    assert [one.requirement.text for one in verdicts(complete) if one.measured is None] == []
    assert len({(one.number, one.text) for one in REQUIREMENTS}) == len(REQUIREMENTS)


def test_a_table_has_medians_ranges_and_ratios() -> None:
    lines = report.table(_outcome()).splitlines()
    ours = next(line for line in lines if line.startswith("aioproducer"))
    raw = next(line for line in lines if line.startswith("raw socket"))
    assert ours.split()[2:5] == ["200.0", "(100.0..300.0)", "1.00"]
    assert raw.split()[2:5] == ["100.0", "(50.0..150.0)", "0.50"]
    assert lines[-2:] == ["somebody: missing: Go is not installed", "another: FAILED: 3 of 4 records are stored"]


def test_verdicts_are_written_and_printed() -> None:
    outcome = _outcome()
    found = verdicts({"4": outcome.results})
    said = report.verdict_lines(found)
    assert "4  uvloop: p50 to the raw socket's" in said
    assert "DOES NOT HOLD" in said
    assert f"{len(REQUIREMENTS) - 2} of {len(REQUIREMENTS)} requirements were not measured" in said
    written = report.document({"quick": False}, {"cpus": 2}, report.scenarios([outcome], {"cpus": 2}))
    document = json.loads(json.dumps(written))
    assert document["scenarios"]["4"]["results"] == outcome.results
    assert document["scenarios"]["4"]["environment"] == {"cpus": 2}
    assert {one["holds"] for one in document["verdicts"]} == {True, False, None}
    assert all(one["scenarios"] == ([] if one["measured"] is None else ["4"]) for one in document["verdicts"])


def test_the_results_name_the_build() -> None:
    kind = "compiled" if ours.build() == "compiled" else "uncompiled"
    assert report.environment()["build"].rpartition(", ")[2] in (kind, "profile-guided")


def test_scenarios_of_an_earlier_run_stay_in_the_file(tmp_path) -> None:
    """A repeated scenario once replaced all recorded ones."""
    path = tmp_path / "results.json"
    assert report.recorded(path) == {}
    earlier = report.scenarios([_outcome()], {"cpus": 8})
    path.write_text(json.dumps(report.document({}, {}, earlier)))
    other = report.scenarios([replace(_outcome(), scenario=BY_NAME["2"], results={})], {"cpus": 2})
    document = report.document({}, {"cpus": 2}, report.recorded(path) | other)
    assert {name: one["environment"] for name, one in document["scenarios"].items()} == {
        "4": {"cpus": 8},
        "2": {"cpus": 2},
    }
    assert {one["requirement"] for one in document["verdicts"] if one["measured"] is not None} == {"4"}


def test_a_plot_is_a_reproducible_svg_that_names_every_client(tmp_path) -> None:
    surroundings = {"processor": "a processor", "cpus": 2, "python": "3.11"}
    path = draw(_outcome(), surroundings, tmp_path)
    assert path is not None
    first = path.read_text()
    text = " ".join(xml.etree.ElementTree.fromstring(first).itertext())
    for expected in ("aioproducer (uvloop)", "raw socket", "p50 µs", "200.0", "a processor, 2 cores"):
        assert expected in text
    draw(_outcome(), surroundings, tmp_path)
    assert path.read_text() == first
    nothing = replace(_outcome(), results={})
    assert draw(nothing, surroundings, tmp_path) is None


def test_the_broker_is_warmed_in_each_codec_that_is_measured_with_text() -> None:
    assert codecs([BY_NAME["5-ticker"], BY_NAME["5-lz4"]]) == ["gzip", "lz4", "none", "zstd"]
    assert codecs([BY_NAME["5-lz4"]]) == ["lz4"]
    # Without text there is no codec to warm up.
    assert codecs([BY_NAME["1a"], BY_NAME["spark-lz4"]]) == []


def test_every_plugin_of_a_job_is_an_interceptor() -> None:
    from aioproducer.interceptors import InterceptorChain

    asked = {row.options["plugin"] for one in SCENARIOS for row in one.rows if "plugin" in row.options}
    assert asked == ours.PLUGINS.keys()
    for plugin in asked:
        (interceptor,) = ours.interceptors(Job("events", plugin=plugin))
        method, _, _ = plugin.partition(" ")
        chain = InterceptorChain([interceptor])
        assert [chain.wants_records, chain.wants_headers, chain.wants_acknowledgements] == [
            method == one for one in ("on_send", "on_headers", "on_acknowledgement")
        ]
