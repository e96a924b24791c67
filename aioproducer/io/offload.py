"""Work that would hold the loop, in threads: compressing large batches."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.compression import Codec
from aioproducer.core.batch import ProducerBatch

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MOST_WORKERS = 4


def _processors() -> int:
    """Those that this process may run on, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Compressor:
    """Compresses closed batches in a few threads; the codecs release the GIL meanwhile.

    A worker goes on while batches wait, instead of being handed them one by one: handing over takes the loop and the
    thread as long as compressing some hundred records.

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
        # One processor is left to the loop, which would wait whole slices of the scheduler's for one of its own.
        self._most_workers = max(1, min(MOST_WORKERS, _processors() - 1))
        self._workers: set[asyncio.Future[None]] = set()
        # Both are used by the loop's thread and the workers.
        self._waiting: deque[ProducerBatch] = deque()
        self._finished: deque[tuple[ProducerBatch, bytes | BaseException]] = deque()
        self._told = False

    def submit(self, batch: ProducerBatch) -> None:
        """Compress the batch's body in a thread."""
        self._waiting.append(batch)
        if len(self._workers) < self._most_workers:
            self._start()

    def _start(self) -> None:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._most_workers, thread_name_prefix="aioproducer-compressor")
        worker = self._loop.run_in_executor(self._executor, self._work)
        self._workers.add(worker)
        worker.add_done_callback(self._left)

    def _work(self) -> None:
        """In a thread: compress what waits, until nothing does."""
        waiting, finished = self._waiting, self._finished
        while True:
            try:
                batch = waiting.popleft()
            except IndexError:
                return
            assert batch.body is not None
            result: bytes | BaseException
            try:
                result = self._codec.compress(batch.body, self._level)
            except BaseException as error:
                result = error
            finished.append((batch, result))
            # The loop hears of the last one by the worker's end.
            if waiting and not self._told:
                self._told = True
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # First: what is finished from here on tells the loop again.
        self._told = False
        finished = self._finished
        while finished:
            self._done(*finished.popleft())

    def _left(self, worker: asyncio.Future[None]) -> None:
        self._workers.discard(worker)
        # A batch may have come while the worker was on its way out.
        if self._waiting and len(self._workers) < self._most_workers:
            self._start()
        self._deliver()
        worker.result()

    async def close(self) -> None:
        """Wait for what is under way, and end the threads."""
        try:
            while self._workers:
                await asyncio.wait(self._workers)
                # The callbacks of what has just ended run in the next turn.
                await asyncio.sleep(0)
        finally:
            if self._executor is not None:
                # Nothing is left to wait for, unless this was cancelled.
                self._executor.shutdown(wait=not self._workers)
                self._executor = None
