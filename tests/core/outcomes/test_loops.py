"""Detection of loops that can run inside their own callbacks."""

from __future__ import annotations

import asyncio

import uvloop

from aioproducer.core.outcomes.loops import may_nest


class Nesting(asyncio.SelectorEventLoop):
    def run_forever(self) -> None:
        """Simulate a loop that can be run again inside its callbacks."""


def test_asyncio_and_uvloop_loops_refuse_to_nest() -> None:
    for factory, nests in ((asyncio.SelectorEventLoop, False), (uvloop.new_event_loop, False), (Nesting, True)):
        loop = factory()
        assert may_nest(loop) == nests
        loop.close()
    assert not may_nest(object())
