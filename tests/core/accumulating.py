"""A RecordAccumulator with its parts, driven by the test: time is an attribute, and the loop does not run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from random import Random
from types import FrameType
from typing import Any

from aioproducer.core.batching.accumulator import AccumulatorSettings, RecordAccumulator
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.buffer_pool import BufferPool
from aioproducer.core.batching.completion import Completion
from aioproducer.core.batching.partition_queue import PartitionChoice, PartitionQueue
from aioproducer.core.batching.producer_state import PartitionSequences, ProducerState
from aioproducer.core.outcomes.delivery import Delivery, OnOutcome
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition
from aioproducer.wire.record_batch import BatchRecord, Buffer, RecordBatch

NODE = 1


class HandLoop:
    """The part of a loop that futures and deliveries need; calls of ``call_soon`` wait for ``run``."""

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., Any], tuple[Any, ...], Context | None]] = []

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> None:
        self.soon.append((callback, args, context))

    def run(self) -> None:
        while self.soon:
            callback, args, context = self.soon.pop(0)
            if context is None:
                callback(*args)
            else:
                context.run(callback, *args)


class Bench:
    """An accumulator for tests: topics with one leader, an idempotent producer with an id, and a clock."""

    def __init__(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        memory: int = 1 << 20,
        idempotent: bool = True,
        producer_id: int = 7,
        max_in_flight: int = 5,
        retries: int = 2**31 - 1,
        choose_partition: PartitionChoice | None = None,
        on_outcome: OnOutcome | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.loop = HandLoop()
        self.now = 0.0
        self.wakes = 0
        self.pool = BufferPool(memory)
        self.state = ProducerState(idempotent=idempotent, max_in_flight=max_in_flight)
        if idempotent and producer_id >= 0:
            self.state.set_producer_id(producer_id, 0)
        settings.setdefault("retry_backoff", ExponentialBackoff(100, 1000, jitter=0))
        self.accumulator = RecordAccumulator(
            self.loop,
            self.pool,
            self.state,
            AccumulatorSettings(**settings),
            wake=self._wake,
            random=Random(seed),
            choose_partition=choose_partition,
            on_outcome=on_outcome,
        )
        self.completion = Completion(self.accumulator, self.state, retries=retries)
        for name, count in ({"t": 1} if topics is None else topics).items():
            self.accumulator.set_partition_count(name, count, self.now)
            for partition in range(count):
                self.accumulator.topics.set_leader(name, partition, NODE, self.now)

    def _wake(self) -> None:
        self.wakes += 1

    def queue(self, topic: str = "t", partition: int = 0) -> PartitionQueue:
        """Return the queue of a partition, as if a record had been sent to it."""
        topics = self.accumulator.topics
        return topics.queue(topics[topic], partition)

    def sequences(self, topic: str = "t", partition: int = 0) -> PartitionSequences:
        return self.state.sequences(TopicPartition(topic, partition))

    def send(
        self,
        value: Buffer | None = b"value",
        *,
        topic: str = "t",
        partition: int | None = 0,
        key: Buffer | None = None,
        headers: Sequence[tuple[str, Buffer | None]] = (),
        timestamp_ms: int = 1000,
    ) -> Delivery:
        """Send as ``Producer.send``: by the fast path if possible, otherwise by the slow path."""
        record = (topic, partition, key, value, headers, timestamp_ms)
        return self.accumulator.append(*record) or self.accumulator.enqueue(*record, self.now)

    def send_batch(self, count: int = 1, *, topic: str = "t", partition: int = 0) -> list[Delivery]:
        """Append records in a separate batch, which is then ready."""
        deliveries = [self.send(topic=topic, partition=partition) for _ in range(count)]
        self.accumulator.ready.end_lingering(self.now)
        queue = self.queue(topic, partition)
        if queue.open_batch is not None:
            self.accumulator._close_batch(queue, queue.open_batch, self.now, full=True)
        return deliveries

    def drain(self, node: int = NODE) -> list[ProducerBatch]:
        """Return the batches of one request, as the sender drains them."""
        self.accumulator.ready.process_deadlines(self.now)
        batches = self.accumulator.drain(node, self.now)
        for batch in batches:
            batch.attempts += 1
        return batches

    def drain_one(self, node: int = NODE) -> ProducerBatch:
        (batch,) = self.drain(node)
        return batch

    def send_and_drain(self, count: int = 1, *, partition: int = 0) -> ProducerBatch:
        """Return a batch of ``count`` records in flight; nothing else is sent."""
        self.send_batch(count, partition=partition)
        return self.drain_one()

    def ack(self, batch: ProducerBatch, base_offset: int = 0, log_append_time: int = -1) -> Any:
        return self.completion.acked(batch, base_offset, log_append_time, self.now)

    def refuse(self, batch: ProducerBatch, code: int, message: str | None = None, **more: Any) -> Any:
        return self.completion.refused(batch, code, self.now, message, **more)

    def cut(self, batch: ProducerBatch) -> Any:
        """End the connection before the response."""
        return self.completion.disconnected(batch, KafkaError("cut"), self.now)

    def later(self, seconds: float) -> None:
        """Let time pass, and handle what is due then."""
        self.now += seconds
        self.turn()

    def turn(self) -> None:
        """Run a sender pass without a network."""
        self.completion.expire(self.now)
        for pending in self.accumulator.blocked_records.expired_records(self.now):
            pending.fail(KafkaError("waited too long"))
        self.accumulator.ready.process_deadlines(self.now)
        self.accumulator.admit(self.now, 1000)
        self.accumulator.drain_waiters.resume(1000)
        for pending, error in self.accumulator.take_refused():
            pending.fail(error)

    def compress(self) -> list[ProducerBatch]:
        """Compress the waiting batches, and return them."""
        codec = self.accumulator.settings.codec
        batches = self.accumulator.compression.take_waiting()
        for batch in batches:
            self.accumulator.compressed(batch, codec.compress(batch.body), self.now)
        return batches

    def all_memory_is_back(self) -> bool:
        return self.pool.available_memory == self.pool.total_memory


def records_of(batch: ProducerBatch) -> list[BatchRecord]:
    """Return the records that a broker reads from the batch, after checking its checksum."""
    read = RecordBatch(b"".join(batch.buffers()))
    read.validate()
    return list(read.records())


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in records_of(batch)]


def count_operations(function: Callable[[], object]) -> int:
    """Return the number of lines of the core that ``function`` runs: a measure of work without a clock."""
    operations = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal operations
        if f"{os.sep}core{os.sep}" not in frame.f_code.co_filename:
            return None
        operations += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return operations
