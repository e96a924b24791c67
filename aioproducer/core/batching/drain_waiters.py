"""Compiled. Callers of ``drain`` that wait for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.core.batching.buffer_pool import BufferPool
from aioproducer.core.batching.incomplete_batches import IncompleteBatches
from aioproducer.core.outcomes.delivery import FutureFactory
from aioproducer.core.waiting.blocked_records import BlockedRecords

if TYPE_CHECKING:
    from asyncio import Future

# Hysteresis: ``drain`` resumes only when 1/8 of the memory is free, or its callers would block again at once.
AMPLE_SHARE = 8
# ``drain`` leaves at most this share of the memory unused, and at most a request.
RESERVE_SHARE = 32


class DrainWaiter:
    """One waiting ``drain``; the numbers are the last ones that existed when it was called.

    memory_number, record_number
        Of records that wait for memory, and of all waiting records.
    batch_number
        Of batches.
    behind_records
        Whether records waited for memory.
    """

    __slots__ = ("batch_number", "behind_records", "future", "memory_number", "record_number")

    def __init__(
        self, future: Future[None], memory_number: int, record_number: int, batch_number: int, behind_records: bool
    ) -> None:
        self.future = future
        self.memory_number = memory_number
        self.record_number = record_number
        self.batch_number = batch_number
        self.behind_records = behind_records


class DrainWaiters:
    """Decides when a ``drain`` resumes, first come, first served: by free memory and by the waiting records.

    Args:
        wake: called when a ``drain`` has begun to wait.
    """

    def __init__(
        self,
        loop: FutureFactory,
        pool: BufferPool,
        incomplete: IncompleteBatches,
        blocked_records: BlockedRecords,
        max_request_size: int,
        wake: Callable[[], None],
    ) -> None:
        # The numbers of each waiter are no lower than those of the one before.
        self.waiters: deque[DrainWaiter] = deque()
        self._loop = loop
        self._pool = pool
        self._incomplete = incomplete
        self._blocked_records = blocked_records
        self._memory_waiters = blocked_records.memory_waiters
        self._pending = blocked_records.pending
        # Read by each ``drain``.
        self._pending_records = self._pending.records
        self._max_request_size = max_request_size
        # With less free memory ``drain`` waits. Its callers may send several records between two calls: those that find
        # no memory take the slow path, which costs as much as ten others.
        self._reserve = min(max_request_size, pool.total_memory // RESERVE_SHARE)
        self._wake = wake

    def add(self) -> Future[None]:
        """Return a future that is done when a ``drain`` that begins now may resume; see ``_may_resume``."""
        future: Future[None] = self._loop.create_future()
        waiters = self.waiters
        while waiters and waiters[-1].future.done():
            # Cancelled ones would accumulate behind one that waits.
            waiters.pop()
        waiters.append(
            DrainWaiter(
                future,
                self._blocked_records.last_memory_number,
                self._pending.last_number,
                self._incomplete.last_number,
                bool(self._memory_waiters),
            )
        )
        self._wake()
        return future

    def has_room(self) -> bool:
        """Return whether ``drain`` may return at once: no record waits for memory, and there is room for more."""
        available = self._pool.available_memory
        if self._memory_waiters or available <= 0 or (available < self._reserve and self._incomplete.count):
            return False
        if self._pending_records and not self._pending_have_room():
            return False
        return not self.waiters or self._has_ample_memory()

    def _pending_have_room(self) -> bool:
        return self._pending.size * 2 <= self._pending.size_limit

    def _has_ample_memory(self) -> bool:
        """Return whether a useful part of the memory is free, or no batch exists that could free more.

        Otherwise the waiting callers would fill each kibibyte that comes free and wait again, and records take the
        slow path.
        """
        return self._pool.available_memory * AMPLE_SHARE >= self._pool.total_memory or not self._incomplete.count

    def _may_resume(self, waiter: DrainWaiter) -> bool:
        """Return whether a ``drain`` has waited long enough.

        All records that waited for memory before it have it or have failed. All waiting records take less than half of
        their limit; or those that waited before it have left, and there is room for the largest record.

        A ``drain`` that no record waited before waits for ample memory besides, at most until another record waits for
        memory or all batches created before have ended. Otherwise coroutines that await their sends could take all
        memory that comes free, for ever.
        """
        blocked_records = self._blocked_records
        pending = self._pending
        if blocked_records.first_memory_number() <= waiter.memory_number:
            return False
        if not self._pending_have_room():
            has_room = pending.size + self._max_request_size <= pending.size_limit
            if not has_room or pending.first_number() <= waiter.record_number:
                return False
        return (
            waiter.behind_records
            or self._has_ample_memory()
            or blocked_records.last_memory_number > waiter.memory_number
            or self._incomplete.first_number() > waiter.batch_number
        )

    def resume(self, limit: int) -> bool:
        """Resume each ``drain`` that has waited long enough, at most ``limit``; return whether there are more.

        And no more than may each send a large record within the limit of waiting records: the size of theirs is not
        known.
        """
        spare = self._pending.size_limit // 2 - self._pending.size
        return self._resume(max(min(spare // self._max_request_size, limit), 1), False)

    def resume_all(self, limit: int) -> bool:
        """Resume each ``drain``, whatever it waits for, at most ``limit``; return whether there are more."""
        return self._resume(limit, True)

    def _resume(self, limit: int, unconditionally: bool) -> bool:
        waiters = self.waiters
        while waiters:
            waiter = waiters[0]
            if not waiter.future.done():
                if not (unconditionally or self._may_resume(waiter)):
                    return False
                if limit <= 0:
                    return True
                limit -= 1
                waiter.future.set_result(None)
            waiters.popleft()
        return False
