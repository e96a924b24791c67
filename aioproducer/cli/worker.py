"""A thread for calls that may block without a limit, such as writing to a pipe; a process may end without it."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from aioproducer.transport.base import Buffer

T = TypeVar("T")


class Worker:
    """Runs functions one after the other in a daemon thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="aioproducer-worker", daemon=True).start()

    async def do(self, function: Callable[[], T]) -> T:
        """Return the function's result, or raise its error. A cancelled caller does not stop the function."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if outcome.done():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]  # None only where T has it

        def job() -> None:
            result, error = None, None
            try:
                result = function()
            except Exception as failure:
                error = failure
            try:
                loop.call_soon_threadsafe(tell, result, error)
            except RuntimeError:
                # The loop was closed in the meantime: there is no waiter.
                return

        self._jobs.put(job)
        return await outcome

    def end(self) -> None:
        """Let the thread end after its last job."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class WholeWrites(io.RawIOBase):
    """A file without a Python buffer; each ``write`` writes all of its data."""

    def __init__(self, descriptor: int, *, owned: bool) -> None:
        self._descriptor = descriptor
        self._owned = owned
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Buffer, /) -> int:  # type: ignore[override]  # of all buffers, those there are here
        view = memoryview(data).cast("B")
        size = len(view)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._position += size
        return size

    def close(self) -> None:
        if not self.closed and self._owned:
            os.close(self._descriptor)
        super().close()
