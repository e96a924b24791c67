"""The soak: its plan, its samples, and the problems that it reports."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree
from types import SimpleNamespace

import pytest

from aioproducer.admin import Admin
from aioproducer.testing import EmbeddedCluster
from bench import soak, soaking
from bench.job import Job
from bench.plots import draw_over_time
from bench.runner import RunError
from bench.soaking import FULL_RATE, SHARED_RATE, Samples, planned

MIB = 2**20


@pytest.mark.parametrize(
    ("elapsed", "records"),
    [(0, 0), (0.01, 1000), (0.02, 2000), (0.03, 2100), (0.999, 11_790), (1.0, 11_800), (1.01, 12_800), (2.02, 25_600)],
)
def test_each_second_begins_with_a_burst_of_ten_times_the_rate(elapsed: float, records: int) -> None:
    assert planned(elapsed, 10_000) == pytest.approx(records, abs=1)


def test_a_sample_is_of_the_time_since_the_last_one() -> None:
    samples = Samples(FULL_RATE, began=90.0, now=100.0, cpu=5.0, acknowledged=1000)
    samples.add(101.0, 5.8, 4000, [1000 * number for number in range(100, 0, -1)], {"rss_mib": 60.0})
    # It is half a second late.
    samples.add(102.5, 6.1, 7000, [], {"rss_mib": 61.0})
    first, second = samples.rows
    assert first == {
        "phase": FULL_RATE,
        "second": 11.0,
        "rate": 3000,
        "cpu_share": pytest.approx(0.8),
        "rss_mib": 60.0,
        "p50_us": 50,
        "p99_us": 99,
        "p99.9_us": 100,
        "max_us": 100,
    }
    # No send was answered in it, so it has no latency, not one of zero.
    assert second == {
        "phase": FULL_RATE,
        "second": 12.5,
        "rate": 2000,
        "cpu_share": pytest.approx(0.2),
        "rss_mib": 61.0,
    }


def test_growth_is_that_within_the_second_half() -> None:
    assert soak.growth([0, 50, 50, 50, 50, 50, 53, 53]) == 3
    assert soak.growth([0, 10, 20, 30, 40, 40, 40, 40]) == 0
    assert soak.growth([0, 1, 3]) == 2
    with pytest.raises(ValueError, match="2 samples do not show whether memory grows: at least 3"):
        soak.growth([1, 2])


def _measured(uss: dict[str, list[float]] | None = None, **more):
    memory = {FULL_RATE: [60.0] * 8, SHARED_RATE: [60.0] * 8} | (uss or {})
    samples = [
        {
            "phase": phase,
            "second": float(number + 1),
            "rate": 1000.0,
            "cpu_share": 0.5,
            "rss_mib": found + 10,
            "uss_mib": found,
            "buffer_available_bytes": 30.0 * MIB,
            "p50_us": 500.0,
            "p99_us": 900.0,
            "p99.9_us": 950.0,
            "max_us": 950.0,
        }
        for number, (phase, found) in enumerate((phase, one) for phase, found in memory.items() for one in found)
    ]
    return {"samples": samples, "sent": 100, "acknowledged": 100, "failed": 0, "first_failure": "", **more}


def test_a_soak_without_failures_and_growth_has_no_problem() -> None:
    assert soak.problems(_measured(), 32 * MIB) == []
    # The limit is 10 % of 32 MiB.
    assert soak.problems(_measured({SHARED_RATE: [60.0] * 6 + [63.1] * 2}), 32 * MIB) == []


@pytest.mark.parametrize("phase", [FULL_RATE, SHARED_RATE])
def test_memory_that_grows_in_either_phase_is_a_problem(phase: str) -> None:
    (problem,) = soak.problems(_measured({phase: [60.0] * 6 + [63.3] * 2}), 32 * MIB)
    assert problem == (f"{phase}: memory grows by 3.3 MiB in the second half (at most 3.2 MiB, 10% of buffer_memory)")


def test_a_record_that_failed_is_a_problem() -> None:
    (problem,) = soak.problems(_measured(acknowledged=98, failed=2, first_failure="DeliveryTimeoutError()"), 32 * MIB)
    assert problem == "2 records failed, the first for DeliveryTimeoutError()"


def test_a_record_without_an_outcome_is_a_problem() -> None:
    (problem,) = soak.problems(_measured(acknowledged=99), 32 * MIB)
    assert problem == "99 of 100 records were acknowledged"


async def _stored(cluster: EmbeddedCluster) -> int:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return sum((await admin.list_offsets("soak", dict.fromkeys(range(4), "latest"))).values())


async def test_a_short_soak_samples_each_second_of_both_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    class PatientRun(soaking._Run):
        """Takes the sample of a phase only when a probe of it has ended, however slow the machine is."""

        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            process = self._process

            def memory_full_info():
                # It runs in a thread, and the probes continue.
                while not self._taken:
                    time.sleep(0.01)
                return process.memory_full_info()

            self._process = SimpleNamespace(memory_full_info=memory_full_info)

        async def phase(self, *arguments):
            self._taken.clear()
            return await super().phase(*arguments)

    monkeypatch.setattr(soaking, "_Run", PatientRun)
    async with EmbeddedCluster(properties={"num.partitions": "4"}) as cluster:
        # The buffer is small: the first phase fills it in a moment, also without compiled modules.
        job = Job("soak", cluster.bootstrap_servers, "soak", seconds=1, buffer_memory=2 * MIB, batch_size=16 * 1024)
        found = await soaking.soak(job)
        assert await _stored(cluster) == found["sent"] == found["acknowledged"]
    assert found["failed"] == 0
    assert [one["phase"] for one in found["samples"]] == [FULL_RATE, SHARED_RATE]
    full, shared = found["samples"]
    assert 0 < shared["rate"] < full["rate"]
    for one in (full, shared):
        assert 0 < one["p50_us"] <= one["p99_us"] <= one["p99.9_us"] <= one["max_us"]
        assert 0 < one["uss_mib"] <= one["rss_mib"]
        assert 0 <= one["buffer_available_bytes"] <= 2 * MIB
        assert one["cpu_share"] > 0


async def test_a_soak_counts_each_record_that_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a probe is raised, as it is awaited, and reported to on_error too."""
    async with EmbeddedCluster(properties={"num.partitions": "4"}) as cluster:
        faults = []

        def failing(elapsed: float, rate: float) -> int:
            """From the second phase on, every request fails, also those of the probes."""
            if not faults:
                faults.append(cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None))
            return planned(elapsed, rate)

        monkeypatch.setattr(soaking, "planned", failing)
        job = Job("soak", cluster.bootstrap_servers, "soak", seconds=1, buffer_memory=2 * MIB, batch_size=16 * 1024)
        found = await soaking.soak(job)
        assert await _stored(cluster) == found["acknowledged"]
    assert found["failed"] > 0
    assert found["acknowledged"] + found["failed"] == found["sent"]
    assert "TopicAuthorizationError" in found["first_failure"]


