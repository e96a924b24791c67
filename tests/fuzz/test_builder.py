"""Batches contain the appended records, encoded as the format specifies, in both builds.

``encode_record``, run from its source, checks the bytes. Readers check the batch: this project's, aiokafka's and
kafka-python's.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import Producer
from aioproducer._client.arrow import record_columns
from aioproducer._client.hot_path import RecordSender
from aioproducer._client.validation import check
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.columns.appending import append_rows
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import BufferExhaustedError, KafkaError
from aioproducer.wire.record_batch import CREATE_TIME, BatchRecord, Buffer
from tests.core.accumulating import Bench, records_of
from tests.fuzz import shapes
from tests.fuzz.shapes import Sent
from tests.fuzz.sources import uncompiled

with warnings.catch_warnings():
    # kafka-python reads its schemas by a deprecated function of the standard library.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

PARTITIONS = 2

batch_sizes = st.sampled_from([0, 1, 100, 1024, 1500, 16384, 131072]) | st.integers(0, 5000)


def _bench(batch_size: int, memory: int, *, arena: bool) -> Bench:
    """An accumulator alone. Without an arena every slab is a separate object of the requested size.

    AddressSanitizer detects an overrun of such objects, but none inside the arena, which is one mapping.
    """
    bench = Bench(topics={"t": PARTITIONS}, batch_size=batch_size, memory=memory, linger=1000)
    if not arena:
        for free in bench.pool._free:
            free.clear()
    return bench


class Log:
    """Drains ready batches, as for brokers, and compares them with the sent records of each partition."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.sent: list[deque[Sent]] = [deque() for _ in range(PARTITIONS)]
        self.length = [0] * PARTITIONS
        self.deliveries: list[tuple[Delivery, int, Sent]] = []

    def expect(self, partition: int, record: Sent, delivery: Delivery | None = None) -> None:
        self.sent[partition].append(record)
        if delivery is not None:
            self.deliveries.append((delivery, partition, record))

    def serve(self) -> None:
        """Drain until no record waits in a batch or a queue."""
        self.bench.accumulator.ready.end_lingering(self.bench.now)
        while batches := self.bench.drain():
            for batch in batches:
                partition = batch.topic_partition.partition
                records = [self.sent[partition].popleft() for _ in range(batch.record_count)]
                base_offset = self.length[partition]
                self._check(batch, records)
                self.length[partition] += len(records)
                self.bench.ack(batch, base_offset)
            self.bench.turn()
            self.bench.accumulator.ready.end_lingering(self.bench.now)

    def _check(self, batch: ProducerBatch, records: list[Sent]) -> None:
        encode_record = uncompiled("aioproducer.wire.record").encode_record
        assert batch.base_timestamp == records[0].timestamp_ms
        assert batch.max_timestamp == max(record.timestamp_ms for record in records)
        assert batch.body is not None
        assert b"".join(batch.body) == b"".join(
            encode_record(index, sent.timestamp_ms - batch.base_timestamp, sent.key, sent.value, sent.headers)
            for index, sent in enumerate(records)
        )
        assert batch.body_size == batch.uncompressed_size() - 61 == sum(map(len, map(memoryview, batch.body)))
        expected = [
            BatchRecord(index, sent.timestamp_ms, CREATE_TIME, sent.key, sent.value, sent.headers)
            for index, sent in enumerate(records)
        ]
        assert records_of(batch) == expected
        encoded = b"".join(batch.buffers())
        for reader in (AiokafkaRecords, KafkaPythonRecords):
            theirs = reader(encoded).next_batch()
            assert theirs.validate_crc()
            read = [
                BatchRecord(each.offset, each.timestamp, CREATE_TIME, each.key, each.value, tuple(each.headers))
                for each in theirs
            ]
            assert read == expected, reader

    def check_all(self) -> None:
        self.serve()
        assert not any(self.sent)
        offsets = [0] * PARTITIONS
        for delivery, partition, record in self.deliveries:
            metadata = delivery.result()
            assert (metadata.partition, metadata.offset) == (partition, offsets[partition])
            assert metadata.timestamp_ms == record.timestamp_ms
            offsets[partition] += 1
        assert self.bench.all_memory_is_back()


def _spoil(buffer: Buffer | None) -> None:
    """Overwrite the caller's memory, which ``send`` has copied."""
    if buffer is not None:
        view = memoryview(buffer)
        if not view.readonly:
            view = view.cast("B")
            view[:] = bytes(view.nbytes)


