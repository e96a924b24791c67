"""Runs work in threads that would block the loop: compressing large batches."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING

from aioproducer._common.client_log import Log
from aioproducer.compression import Codec
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.io.scheduling import give_way

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_logger = logging.getLogger("aioproducer")

MAX_WORKERS = 4


def _processors() -> int:
    """Return how many processors this process may run on; if that is unknown, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Compressor:
    """Compresses closed batches in a few threads; the codecs release the GIL.

    A worker continues while batches wait: handing over a single batch takes the loop and the thread as long as
    compressing some hundred records.

    Args:
        done: called on the loop with the batch and its compressed bytes, or with the exception.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        codec: Codec,
        level: int | None,
        done: Callable[[ProducerBatch, bytes | BaseException], None],
        log: Log = _logger,
    ) -> None:
        self._loop = loop
        self._codec = codec
        self._level = level
        self._done = done
        self._log = log
        self._executor: ThreadPoolExecutor | None = None
        # One processor is left for the loop, which would otherwise wait for whole time slices of the scheduler.
        self._max_workers = max(1, min(MAX_WORKERS, _processors() - 1))
        self._workers: set[asyncio.Future[None]] = set()
        # The loop's thread and the workers use both.
        self._waiting: deque[ProducerBatch] = deque()
        self._finished: deque[tuple[ProducerBatch, bytes | BaseException]] = deque()
        self._delivery_scheduled = False
        self._has_warned = False
        # A worker thread has no context of its own; callbacks run in that of the caller of start().
        self._context = copy_context()

    def submit(self, batch: ProducerBatch) -> None:
        """Compress the batch's body in a thread."""
        self._waiting.append(batch)
        if len(self._workers) < self._max_workers:
            self._start()

    def _start(self) -> None:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(
                self._max_workers, thread_name_prefix="aioproducer-compressor", initializer=give_way
            )
        try:
            worker = self._loop.run_in_executor(self._executor, self._work)
        except RuntimeError as error:
            # The system has no more threads. The executor still holds the work item of this one.
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
            if not self._workers:
                if not self._has_warned:
                    self._has_warned = True
                    self._log.warning("No thread can be started: the event loop compresses batches: %s", error)
                self._loop.call_soon(self._work_on_loop)
            return
        self._workers.add(worker)
        worker.add_done_callback(self._worker_ended, context=self._context)

    def _work(self) -> None:
        """Compress batches in a thread until none waits."""
        while self._compress_next():
            # The end of the worker delivers the last batch.
            if self._waiting and not self._delivery_scheduled:
                self._delivery_scheduled = True
                self._loop.call_soon_threadsafe(self._deliver, context=self._context)

    def _work_on_loop(self) -> None:
        """Compress one batch on the loop, without threads; later iterations compress others."""
        if not self._workers and self._compress_next():
            if self._waiting:
                self._start()
            self._deliver()

    def _compress_next(self) -> bool:
        """Compress the batch that waits longest; return False if none waits."""
        try:
            batch = self._waiting.popleft()
        except IndexError:
            return False
        result: bytes | BaseException
        if batch.is_finished():
            # It has expired, or the producer is closing; it is delivered all the same, so that its memory is released.
            result = RuntimeError("not compressed")
        else:
            assert batch.body is not None
            try:
                result = self._codec.compress(batch.body, self._level)
            except BaseException as error:
                result = error
        self._finished.append((batch, result))
        return True

    def _deliver(self) -> None:
        # Reset first: a batch that finishes from here on schedules another delivery.
        self._delivery_scheduled = False
        finished = self._finished
        while finished:
            self._done(*finished.popleft())

    def _worker_ended(self, worker: asyncio.Future[None]) -> None:
        self._workers.discard(worker)
        # A batch may have been submitted while the worker was ending.
        if self._waiting and len(self._workers) < self._max_workers:
            self._start()
        self._deliver()
        worker.result()

    async def close(self) -> None:
        """Wait for the batches in progress, and end the threads."""
        try:
            while self._workers or self._waiting:
                if self._workers:
                    await asyncio.wait(self._workers)
                # The callbacks of workers that have just ended run in the next iteration.
                await asyncio.sleep(0)
        finally:
            if self._executor is not None:
                # No worker is left to wait for, unless this was cancelled.
                self._executor.shutdown(wait=not self._workers)
                self._executor = None
