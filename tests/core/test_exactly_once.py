"""Exactly once and in order with up to five batches in flight, under any faults of network, brokers and deadlines.

A state machine over the accumulator, the producer state and the completion, against a model of the brokers. Faults:
requests and responses are delayed; connections end before or after a write, and those of several brokers have different
speeds; leaders move, are noticed late, are lost and return; brokers return retriable and fatal errors, reject batches
as too large, and throttle; deadlines pass; deliveries are cancelled; everything is aborted.

One fault is excluded: a request of an ended connection may still be written later, but not after a newer one of the
same partition. No idempotent producer survives that if an epoch ends in between.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioproducer.compression import codec
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import BufferExhaustedError, KafkaError
from aioproducer.record import TopicPartition
from tests.core.accumulating import Bench
from tests.core.model_broker import (
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    REQUEST_TIMED_OUT,
    Answer,
    ModelPartition,
    ProducerEntry,
)

NODES = (1, 2, 3)
PARTITIONS = (0, 1)
DELIVERY_TIMEOUT = 30.0
NOT_ENOUGH_REPLICAS = 19
TOPIC_AUTHORIZATION_FAILED = 29
INVALID_TIMESTAMP = 32
INVALID_RECORD = 87
CODES = st.sampled_from(
    [
        0,
        NOT_ENOUGH_REPLICAS,
        REQUEST_TIMED_OUT,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        TOPIC_AUTHORIZATION_FAILED,
        INVALID_TIMESTAMP,
        INVALID_RECORD,
    ]
)
SEQUENCES_END = 2**31
LAST_EPOCH = 32767


@dataclass
class Sent:
    """A batch in a request, and the bytes that the broker will read."""

    batch: ProducerBatch
    partition: int
    # Producer id and epoch at the time of sending.
    epoch: tuple[int, int]
    # None while the transport still reads the batch's memory.
    data: bytes | None = None
    buffers: list[bytes | memoryview] = field(default_factory=list)

    def arrive(self) -> bytes:
        return b"".join(self.buffers) if self.data is None else self.data


@dataclass
class SentRequest:
    sent: list[Sent]
    reading: bool
    answers: list[Answer] | None = None


@dataclass
class Tracked:
    """The test's state of a record."""

    number: int
    value: bytes
    delivery: Delivery