@given(st.data(), batch_sizes, st.sampled_from([140_000, 1 << 20]), st.booleans())
def test_batches_contain_the_appended_records(data: st.DataObject, batch_size: int, memory: int, arena: bool) -> None:
    bench = _bench(batch_size, memory, arena=arena)
    log = Log(bench)
    for _ in range(data.draw(st.integers(1, 25), "records")):
        partition = data.draw(st.integers(0, PARTITIONS - 1), "partition")
        record = data.draw(shapes.records, "record")
        batch = bench.queue(partition=partition).open_batch
        if batch is not None and record.value is not None and data.draw(st.booleans(), "fitted"):
            # Up to the end of the slab, or a few bytes more or less.
            overhead = len(uncompiled("aioproducer.wire.record").encode_record(0, 0, record.key, b"", record.headers))
            room = batch.room_end - batch.position - overhead - data.draw(st.integers(-4, 24), "left")
            record = record._replace(value=bytes(max(room, 0)))
        shape = data.draw(shapes.shapes, "shape")
        key = None if record.key is None else shape(record.key)
        value = None if record.value is None else shape(record.value)
        headers = shapes.shaped_headers(record.headers, shape)
        for _ in range(2):
            try:
                delivery = bench.send(
                    value, partition=partition, key=key, headers=headers, timestamp_ms=record.timestamp_ms
                )
            except BufferExhaustedError:
                log.serve()
                continue
            log.expect(partition, record, delivery)
            break
        for buffer in (key, value, *(header for _, header in headers)):
            _spoil(buffer)
        if data.draw(st.integers(0, 9), "serve") == 0:
            log.serve()
    log.check_all()


Append = Callable[[int, list[ProducerBatch]], int]


def _append_columns(bench: Bench, log: Log, keys: Any, values: Any, sent: list[Sent], append: Append) -> None:
    """Append columns as ``send_many`` does, and records that cannot use the fast path one by one."""
    place = 0
    touched: list[ProducerBatch] = []
    while True:
        behind = append(place, touched)
        for record in sent[place:behind]:
            log.expect(1, record)
        for batch in touched:
            assert 0 <= batch.column_start < batch.record_count
            batch.column_start = -1
        touched.clear()
        if behind == len(sent):
            return
        key = None if keys is None else keys[behind]
        bench.send(values[behind], partition=1, key=key, timestamp_ms=sent[behind].timestamp_ms)
        log.expect(1, sent[behind])
        place = behind + 1


def _columns(data: st.DataObject, records: st.SearchStrategy[Sent], *, keyed: bool) -> list[Sent]:
    drawn = data.draw(st.lists(records, min_size=1, max_size=30), "records")
    return [Sent(each.key if keyed else None, each.value, (), drawn[0].timestamp_ms) for each in drawn]


@given(st.data(), batch_sizes, st.booleans(), st.booleans())
def test_columns_are_appended_like_their_records_one_by_one(
    data: st.DataObject, batch_size: int, keyed: bool, arena: bool
) -> None:
    bench = _bench(batch_size, 1 << 23, arena=arena)
    log = Log(bench)
    sent = _columns(data, shapes.records, keyed=keyed)
    shape = data.draw(shapes.shapes, "shape")
    keys = [None if each.key is None else shape(each.key) for each in sent] if keyed else None
    values = [None if each.value is None else shape(each.value) for each in sent]

    def append(place: int, touched: list[ProducerBatch]) -> int:
        now = sent[0].timestamp_ms
        return append_rows(bench.accumulator, "t", 1, keys, values, place, now, bench.now, touched)

    _append_columns(bench, log, keys, values, sent, append)
    log.check_all()


def _arrow(data: st.DataObject, rows: list[bytes | None]) -> Any:
    """Return an Arrow column of the rows: of one of the types of bytes, sliced from a longer one, in chunks."""
    before, after = data.draw(st.lists(st.none() | st.binary(max_size=5), max_size=9), "before"), [None, b"after"]
    array = pyarrow.array([*before, *rows, *after], pyarrow.binary()).slice(len(before), len(rows))
    kind = data.draw(st.sampled_from(["binary", "large", "dictionary", "fixed"]), "kind")
    if kind == "large":
        array = array.cast(pyarrow.large_binary())
    elif kind == "dictionary":
        array = array.dictionary_encode()
        index = data.draw(st.sampled_from([pyarrow.int8(), pyarrow.uint16(), pyarrow.int64()]), "index")
        array = array.cast(pyarrow.dictionary(index, pyarrow.binary()))
    elif kind == "fixed" and len({len(row) for row in rows if row is not None}) == 1:
        width = next(len(row) for row in rows if row is not None)
        padding = [None, bytes(width)]
        whole = pyarrow.array([*padding, *rows, *padding], pyarrow.binary(width))
        array = whole.slice(len(padding), len(rows))
    array.validate(full=True)
    cut = data.draw(st.integers(0, len(rows)), "cut")
    return pyarrow.chunked_array([array.slice(0, cut), array.slice(cut)])


