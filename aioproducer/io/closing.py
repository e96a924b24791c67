"""How connections end, whoever owns them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aioproducer.client_log import ClientLog
from aioproducer.io.node import NodeConnection

# How long connections may take to end in good order, and then to end at all, in seconds.
CLOSE_TIMEOUT = 0.2
ABORT_TIMEOUT = 10.0
"""TCP needs a turn of the loop for it; a card has gigabytes of memory to let go of, which takes seconds."""


async def close_nodes(nodes: Sequence[NodeConnection], log: ClientLog) -> None:
    """End the nodes' connections and tasks; also where this is cancelled, none stays open."""
    try:
        for node in nodes:
            node.close()
        await _wait_disconnected(nodes, CLOSE_TIMEOUT, log)
    finally:
        try:
            for node in nodes:
                node.abort()
            await _wait_disconnected(nodes, ABORT_TIMEOUT, log)
        finally:
            for node in nodes:
                node.task.cancel()
            await asyncio.gather(*(node.task for node in nodes), return_exceptions=True)


async def _wait_disconnected(nodes: Sequence[NodeConnection], timeout: float, log: ClientLog) -> None:
    try:
        async with asyncio.timeout(timeout):
            for node in nodes:
                await node.disconnected()
    except TimeoutError:
        log.debug("connections that did not end within %s s: %s", timeout, [node.node for node in nodes])
