"""A coordinator's writes: their answers and their outcomes."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from aioproducer.broker.coordination.replicated_writes import NOWHERE, ReplicatedWrites
from aioproducer.broker.log import AppendInfo
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
)
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import encode_batch
from tests import waiting

from .replica import Replica

RECORD = SimpleRecord(1, b"k", b"v")
NOT_LEADER, TIMED_OUT, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS = 6, 7, 16, 19


class Writer:
    """Writes records, and keeps their outcomes and answers in order."""

    def __init__(self, replica: Replica) -> None:
        self.writes = ReplicatedWrites(cast("Partition", replica))
        self._replica = replica
        self._end_offsets: list[int] = []
        self.seen: list[tuple[str, str, int]] = []

    def write(self, name: str, timeout: float = 60) -> None:
        self.writes.write(
            self._append,
            timeout,
            lambda code, end_offset: self._decided(name, code, end_offset),
            lambda code: self.seen.append((name, "answered", code)),
        )

    def wait(self, name: str, timeout: float = 60) -> None:
        self.writes.wait(timeout, lambda code: self.seen.append((name, "answered", code)))

    def _append(self) -> AppendInfo:
        batch = bytearray().join(encode_batch([RECORD]))
        info = self._replica.append(batch, acks=-1, origin="coordinator")
        self._end_offsets.append(info.last_offset + 1)
        return cast("AppendInfo", info)

    def _decided(self, name: str, code: int, end_offset: int) -> None:
        """Check that outcomes come in the order of the appends."""
        assert end_offset == (self._end_offsets.pop(0) if self._replica.append_error is None else NOWHERE)
        self.seen.append((name, "decided", code))


async def test_a_replicated_write_has_its_outcome_before_its_answer() -> None:
    writer = Writer(Replica())
    writer.write("a")
    assert writer.seen == [("a", "decided", 0), ("a", "answered", 0)]
    assert len(writer.writes) == 0


async def test_outcomes_of_writes_come_in_order() -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    writer.write("a")
    writer.write("b")
    assert writer.seen == []
    replica.replicate()
    assert [name for name, _, _ in writer.seen] == ["a", "a", "b", "b"]


async def test_a_failed_append_has_its_outcome_at_once() -> None:
    replica = Replica()
    replica.append_error = NotEnoughReplicasError()
    writer = Writer(replica)
    writer.write("a")
    assert writer.seen == [("a", "decided", NOT_ENOUGH_REPLICAS), ("a", "answered", NOT_ENOUGH_REPLICAS)]


async def test_a_lost_leadership_ends_pending_writes() -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    writer.write("a")
    replica.fail(NotLeaderOrFollowerError())
    assert writer.seen == [("a", "decided", NOT_LEADER), ("a", "answered", NOT_LEADER)]


async def test_a_write_on_too_few_replicas_is_committed() -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    writer.write("a")
    replica.fail(NotEnoughReplicasAfterAppendError())
    assert writer.seen == [("a", "decided", 0), ("a", "answered", 0)]


async def test_a_slow_write_is_answered_before_its_outcome() -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    writer.write("slow", 0.03)
    writer.write("quick", 0.001)
    writer.write("patient")
    await waiting.until(lambda: len(writer.seen) == 2)
    assert writer.seen == [("quick", "answered", TIMED_OUT), ("slow", "answered", TIMED_OUT)]
    replica.replicate()
    assert writer.seen[2:] == [
        ("slow", "decided", 0),
        ("quick", "decided", 0),
        ("patient", "decided", 0),
        ("patient", "answered", 0),
    ]


@pytest.mark.parametrize("replicates_later", [True, False])
async def test_closing_answers_pending_writes_without_an_outcome(replicates_later: bool) -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    writer.write("a", 0.001)
    writer.writes.close(NOT_COORDINATOR)
    if replicates_later:
        replica.replicate()
    await asyncio.sleep(0.01)
    assert writer.seen == [("a", "answered", NOT_COORDINATOR)]
    assert replica.watchers == []


async def test_a_closed_log_accepts_no_writes() -> None:
    replica = Replica()
    writer = Writer(replica)
    writer.writes.close(NOT_COORDINATOR)
    writer.write("a")
    writer.wait("b")
    assert writer.seen == [("a", "answered", NOT_COORDINATOR), ("b", "answered", NOT_COORDINATOR)]
    assert replica.records() == []


async def test_waiting_ends_when_all_earlier_writes_have_an_outcome() -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    writer.wait("nothing")
    writer.write("a")
    writer.wait("b")
    writer.write("c")
    assert writer.seen == [("nothing", "answered", 0)]
    replica.high_watermark = 1
    replica.fail(NotEnoughReplicasAfterAppendError())
    assert writer.seen[1:4] == [("a", "decided", 0), ("a", "answered", 0), ("b", "answered", 0)]


async def test_waiting_ends_at_its_timeout() -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    writer.write("a")
    writer.wait("b", 0.001)
    await waiting.until(lambda: writer.seen)
    assert writer.seen == [("b", "answered", TIMED_OUT)]


async def test_a_write_that_starts_at_the_end_of_another_has_its_own_timeout() -> None:
    replica = Replica(replicates=False)
    writer = Writer(replica)
    again = iter(["later"])

    def append() -> AppendInfo:
        # Watchers are called during an append: the end of the first write begins another one.
        replica.replicate()
        return writer._append()

    def done(code: int) -> None:
        for name in again:
            writer.write(name, 60)

    writer.writes.write(writer._append, 60, lambda code, end_offset: writer._decided("first", code, end_offset), done)
    writer.writes.write(append, 0.001, lambda code, end_offset: None, lambda code: writer.seen.append(("b", "", code)))
    await waiting.until(lambda: len(writer.seen) == 2)
    assert writer.seen == [("first", "decided", 0), ("b", "", TIMED_OUT)]