@pytest.mark.skipif(not Producer.compiled, reason="only compiled modules read Arrow's memory")
@given(st.data(), batch_sizes, st.booleans(), st.booleans(), st.booleans())
def test_arrow_columns_are_appended_like_their_records_one_by_one(
    data: st.DataObject, batch_size: int, keyed: bool, equal: bool, arena: bool
) -> None:
    bench = _bench(batch_size, 1 << 23, arena=arena)
    log = Log(bench)
    same = data.draw(shapes.contents, "same")
    records = shapes.records.map(lambda each: each._replace(value=None if each.value is None else same))
    sent = _columns(data, records if equal else shapes.records, keyed=keyed)
    columns = _arrow(data, [each.value for each in sent]), _arrow(data, [each.key for each in sent]) if keyed else None
    read = 0
    for values, keys, *_ in record_columns(*columns):

        def append(place: int, touched: list[ProducerBatch], values: Any = values, keys: Any = keys) -> int:
            now = sent[0].timestamp_ms
            return append_rows(bench.accumulator, "t", 1, keys, values, place, now, bench.now, touched)

        _append_columns(bench, log, keys, values, sent[read : read + len(values)], append)
        read += len(values)
    assert read == len(sent)
    log.check_all()


class Accepting:
    """A slow path that enqueues every record."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def enqueue(
        self, topic: str, partition: Any, key: Any, value: Any, headers: Any, timestamp_ms: int, now: float
    ) -> Delivery:
        check(topic, partition, key, value, headers, timestamp_ms)
        return self._bench.accumulator.enqueue(topic, partition, key, value, headers, timestamp_ms, now)


class BenchSender(RecordSender):
    """The hot path with an accumulator alone."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._accumulator = bench.accumulator
        self._owner_thread = self._sending_thread = get_ident()
        self._plain = True
        self._intercepts = False
        self._owner_loop: Any = SimpleNamespace(time=lambda: bench.now)
        self._record_topic_use = lambda topic, now: None
        self._slow_path: Any = Accepting(bench)


class Hostile:
    """Raises an exception from every method."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)

    def _raise(self, *arguments: object) -> Any:
        raise ValueError("hostile")

    __len__ = __index__ = __int__ = __bool__ = __iter__ = __getitem__ = __eq__ = __buffer__ = _raise
    __hash__ = object.__hash__


class Liar(list[Any]):
    """A list that reports a greater length than it has."""

    def __len__(self) -> int:
        return list.__len__(self) + 1000


def _released() -> memoryview:
    view = memoryview(b"released")
    view.release()
    return view


# Shortens a large value that a failing case would print.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

anything: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["t", "unknown", "\udc00", ""]),
    shapes.contents,
    st.builds(lambda data, shape: shape(data), shapes.contents, shapes.shapes),
    st.builds(Hostile),
    st.builds(_released),
    st.sampled_from([memoryview(b"abcdef")[::2], memoryview(b"abcdef")[::-1], object(), type, {}, set(), iter(())]),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3) | st.integers()), max_size=2),
    st.builds(Liar, st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)),
    st.lists(st.integers() | st.text(max_size=2) | st.tuples(st.text(max_size=2)), max_size=2).map(tuple),
)
NAMES = ("topic", "value", "key", "partition", "timestamp_ms", "headers")


@settings(max_examples=300)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), anything, max_size=3), min_size=1, max_size=5))
def test_wrong_arguments_are_rejected_and_leave_batches_unchanged(calls: list[dict[str, Any]]) -> None:
    bench = Bench(linger=1000)
    sender = BenchSender(bench)
    values: list[bytes | None] = []
    for number, wrong in enumerate([{}, *calls, {}]):
        right: dict[str, Any] = {"topic": "t", "value": b"right %d" % number, "partition": 0}
        arguments = right | wrong
        try:
            delivery = sender.send(**arguments)
        except (TypeError, ValueError):
            assert wrong
        except KafkaError:
            assert wrong
        else:
            if isinstance(delivery._group, ProducerBatch):
                value = arguments["value"]
                values.append(None if value is None else memoryview(value).tobytes())
            else:
                # The topic or partition is missing: cancel, so that later records continue.
                assert delivery.cancel()
                assert delivery.withdrawn
    bench.accumulator.ready.end_lingering(bench.now)
    read = []
    while batches := bench.drain():
        for batch in batches:
            read += [record.value for record in records_of(batch)]
            bench.ack(batch)
    assert read[0] == values[0]
    assert read[-1] == values[-1]
    assert read == values
