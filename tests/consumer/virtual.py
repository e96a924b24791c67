"""Scenarios of consumers on virtual time, which leave nothing behind."""

from __future__ import annotations

import functools
from random import Random

from tests.simulation.loop import VirtualLoop
from tests.simulation.world import reproducible
from tests.virtual_time import run_to_end


def run(scenario, seed=1):
    """Play ``scenario(loop)`` on virtual time; no task, timer or unhandled exception may be left."""
    loop = VirtualLoop(Random(seed))
    with reproducible(loop, Random(seed)):
        return run_to_end(loop, scenario(loop))


def on_virtual_time(test):
    """Run a test that is a coroutine function on virtual time: no stall of the machine uses up its time-outs."""

    @functools.wraps(test)
    def run_test(**arguments):
        run(lambda loop: test(**arguments))

    return run_test


def run_at_each_step(scenario, *, more_than, most):
    """Play ``scenario(loop, step)`` for step 1, 2, ... until it returns True: it ended before that step.

    Args:
        more_than: it must have more steps than this.
        most: it must end before this step.
    """
    for step in range(1, most):
        if run(lambda loop, step=step: scenario(loop, step)):
            assert step > more_than
            return
    raise AssertionError("the scenario never ends")
