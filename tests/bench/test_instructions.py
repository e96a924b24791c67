"""The instruction counter's workloads: each sends exactly the number of records that its count is divided by."""

from __future__ import annotations

import pytest

from aioproducer.testing import EmbeddedCluster
from bench import instructions


@pytest.mark.parametrize("name", instructions.PATHS)
async def test_a_path_sends_the_requested_number_of_records(name: str) -> None:
    properties = {"num.partitions": str(instructions.PARTITIONS)}
    records = instructions.PATHS[name].few
    sent = records if instructions.PATHS[name].sends else 0
    async with EmbeddedCluster(properties=properties) as cluster:
        await instructions.run(name, cluster.bootstrap_servers, records)
        assert len(cluster.records(instructions.TOPIC)) == instructions.PARTITIONS + sent


@pytest.mark.parametrize("path", instructions.PATHS.values(), ids=instructions.PATHS)
def test_both_runs_of_a_path_send_whole_rounds(path: instructions.Workload) -> None:
    for records in (path.few, path.many):
        assert records % instructions.FLUSH_EVERY == 0 or records % instructions.PARTITIONS == 0
    assert path.many >= 5 * path.few


def test_a_path_that_takes_more_than_recorded_fails_the_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = tmp_path / "instructions.json"
    monkeypatch.setattr(instructions, "RECORDED", recorded)
    monkeypatch.setattr(instructions, "count", lambda *_: {"lone": 1000})
    assert instructions.main(["--record"]) == 0
    for figure, code in ((1020, 0), (1021, 1), (900, 0)):
        monkeypatch.setattr(instructions, "count", lambda *_, figure=figure: {"lone": figure})
        assert instructions.main(["--compare"]) == code
        assert f"| {figure:,} | {figure / 1000:.3f} |" in capsys.readouterr().out
