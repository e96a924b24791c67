"""docs/performance.md shows what was measured."""

from __future__ import annotations

from tests.docs.performance import PAGE, SCENARIOS, filled, tables


def test_the_page_shows_the_recorded_bench() -> None:
    page = PAGE.read_text()
    assert filled(page) == page, "run python -m tests.docs.performance"
    assert all(f"<!-- {name} -->" in page for name in [*SCENARIOS, "verdicts", "machine"])


def test_no_run_of_the_recorded_bench_lost_a_client() -> None:
    assert all(table.count("\n") >= 3 for name, table in tables().items() if name in SCENARIOS)
