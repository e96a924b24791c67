"""Work that would hold the loop, in threads: compressing large batches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.compression import Codec
from aioproducer.core.batch import ProducerBatch

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class Compressor:
    """Compresses closed batches in a few threads; the codecs release the GIL meanwhile.

    Args:
        done: called on the loop with the batch and its compressed bytes, or with what went wrong.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        codec: Codec,
        level: int | None,
        done: Callable[[ProducerBatch, bytes | BaseException], None],
    ) -> None:
        self._loop = loop
        self._codec = codec
        self._level = level
        self._done = done
        self._executor: ThreadPoolExecutor | None = None
        self._under_way: set[asyncio.Future[bytes]] = set()

    def submit(self, batch: ProducerBatch) -> None:
        """Compress the batch's body in a thread."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            workers = min(4, os.cpu_count() or 1)
            self._executor = ThreadPoolExecutor(workers, thread_name_prefix="aioproducer-compressor")
        assert batch.body is not None
        future = self._loop.run_in_executor(self._executor, self._codec.compress, batch.body, self._level)
        self._under_way.add(future)
        future.add_done_callback(lambda future: self._finish(batch, future))

    def _finish(self, batch: ProducerBatch, future: asyncio.Future[bytes]) -> None:
        self._under_way.discard(future)
        error = future.exception()
        self._done(batch, future.result() if error is None else error)

    async def close(self) -> None:
        """Wait for what is under way, and end the threads."""
        try:
            if self._under_way:
                await asyncio.wait(self._under_way)
                # The callbacks of what has just ended run in the next turn.
                await asyncio.sleep(0)
        finally:
            if self._executor is not None:
                # Nothing is left to wait for, unless this was cancelled.
                self._executor.shutdown(wait=not self._under_way)
                self._executor = None