class ExactlyOnce(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sent_records: list[Tracked] = []

    @initialize(
        compressed=st.booleans(),
        late_sequences=st.booleans(),
        late_epoch=st.booleans(),
        has_id=st.booleans(),
        memory=st.sampled_from([4096, 1 << 18, 1 << 18]),
        max_batch_size=st.sampled_from([150, 10_000, 10_000]),
        retries=st.sampled_from([0, 2, 2**31 - 1, 2**31 - 1]),
    )
    def start(
        self,
        compressed: bool,
        late_sequences: bool,
        late_epoch: bool,
        has_id: bool,
        memory: int,
        max_batch_size: int,
        retries: int,
    ) -> None:
        self.bench = Bench(
            topics={"t": len(PARTITIONS)},
            memory=memory,
            producer_id=-1,
            retries=retries,
            batch_size=300,
            linger=0.01,
            delivery_timeout=DELIVERY_TIMEOUT,
            max_block=10.0,
            max_request_size=2000,
            codec=codec("snappy") if compressed else None,
        )
        self.accumulator = self.bench.accumulator
        self.state = self.bench.state
        self.partitions = {index: ModelPartition(NODES[0], max_batch_size) for index in PARTITIONS}
        self.next_producer_id = 100
        self.first_epoch = LAST_EPOCH - 2 if late_epoch else 0
        if has_id:
            self.grant_producer_id()
        if late_sequences and has_id:
            for index in PARTITIONS:
                sequences = self.bench.sequences("t", index)
                sequences.producer_id = self.state.producer_id
                sequences.producer_epoch = self.state.producer_epoch
                sequences.next_sequence = SEQUENCES_END - 5
                sequences.last_acked = SEQUENCES_END - 6
                entry = ProducerEntry(sequences.producer_epoch)
                entry.batches.append((SEQUENCES_END - 6, SEQUENCES_END - 6, 0))
                self.partitions[index].producers[sequences.producer_id] = entry
        self.connections: dict[int, list[SentRequest]] = {node: [] for node in NODES}
        self.throttled_until = dict.fromkeys(NODES, 0.0)
        # Requests of ended connections that the broker may still handle.
        self.afterlife: list[tuple[int, Sent]] = []
        self.compressing: list[ProducerBatch] = []
        # (producer id, epoch, partition) -> batch and sequences, of all batches that were sent
        self.attempts: dict[tuple[int, int, int], dict[int, ProducerBatch]] = {}

    # The application

    @rule(
        partition=st.sampled_from([None, *PARTITIONS, *PARTITIONS]),
        size=st.sampled_from([1, 1, 20, 60, 400]),
        count=st.integers(1, 4),
    )
    def send(self, partition: int | None, size: int, count: int) -> None:
        for _ in range(count):
            number = len(self.sent_records)
            value = b"%d:" % number + b"x" * size
            try:
                delivery = self.bench.send(value, partition=partition)
            except BufferExhaustedError:
                return
            self.sent_records.append(Tracked(number, value, delivery))

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(2, 5))
    def send_one_by_one(self, partition: int, count: int) -> None:
        """Send each record in a separate request, one after the other."""
        for _ in range(count):
            self.send(partition, 1, 1)
            self.flush()
            self.request(self.partitions[partition].leader, False)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        undone = [record for record in self.sent_records[-20:] if not record.delivery.done()]
        if undone:
            assert data.draw(st.sampled_from(undone)).delivery.cancel()

    @rule()
    def flush(self) -> None:
        self.accumulator.ready.end_lingering(self.bench.now)

    @rule()
    def give_up(self) -> None:
        """Abort all batches, as close does after its timeout; the producer continues here."""
        self.completion_fails_everything()

    def completion_fails_everything(self) -> None:
        error = KafkaError("given up")
        self.bench.completion.fail_all(error, self.bench.now)
        for pending in list(self.accumulator.blocked_records.pending.records):
            self.accumulator.blocked_records.remove(pending)
            pending.fail(error)

    # Time and the producer's passes

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.15, 1.2, 1.2, 9.0, 16.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.later(seconds)

    @rule()
    def turn(self) -> None:
        self.bench.turn()

    def _to_compress(self) -> Collection[ProducerBatch]:
        compression = self.accumulator.compression
        return () if compression is None else compression.waiting

    def _begin_compression(self) -> None:
        if self._to_compress():
            self.compressing += self.accumulator.compression.take_waiting()

    @precondition(lambda self: self._to_compress() or self.compressing)
    @rule(data=st.data())
    def compress(self, data: st.DataObject) -> None:
        self._begin_compression()
        batch = self.compressing.pop(data.draw(st.integers(0, len(self.compressing) - 1)))
        self._compress(batch)

    def _compress(self, batch: ProducerBatch) -> None:
        used = self.accumulator.settings.codec
        self.accumulator.compressed(batch, used.compress(batch.body), self.bench.now)

    @precondition(lambda self: self.state.needs_producer_id())
    @rule()
    def grant_producer_id(self) -> None:
        self.state.set_producer_id(self.next_producer_id, self.first_epoch)
        self.next_producer_id += 1
        self.accumulator.ready.unblock_held(self.bench.now)

    # The network

    @rule(node=st.sampled_from(NODES), reading=st.booleans())
    def request(self, node: int, reading: bool) -> None:
        """Send all ready batches; with ``reading`` the transport keeps reading their memory."""
        if self.throttled_until[node] > self.bench.now or len(self.connections[node]) >= 5:
            return
        batches = self.bench.drain(node)
        if not batches:
            return
        assert len({batch.topic_partition for batch in batches}) == len(batches)
        assert len(batches) == 1 or sum(batch.size() for batch in batches) <= 2000
        sent = []
        for batch in batches:
            self._check_attempt(batch)
            each = Sent(batch, batch.topic_partition.partition, (batch.producer_id, batch.producer_epoch))
            each.buffers = batch.buffers()
            if reading:
                batch.readers += 1
            else:
                each.data = b"".join(each.buffers)
            sent.append(each)
        self.connections[node].append(SentRequest(sent, reading))

    def _check_attempt(self, batch: ProducerBatch) -> None:
        """Check that sequences of one producer id and epoch neither overlap nor change."""
        partition = batch.topic_partition.partition
        assert 0 <= batch.producer_epoch <= LAST_EPOCH
        assert batch.closed
        # A partition never has two epochs in flight.
        on_wire = {
            sent.epoch
            for requests in self.connections.values()
            for request in requests
            for sent in request.sent
            if sent.partition == partition
        }
        assert on_wire <= {(batch.producer_id, batch.producer_epoch)}
        taken = self.attempts.setdefault((batch.producer_id, batch.producer_epoch, partition), {})
        for index in range(batch.record_count):
            sequence = (batch.base_sequence + index) % SEQUENCES_END
            other = taken.get(sequence)
            # The parts of a split batch have its sequences.
            assert other is None or other is batch or other.children is not None
            taken[sequence] = batch

    def _answered_by(self, request: SentRequest, node: int) -> None:
        answers = []
        for sent in request.sent:
            data = sent.arrive()
            self.afterlife = [each for each in self.afterlife if each[1].partition != sent.partition]
            answers.append(self.partitions[sent.partition].produce(node, data))
        request.answers = answers
        self._release(request)

    def _release(self, request: SentRequest) -> None:
        if request.reading:
            request.reading = False
            for sent in request.sent:
                sent.data = b"".join(sent.buffers)
                sent.batch.readers -= 1
                self.accumulator.release(sent.batch)

    @rule(node=st.sampled_from(NODES))
    def arrive(self, node: int) -> None:
        for request in self.connections[node]:
            if request.answers is None:
                self._answered_by(request, node)
                return

    @rule(node=st.sampled_from(NODES))
    def respond(self, node: int) -> None:
        connection = self.connections[node]
        if connection and connection[0].answers is not None:
            request = connection.pop(0)
            for sent, answer in zip(request.sent, request.answers, strict=True):
                self._handle(sent.batch, answer)

    def _handle(self, batch: ProducerBatch, answer: Answer) -> None:
        if answer.code == 0:
            self.bench.ack(batch, answer.base_offset)
        elif answer.code == INVALID_RECORD:
            self.bench.refuse(batch, answer.code, record_messages={0: "bad"})
        else:
            self.bench.refuse(batch, answer.code)

    @rule(node=st.sampled_from(NODES), requests=st.integers(0, 2), reading=st.booleans())
    def answer_all(self, node: int, requests: int, reading: bool) -> None:
        """Deliver and answer requests in flight; more such steps let the other rules proceed."""
        for _ in range(requests):
            self.request(node, reading)
        for _ in list(self.connections[node]):
            self.arrive(node)
        for _ in list(self.connections[node]):
            self.respond(node)

    @rule(node=st.sampled_from(NODES), afterlife=st.booleans())
    def connection_ends(self, node: int, afterlife: bool) -> None:
        requests, self.connections[node] = self.connections[node], []
        for request in requests:
            self._release(request)
            if afterlife and request.answers is None:
                self.afterlife += [(node, sent) for sent in request.sent]
        for request in requests:
            for sent in request.sent:
                self.bench.cut(sent.batch)

    @precondition(lambda self: self.afterlife)
    @rule()
    def written_after_the_end(self) -> None:
        node, sent = self.afterlife.pop(0)
        self.partitions[sent.partition].produce(node, sent.arrive())

    @rule(node=st.sampled_from(NODES), seconds=st.sampled_from([0.1, 2.0]))
    def throttle(self, node: int, seconds: float) -> None:
        self.throttled_until[node] = self.bench.now + seconds

    # The brokers

    @rule(partition=st.sampled_from(PARTITIONS), codes=st.lists(CODES, min_size=1, max_size=4))
    def inject(self, partition: int, codes: list[int]) -> None:
        self.partitions[partition].injected.extend(codes)

    @precondition(lambda self: self.state.producer_id >= 0)
    @rule(
        partition=st.sampled_from(PARTITIONS),
        codes=st.lists(CODES, min_size=2, max_size=5),
        answered=st.integers(0, 5),
    )
    def trouble_meets_a_full_pipeline(self, partition: int, codes: list[int], answered: int) -> None:
        """Finish everything; then send several batches of a partition, with an error for each, and some responses."""
        self.learn_leader(partition)
        self.partitions[partition].injected.clear()
        node = self.partitions[partition].leader
        self.send(partition, 1, 1)
        for _ in range(3):
            self.bench.later(1.2)
            self.answer_all(node, 2, False)
        self.send_one_by_one(partition, len(codes))
        self.inject(partition, codes)
        for _ in list(self.connections[node]):
            self.arrive(node)
        for _ in range(answered):
            self.respond(node)

    @rule(partition=st.sampled_from(PARTITIONS), node=st.sampled_from(NODES), at_once=st.booleans())
    def move_leader(self, partition: int, node: int, at_once: bool) -> None:
        self.partitions[partition].leader = node
        if at_once:
            self.learn_leader(partition)

    @rule(partition=st.sampled_from(PARTITIONS))
    def learn_leader(self, partition: int) -> None:
        self.accumulator.topics.set_leader("t", partition, self.partitions[partition].leader, self.bench.now)

    @rule(partition=st.sampled_from(PARTITIONS))
    def lose_leader(self, partition: int) -> None:
        self.accumulator.topics.set_leader("t", partition, -1, self.bench.now)

    @rule()
    def forget_topic(self) -> None:
        if self.accumulator.forget_topic("t"):
            self.accumulator.set_partition_count("t", len(PARTITIONS), self.bench.now)
            for partition in PARTITIONS:
                self.learn_leader(partition)

    @rule()
    def topic_is_recreated_with_fewer_partitions_for_a_moment(self) -> None:
        self.accumulator.set_partition_count("t", 1, self.bench.now)
        self.accumulator.set_partition_count("t", len(PARTITIONS), self.bench.now)

    # Invariants

    @invariant()
    def memory_is_counted(self) -> None:
        batches = {batch for each in self.accumulator.incomplete for batch in _with_parts(each)}
        batches |= {sent.batch for requests in self.connections.values() for each in requests for sent in each.sent}
        batches |= {*self.compressing, *self._to_compress()}
        held = sum(sum(slab.size for slab in batch.slabs) + batch.charged_size for batch in batches)
        assert self.bench.pool.available_memory + held == self.bench.pool.total_memory
        assert self.accumulator.blocked_records.pending.size == sum(
            each.charged for each in self.accumulator.blocked_records.pending.records
        )

    @invariant()
    def sequences_are_in_order(self) -> None:
        for index in PARTITIONS:
            queue = self.bench.queue("t", index)
            sequences = queue.sequences
            in_flight = sequences.in_flight
            epochs = {(batch.producer_id, batch.producer_epoch) for batch in in_flight}
            assert epochs <= {(sequences.producer_id, sequences.producer_epoch)}
            expected = None
            for batch in in_flight:
                distance = 0 if expected is None else (batch.base_sequence - expected) % SEQUENCES_END
                assert distance < 10_000
                expected = (batch.base_sequence + batch.record_count) % SEQUENCES_END
            if expected is not None:
                assert (sequences.next_sequence - expected) % SEQUENCES_END < 10_000
            # First the batches with a sequence, in sequence order, then the others in creation order.
            waiting = list(queue.batches)
            with_sequence = [batch for batch in waiting if batch.base_sequence >= 0]
            assert waiting[: len(with_sequence)] == with_sequence
            assert with_sequence == [batch for batch in in_flight if not batch.on_wire]
            others = [batch.order for batch in waiting[len(with_sequence) :]]
            assert others == sorted(others)
            assert queue.on_wire == sum(
                sent.batch.queue is queue
                for requests in self.connections.values()
                for request in requests
                for sent in request.sent
            )

    @invariant()
    def nothing_is_twice_and_all_is_in_order(self) -> None:
        for partition in self.partitions.values():
            numbers = [int(value.split(b":")[0]) for value in partition.log]
            assert numbers == sorted(set(numbers))

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self._heal()
        logs = {index: partition.log for index, partition in self.partitions.items()}
        everything = [value for log in logs.values() for value in log]
        assert len(everything) == len(set(everything))
        self.nothing_is_twice_and_all_is_in_order()
        for record in self.sent_records:
            delivery = record.delivery
            assert delivery.done()
            if delivery.cancelled():
                assert not (delivery.withdrawn and record.value in everything)
            elif delivery.exception() is None:
                metadata = delivery.result()
                assert logs[metadata.partition][metadata.offset] == record.value
            elif not delivery.exception().may_have_been_written:
                assert record.value not in everything
        assert self.bench.all_memory_is_back()
        assert not self.accumulator.has_undelivered()
        assert not self.accumulator.blocked_records.memory_waiters
        assert not self.accumulator.topics["t"].blocked_count
        assert self.accumulator.topics["t"].is_idle()
        self._goes_on()

    def _heal(self) -> None:
        """Without further faults, everything must end long before its deadline."""
        for node in NODES:
            self.connection_ends(node, afterlife=False)
        self.afterlife.clear()
        for index, partition in self.partitions.items():
            partition.injected.clear()
            self.learn_leader(index)
        end = self.bench.now + DELIVERY_TIMEOUT / 2
        while self.accumulator.has_undelivered():
            assert self.bench.now < end, "something is stuck"
            self._work()
        self._work()

    def _work(self) -> None:
        if self.state.needs_producer_id():
            self.grant_producer_id()
        self._begin_compression()
        while self.compressing:
            self._compress(self.compressing.pop())
        self.bench.turn()
        for node in NODES:
            self.throttled_until[node] = 0.0
            self.request(node, reading=True)
            while self.connections[node]:
                self.arrive(node)
                self.respond(node)
        self.bench.later(0.05)

    def _goes_on(self) -> None:
        """The producer still works: a record for each partition is acknowledged."""
        deliveries = []
        for partition in PARTITIONS:
            number = len(self.sent_records)
            delivery = self.bench.send(b"%d:" % number, partition=partition)
            self.sent_records.append(Tracked(number, b"%d:" % number, delivery))
            deliveries.append(delivery)
        for _ in range(10):
            self._work()
        for delivery in deliveries:
            where = delivery.result()
            assert where.topic_partition == TopicPartition("t", where.partition)
        self.nothing_is_twice_and_all_is_in_order()


def _with_parts(batch: ProducerBatch) -> list[ProducerBatch]:
    return [batch, *(part for _, child in batch.children or () for part in _with_parts(child))]


ExactlyOnce.TestCase.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
TestExactlyOnce = ExactlyOnce.TestCase
