"""The own tests of the example of an outbox: simulated faults, and the seed that finds a commit before the send."""

from __future__ import annotations

from pathlib import Path

from tests.nested_pytest import check_all_pass

FOLDER = Path(__file__).parents[2] / "examples" / "outbox_service"


def test_the_services_own_tests() -> None:
    check_all_pass(FOLDER, 6)
