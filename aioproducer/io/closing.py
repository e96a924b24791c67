"""How connections end, whoever owns them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aioproducer.io.node import NodeConnection

logger = logging.getLogger("aioproducer")

# How long connections may take to end in good order, and then to end at all, in seconds.
CLOSE_TIMEOUT = 0.2
ABORT_TIMEOUT = 10.0
"""TCP needs a turn of the loop for it; a card has gigabytes of memory to let go of, which takes seconds."""


async def close_nodes(nodes: Sequence[NodeConnection]) -> None:
    """End the nodes' connections and tasks; also where this is cancelled, none stays open."""
    try:
        for node in nodes:
            node.close()
        await _wait_disconnected(nodes, CLOSE_TIMEOUT)
    finally:
        try:
            for node in nodes:
                node.abort()
            await _wait_disconnected(nodes, ABORT_TIMEOUT)
        finally:
            for node in nodes:
                node.task.cancel()
            await asyncio.gather(*(node.task for node in nodes), return_exceptions=True)


async def _wait_disconnected(nodes: Sequence[NodeConnection], timeout: float) -> None:
    try:
        async with asyncio.timeout(timeout):
            for node in nodes:
                await node.disconnected()
    except TimeoutError:
        logger.debug("connections that did not end within %s s: %s", timeout, [node.node for node in nodes])
