"""docs/performance.md shows the recorded measurements."""

from __future__ import annotations

import re

from aioproducer.compression import lz4, zstd
from aioproducer.core.batching.batch_compression import INLINE_SIZE
from aioproducer.io import offload
from tests.docs.performance import PAGE, SCENARIOS, filled, tables


def test_the_page_shows_the_recorded_bench() -> None:
    page = PAGE.read_text()
    assert filled(page) == page, "run python -m tests.docs.performance"
    assert all(f"<!-- {name} -->" in page for name in [*SCENARIOS, "service", "verdicts", "machine"])


def test_no_run_of_the_recorded_bench_lost_a_client() -> None:
    assert all(table.count("\n") >= 3 for name, table in tables().items() if name in SCENARIOS)


def test_limits_of_threads_are_those_of_the_code() -> None:
    [row] = re.findall(r"^\| compress a batch \|.*", PAGE.read_text(), re.MULTILINE)
    assert f"larger than {INLINE_SIZE // 1024} KiB" in row
    assert f"at most {offload.MAX_WORKERS} |" in row
    assert lz4._LAST_QUICK_LEVEL == zstd._LAST_QUICK_LEVEL
    assert f"lz4 or zstd above level {lz4._LAST_QUICK_LEVEL} every" in row
