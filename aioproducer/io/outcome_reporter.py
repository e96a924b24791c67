"""Compiled. Reports the outcome of each record to the interceptors, some in each iteration of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.outcomes.delivery import DeliveryGroup
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.interceptors import InterceptorChain
from aioproducer.record import HeaderPair, new_record_metadata

if TYPE_CHECKING:
    from contextvars import Context

# Seconds for which outcomes are reported before the loop runs other callbacks.
REPORT_SLICE_SECONDS = 0.0005
# Records that are reported between two looks at the clock.
RECORDS_PER_CHUNK = 16
# At most this many records wait from one iteration of the loop to the next: a slow interceptor slows the loop down
# rather than take more and more memory.
MAX_BACKLOG = 10_000

# Names of this module alone are C numbers in the compiled module.
_REPORT_SLICE, _RECORDS_PER_CHUNK, _MAX_BACKLOG = REPORT_SLICE_SECONDS, RECORDS_PER_CHUNK, MAX_BACKLOG

_NO_HEADERS: tuple[HeaderPair, ...] = ()


class OutcomeReporter:
    """Batches and waiting records with outcomes that are still to be reported, in the order of their ends.

    ``add`` is called before the waiters of a batch wake: a coroutine that awaited a record usually resumes after the
    interceptors have seen the record's outcome. A batch too large for one slice may resume its awaiters earlier.
    """

    __slots__ = (
        "_added",
        "_batch",
        "_context",
        "_interceptors",
        "_is_scheduled",
        "_loop",
        "_next",
        "_reported",
        "_waiting",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, interceptors: InterceptorChain) -> None:
        self._loop = loop
        self._interceptors = interceptors
        self._waiting: deque[DeliveryGroup] = deque()
        # The batch that is being reported, and the index of its next record.
        self._batch: ProducerBatch | None = None
        self._next = 0
        # Records ever added, and ever reported.
        self._added = 0
        self._reported = 0
        self._is_scheduled = False
        # Interceptors run in the context of the caller of start(), not of send().
        self._context: Context = copy_context()

    def add(self, group: DeliveryGroup) -> None:
        """Report the outcomes of the group's records soon."""
        self._added += group.record_count if isinstance(group, ProducerBatch) else 1
        self._waiting.append(group)
        self._schedule()

    async def wait_reported(self) -> None:
        """Wait until all outcomes that are known now are reported."""
        last = self._added
        while self._reported < last:
            self._context.run(self._report_slice)
            await asyncio.sleep(0)

    def report_all(self) -> None:
        """Report all outcomes now, however long that takes."""
        while self._report_next():
            continue

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._report_slice, context=self._context)

    def _report_slice(self) -> None:
        self._is_scheduled = False
        began = perf_counter()
        more = True
        try:
            while more:
                for _ in range(_RECORDS_PER_CHUNK):
                    more = self._report_next()
                if perf_counter() - began > _REPORT_SLICE and self._added - self._reported <= _MAX_BACKLOG:
                    break
        finally:
            # Also if an interceptor ends the loop: it may run again.
            if self._reported < self._added:
                self._schedule()

    def _report_next(self) -> bool:
        """Report the next record; return False if there is none. An interceptor may run the loop, and thus this."""
        batch = self._batch
        if batch is None:
            if not self._waiting:
                return False
            group = self._waiting.popleft()
            if isinstance(group, PendingRecord):
                self._reported += 1
                self._report_waiting(group)
                return True
            assert isinstance(group, ProducerBatch)
            batch = self._batch = group
            self._next = 0
        index = self._next
        self._next = index + 1
        self._reported += 1
        headers = _NO_HEADERS
        if batch.kept_headers:
            headers = tuple(batch.kept_headers.get(index, _NO_HEADERS))  # type: ignore[arg-type]  # normalised
        if self._next == batch.record_count:
            self._batch = None
            # Deliveries that the caller keeps refer to the batch.
            batch.kept_headers = None
        error = batch.error(index)
        if error is None:
            metadata = batch.metadata(index)
        else:
            metadata = new_record_metadata(batch.topic_partition, -1, -1)
        self._interceptors.on_acknowledgement(metadata, error, headers)
        return True

    def _report_waiting(self, pending: PendingRecord) -> None:
        """Report a record that has failed, or was withdrawn, before it was in a batch."""
        error: BaseException
        if pending.withdrawn:
            error = asyncio.CancelledError()
        else:
            assert pending.stored_error is not None
            # Not by ``error``, which is for callers: they have not seen it.
            error = pending.stored_error.fresh()
        headers: tuple[Any, ...] = tuple(pending.headers)
        self._interceptors.on_acknowledgement(new_record_metadata(pending.where(), -1, -1), error, headers)
