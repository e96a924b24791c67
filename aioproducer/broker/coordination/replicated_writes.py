"""Writes of a coordinator to the log of one partition. Each has an outcome in the log and an answer to its request.

The outcome is known when the records are replicated, or when this leader cannot replicate them any longer. The answer
is given then, or earlier with REQUEST_TIMED_OUT at the request's deadline (Kafka's ``CoordinatorRuntime``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from aioproducer.broker.coordination.codes import code_of
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import (
    KafkaError,
    NotCoordinatorError,
    NotEnoughReplicasAfterAppendError,
    RequestTimedOutError,
)

if TYPE_CHECKING:
    from aioproducer.broker.log import AppendInfo

logger = logging.getLogger(__name__)

NONE: Final = 0
NOWHERE: Final = -1

Done: TypeAlias = Callable[[int], None]
"""Receives the error code of a write, 0 when it is in the log and replicated. Called once."""

Decided: TypeAlias = Callable[[int, int], None]
"""Receives the code of a write's outcome, and the offset after its last record: -1 if it is not in the log."""


@dataclass(slots=True)
class _Write:
    end_offset: int
    decided: Decided
    done: Done | None
    """``None`` after it was called."""
    give_up_at: float

    def answer(self, code: int) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(code)


class ReplicatedWrites:
    """The writes, in order, to one partition that this node leads. All codes are those of the partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._pending: deque[_Write] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        partition.add_watcher(self._complete)

    def __len__(self) -> int:
        return len(self._pending)

    def write(self, append: Callable[[], AppendInfo], timeout: float, decided: Decided, done: Done) -> None:
        """Append one batch, or a marker, by ``append``.

        Args:
            append: Returns the result of the partition's append; may raise ``KafkaError``.
            timeout: Seconds after which ``done`` receives REQUEST_TIMED_OUT.
            decided: Called with the write's outcome, before ``done``; also if the timeout has passed before.
            done: Called with the code of the answer.
        """
        if self._is_closed:
            done(NotCoordinatorError.code)
            return
        try:
            info = append()
        except KafkaError as error:
            logger.debug("%r: a coordinator's write failed: %s", self._partition, error)
            code = code_of(error)
            decided(code, NOWHERE)
            done(code)
            return
        self._await_replication(info.last_offset + 1, timeout, decided, done)

    def wait(self, timeout: float, done: Done) -> None:
        """Call ``done`` when the outcomes of all earlier writes are known, or after ``timeout`` seconds."""
        if self._is_closed:
            done(NotCoordinatorError.code)
            return
        self._await_replication(self._pending[-1].end_offset if self._pending else 0, timeout, _ignore, done)

    def close(self, code: int) -> None:
        """Stop watching the partition; answer pending writes with ``code``, without an outcome."""
        self._is_closed = True
        self._partition.remove_watcher(self._complete)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, deque()
        for write in pending:
            write.answer(code)

    def _await_replication(self, end_offset: int, timeout: float, decided: Decided, done: Done) -> None:
        give_up_at = asyncio.get_running_loop().time() + timeout
        write = _Write(end_offset, decided, done, give_up_at)
        self._pending.append(write)
        self._complete()
        if write.done is not None:
            self._wake_at(give_up_at)

    def _complete(self) -> None:
        while self._pending:
            try:
                if not self._partition.replicated(self._pending[0].end_offset):
                    return
                code = NONE
            except NotEnoughReplicasAfterAppendError:
                # Fewer replicas than required have the record, but it is committed: a new leader has it too.
                code = NONE
            except KafkaError as error:
                code = code_of(error)
            write = self._pending.popleft()
            write.decided(code, write.end_offset)
            write.answer(code)

    def _wake_at(self, due: float) -> None:
        """Set the timer to ``due``, unless it fires earlier."""
        if self._is_closed:
            return
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._give_up)

    def _give_up(self) -> None:
        now = asyncio.get_running_loop().time()
        self._timer = None
        for write in [write for write in self._pending if write.give_up_at <= now]:
            write.answer(RequestTimedOutError.code)
        due = min((write.give_up_at for write in self._pending if write.done is not None), default=None)
        if due is not None:
            self._wake_at(due)


def _ignore(code: int, end_offset: int) -> None:
    """The outcome of a call that only waits: nothing to do."""
