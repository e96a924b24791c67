"""The checkers find planted bugs. ``make planted-bugs`` shows how many seeds each one needs."""

from __future__ import annotations

import pytest

from tests.simulation.embedded.planted import BUGS
from tests.simulation.embedded.sweep import find

_QUICK = (
    "a_repeated_batch_is_appended_again",
    "an_abort_is_marked_as_a_commit",
    "a_batch_is_acknowledged_before_it_is_replicated",
    "a_waiting_caller_of_the_pool_is_not_woken",
    "a_poll_is_repeated",
    "commits_of_a_fenced_member_are_accepted",
    "offsets_of_an_open_transaction_are_not_waited_for",
)
"""Bugs of the brokers and the clients that one to six seeds find."""
_MOST_SEEDS = 50


@pytest.mark.parametrize("name", BUGS)
def test_the_target_of_a_planted_bug_exists(name: str) -> None:
    """A method that is renamed has to be renamed there, too."""
    owner, attribute = BUGS[name].owner()
    assert hasattr(owner, attribute)


def test_there_are_twenty_planted_bugs() -> None:
    assert len(BUGS) >= 20


@pytest.mark.parametrize("name", _QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = BUGS[name]
    if bug.is_compiled:
        pytest.skip("a compiled class cannot be changed")
    found = find(bug, range(_MOST_SEEDS))
    assert found is not None
    assert found.violation.rule != "the play ends"
