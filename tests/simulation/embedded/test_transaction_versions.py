"""An EndTxn that comes late, after the client has sent it again.

Without KIP-890 (``transaction.version`` 1) all transactions of a producer have one epoch, so that the late request ends
the next transaction: Jepsen found Kafka to lose and to tear transactions that way. With KIP-890 each transaction has an
epoch of its own, and the late request is refused.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.embedded.play import play_story
from tests.simulation.embedded.story import late_end_story

_BROKEN = {"no_torn_transaction", "no_aborted_read", "no_lost_write"}
_SEEDS = (40, 18, 131, 159)
"""Seeds that show it before KIP-890, or did when they were chosen: what a seed plays changes with the code."""


def _rules_broken(seed: int, version: int) -> set[str]:
    violations = play_story(late_end_story(Random(seed), version), seed).violations
    return {violation.rule for violation in violations}


def test_a_late_end_of_a_transaction_breaks_the_next_one_before_kip_890() -> None:
    assert any(_rules_broken(seed, 1) & _BROKEN for seed in _SEEDS)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_late_end_of_a_transaction_changes_nothing_with_kip_890(seed: int) -> None:
    assert _rules_broken(seed, 2) == set()