def _main(monkeypatch: pytest.MonkeyPatch, tmp_path, measured) -> int:
    def measure(seconds: int):
        if isinstance(measured, Exception):
            raise measured
        return Job("soak", buffer_memory=32 * MIB), measured

    monkeypatch.setattr(soak, "measure", measure)
    return soak.main(["--seconds", "3", "--output", str(tmp_path)])


def test_a_soak_writes_its_samples_and_a_plot(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    assert _main(monkeypatch, tmp_path, _measured()) == 0
    document = json.loads((tmp_path / "soak.json").read_text())
    assert document["samples"] == _measured()["samples"]
    assert document["settings"] == {"seconds": 3, "buffer_memory": 32 * MIB}
    text = " ".join(xml.etree.ElementTree.fromstring((tmp_path / "soak.svg").read_text()).itertext())
    for expected in ("records/s", "awaited send, ms", "CPU, % of a processor", "MiB", FULL_RATE, SHARED_RATE):
        assert expected in text
    assert f"{FULL_RATE}: medians: rate 1,000, p50_us 500" in capsys.readouterr().out


def test_a_problem_is_written_and_ends_the_soak_with_an_error(monkeypatch, tmp_path, capsys) -> None:
    assert _main(monkeypatch, tmp_path, _measured(acknowledged=99)) == 1
    assert "PROBLEM: 99 of 100 records were acknowledged" in capsys.readouterr().out
    assert json.loads((tmp_path / "soak.json").read_text())["problems"] == ["99 of 100 records were acknowledged"]


def test_a_soak_whose_process_fails_says_why(monkeypatch, tmp_path, capsys) -> None:
    assert _main(monkeypatch, tmp_path, RunError("took longer than 306 s")) == 1
    assert capsys.readouterr().err == "the soak failed: took longer than 306 s\n"
    assert list(tmp_path.iterdir()) == []


def test_a_soak_too_short_to_see_growth_is_rejected(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        soak.main(["--seconds", "2"])
    assert ended.value.code == 2
    assert "--seconds 2 is too short to see memory grow: at least 3" in capsys.readouterr().err


def test_the_plot_of_a_soak_does_not_change_and_has_gaps(tmp_path) -> None:
    samples = _measured()["samples"]
    for key in ("p50_us", "p99_us", "p99.9_us", "max_us"):
        del samples[3][key]
    surroundings = {"processor": "a processor", "cpus": 2, "python": "3.11"}
    texts = []
    for name in ("first.svg", "second.svg"):
        draw_over_time(samples, "a soak", surroundings, tmp_path / name)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
