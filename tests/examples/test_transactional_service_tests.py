"""The tests of the example of a service with a transaction for each request, on the embedded broker."""

from __future__ import annotations

from pathlib import Path

from tests.nested_pytest import check_all_pass

FOLDER = Path(__file__).parents[2] / "examples" / "transactional_service"


def test_the_services_own_tests_pass() -> None:
    tests = (FOLDER / "test_orders.py").read_text().count("async def test_")
    check_all_pass(FOLDER, tests)
