"""Produce: accepted and refused batches of producers that are not idempotent."""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping, Sequence

from aioproducer.protocol.messages import MetadataRequest, ProduceRequest
from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData
from aioproducer.wire.record_batch import ATTRIBUTES_OFFSET, BATCH_HEADER_SIZE, SimpleRecord, encode_batch
from tests.interop.differential.batches import TIMESTAMP, batch, old_message, patched
from tests.interop.differential.scenario import (
    Run,
    Topic,
    fetch,
    partition_data,
    produce,
    scenario,
    versions,
)
from tests.interop.differential.scenarios.groups import coordinator

_HOUR_MS = 3_600_000

_LAST_OFFSET_DELTA = 23
_BASE_TIMESTAMP = 27
_MAX_TIMESTAMP = 35
_PRODUCER_ID = 43
_PRODUCER_EPOCH = 51
_BASE_SEQUENCE = 53
_RECORD_COUNT = 57


async def _log(run: Run, label: str, topic: Topic, partition: int = 0, version: int = 18) -> None:
    """Record the contents of the partition."""
    answer = await run.quietly(fetch(topic, partition=partition), version)
    run.observe(label, partition_data(answer), version)


@scenario()
async def produce_in_every_version(run: Run) -> None:
    topic = await run.create()
    unknown = Topic(run.name("unknown"), bytes(15) + b"\x07")
    for version in versions(ProduceRequest):
        for acks in (1, -1, 2, -2, 7, 32767):
            await run.ask(f"version {version} acks {acks}", produce(topic, batch(2), acks=acks), version)
        await run.ask(f"version {version} unknown topic", produce(unknown, batch()), version)
        await run.ask(f"version {version} unknown partition", produce(topic, batch(), partition=1), version)
        await run.ask(f"version {version} negative partition", produce(topic, batch(), partition=-1), version)
        await run.ask(f"version {version} empty records", produce(topic, b""), version)
        await run.ask(f"version {version} no topics", ProduceRequest(acks=1, timeout_ms=1000), version)
        await run.ask(f"version {version} bad checksum", produce(topic, batch()[:-1] + b"\x01"), version)
    await _log(run, "log", topic)


@scenario()
async def produce_topic_names_and_ids(run: Run) -> None:
    topic = await run.create()
    other = await run.create("other")
    await run.delete(other)
    await run.ask("deleted id", produce(other, batch()), 13)
    await run.ask("zero id", produce(Topic("", bytes(16)), batch()), 13)
    for name in ("", "a b", "..", "a" * 250):
        await run.ask(f"name {name[:8]!r}", produce(Topic(name, b""), batch()), 12)
    await run.ask("not created on demand", produce(Topic(run.name("new"), b""), batch()), 12)
    await coordinator(run)
    await run.ask("internal", produce(Topic("__consumer_offsets", b""), batch()), 12)
    await run.ask("internal too", produce(Topic("__transaction_state", b""), batch()), 12)

    def many(*found: tuple[Topic, int, bytes]) -> ProduceRequest:
        return ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=into.name,
                    topic_id=into.id,
                    partition_data=[PartitionProduceData(index=partition, records=records)],
                )
                for into, partition, records in found
            ],
        )

    unknown = Topic(run.name("unknown"), bytes(15) + b"\x07")
    for version in (9, 13):
        mixed = many((topic, 0, batch()), (unknown, 0, batch()), (unknown, 3, batch()))
        await run.ask(f"version {version} good and bad", mixed, version)
    twice = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic.name,
                topic_id=topic.id,
                partition_data=[PartitionProduceData(index=0, records=batch([value])) for value in (b"a", b"b")],
            )
        ],
    )
    await run.ask("a partition twice", twice, 13)
    await _log(run, "log", topic)


@scenario()
async def produce_several_batches(run: Run) -> None:
    good, bad = batch([b"good"]), batch(2) + batch(2)
    cases: dict[str, tuple[tuple[int, bytes], ...]] = {
        "bad, then good": ((0, bad), (0, good)),
        "good, then bad": ((0, good), (0, bad)),
        "impossible, then good": ((0, patched(good, 8, ">i", 3)), (0, good)),
        "impossible behind a good one": ((0, good + patched(good, 8, ">i", 3)), (1, good)),
        "impossible at the end": ((0, good + patched(good, 8, ">i", 3)[:13]), (1, good)),
    }
    for version in (9, 13):
        topic = await run.create(str(version), partitions=2 * len(cases))
        for number, (label, parts) in enumerate(cases.items()):
            data = [PartitionProduceData(index=2 * number + partition, records=records) for partition, records in parts]
            request = ProduceRequest(
                acks=-1,
                timeout_ms=10_000,
                topic_data=[TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=data)],
            )
            await run.ask(f"version {version} {label}", request, version)
            await _log(run, f"version {version} {label}, in the log", topic, 2 * number)


@scenario()
async def produce_without_answer(run: Run) -> None:
    topic = await run.create()
    unknown = Topic(run.name("unknown"), bytes(15) + b"\x07")
    for label, request in (
        ("good", produce(topic, batch(), acks=0)),
        ("unknown topic", produce(unknown, batch(), acks=0)),
        ("unknown partition", produce(topic, batch(), partition=3, acks=0)),
        ("bad checksum", produce(topic, batch()[:-1] + b"\x01", acks=0)),
        ("nothing", ProduceRequest(acks=0, timeout_ms=1000)),
    ):
        for version in (3, 9, 13):
            connection = await run.nodes.connect()
            await connection.send(request, version)
            after = await connection.ask(MetadataRequest(topics=[]), 12)
            run.observe(f"version {version} {label}", "answered" if hasattr(after, "topics") else after)
    await _log(run, "log", topic)


@scenario()
async def produce_null_records(run: Run) -> None:
    topic = await run.create()
    for acks in (-1, 0):
        connection = await run.nodes.connect()
        await run.ask(f"acks {acks}", produce(topic, None, acks=acks), 9, connection=connection, timeout=1)
    await _log(run, "log", topic)


@scenario()
async def produce_codecs(run: Run) -> None:
    topic = await run.create()
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        for version in (3, 6, 7, 13):
            request = produce(topic, batch(3, compression_type=codec))
            await run.ask(f"{codec} version {version}", request, version)
    for number in (5, 6, 7):
        await run.ask(f"codec {number}", produce(topic, patched(batch(), ATTRIBUTES_OFFSET, ">h", number)))
    await _log(run, "log", topic)


async def _each_to_its_partition(run: Run, cases: Mapping[str, bytes], versions: Sequence[int]) -> None:
    """Each case has a separate partition, so that its outcome does not change the offsets of the others."""
    topic = await run.create(partitions=len(cases))
    for partition, (label, records) in enumerate(cases.items()):
        for version in versions:
            await run.ask(f"version {version} {label}", produce(topic, records, partition=partition), version)
        await _log(run, f"{label} in the log", topic, partition)


@scenario()
async def produce_bad_batches(run: Run) -> None:
    good = batch(2)
    cases = {
        "bad checksum": patched(good, _RECORD_COUNT, ">i", 3, checksum=False),
        "magic 0": old_message(0),
        "magic 1": old_message(1),
        "magic 3": patched(good, 16, ">b", 3),
        "magic -1": patched(good, 16, ">b", -1),
        "two batches": good + good,
        "good and garbage": good + b"garbage",
        "good and a cut one": good + good[:-1],
        "cut": good[:-1],
        "header alone": good[:BATCH_HEADER_SIZE],
        "shorter than a header": good[:40],
        "shorter than the overhead": good[:10],
        "length too large": patched(good, 8, ">i", 1000),
        "length too small": patched(good, 8, ">i", 20),
        "length below any": patched(good, 8, ">i", 3),
        "length negative": patched(good, 8, ">i", -5),
        "base offset 5": batch(2, base_offset=5),
        "base offset -1": batch(2, base_offset=-1),
        "count too large": patched(good, _RECORD_COUNT, ">i", 3),
        "count too small": patched(good, _RECORD_COUNT, ">i", 1),
        "count zero": patched(good, _RECORD_COUNT, ">i", 0),
        "count negative": patched(good, _RECORD_COUNT, ">i", -1),
        "last offset delta too large": patched(good, _LAST_OFFSET_DELTA, ">i", 2),
        "last offset delta too small": patched(good, _LAST_OFFSET_DELTA, ">i", 0),
        "last offset delta negative": patched(good, _LAST_OFFSET_DELTA, ">i", -1),
        "control batch": batch(1, control=True),
        "transactional without producer id": batch(1, transactional=True),
        "log append time": patched(good, ATTRIBUTES_OFFSET, ">h", 8),
        "delete horizon": patched(good, ATTRIBUTES_OFFSET, ">h", 0x40),
        "unknown attributes": patched(good, ATTRIBUTES_OFFSET, ">h", 0x7F80),
        "leader epoch 7": patched(good, 12, ">i", 7),
        "producer id without epoch": patched(good, _PRODUCER_ID, ">q", 4242),
        "producer id and epoch without sequence": patched(
            patched(good, _PRODUCER_ID, ">q", 4242), _PRODUCER_EPOCH, ">h", 0
        ),
        "sequence without producer id": patched(good, _BASE_SEQUENCE, ">i", 0),
        "epoch without producer id": patched(good, _PRODUCER_EPOCH, ">h", 0),
    }
    await _each_to_its_partition(run, cases, (7, 9, 13))


def _gzipped(data: bytes) -> bytes:
    """Return a batch with its records, and the bytes after them, compressed."""
    whole = data[:BATCH_HEADER_SIZE] + gzip.compress(data[BATCH_HEADER_SIZE:])
    return patched(patched(whole, 8, ">i", len(whole) - 12), ATTRIBUTES_OFFSET, ">h", 1)


@scenario()
async def produce_bad_records(run: Run) -> None:
    good = batch(2)
    compressed = _gzipped(good)
    cases = {
        "count and delta three": patched(patched(good, _RECORD_COUNT, ">i", 3), _LAST_OFFSET_DELTA, ">i", 2),
        "a record longer than the batch": patched(good, BATCH_HEADER_SIZE, ">B", 0x7E),
        "a record of no length": patched(good, BATCH_HEADER_SIZE, ">B", 0),
        "a record of negative length": patched(good, BATCH_HEADER_SIZE, ">B", 3),
        "offset deltas not in order": patched(good, BATCH_HEADER_SIZE + 3, ">B", 4),
        "bytes behind the records": patched(good + b"xx", 8, ">i", len(good) - 12 + 2),
        "max timestamp too small": patched(good, _MAX_TIMESTAMP, ">q", TIMESTAMP - 5),
        "max timestamp too large": patched(good, _MAX_TIMESTAMP, ">q", TIMESTAMP + 5000),
        "max timestamp -1": patched(good, _MAX_TIMESTAMP, ">q", -1),
        "base timestamp -1": patched(good, _BASE_TIMESTAMP, ">q", -1),
        "base timestamp -2": patched(good, _BASE_TIMESTAMP, ">q", -2),
        "base timestamp overflows": patched(good, _BASE_TIMESTAMP, ">q", 2**63 - 1),
        "compressed, count and delta three": patched(
            patched(compressed, _RECORD_COUNT, ">i", 3), _LAST_OFFSET_DELTA, ">i", 2
        ),
        "compressed, a record longer than the batch": _gzipped(patched(good, BATCH_HEADER_SIZE, ">B", 0x7E)),
        "compressed, a record of no length": _gzipped(patched(good, BATCH_HEADER_SIZE, ">B", 0)),
        "compressed, offset deltas not in order": _gzipped(patched(good, BATCH_HEADER_SIZE + 3, ">B", 4)),
        "compressed, bytes behind the records": _gzipped(good + b"xx"),
        "compressed, max timestamp too large": patched(compressed, _MAX_TIMESTAMP, ">q", TIMESTAMP + 5000),
        "compressed, base timestamp overflows": patched(compressed, _BASE_TIMESTAMP, ">q", 2**63 - 1),
        "gzip of garbage": patched(good, ATTRIBUTES_OFFSET, ">h", 1),
        "snappy of garbage": patched(good, ATTRIBUTES_OFFSET, ">h", 2),
        "lz4 of garbage": patched(good, ATTRIBUTES_OFFSET, ">h", 3),
        "zstd of garbage": patched(good, ATTRIBUTES_OFFSET, ">h", 4),
    }
    await _each_to_its_partition(run, cases, (7, 9, 13))


@scenario()
async def produce_sizes(run: Run) -> None:
    topic = await run.create(configs={"max.message.bytes": "2000", "segment.bytes": "1048576"})
    for size in (1800, 1925, 1926, 1927, 1928, 1929, 1930, 1931, 1940, 2000, 5000):
        records = batch([b""], size=size)
        run.observe(f"bytes with a value of {size}", len(records))
        await run.ask(f"value of {size}", produce(topic, records), 9)
    await run.ask("good one of two batches too large", produce(topic, batch() + batch([b""], size=3000)), 9)
    await _log(run, "log", topic)
    large = await run.create("large", configs={"max.message.bytes": "1100000", "segment.bytes": "1048576"})
    await run.ask("larger than a segment", produce(large, batch([b""], size=1_060_000)), 9)
    await run.ask("as large as fits", produce(large, batch([b""], size=1_048_000)), 9)
    usual = await run.create("usual")
    await run.ask("default limit", produce(usual, batch([b""], size=1_048_500)), 9)
    await run.ask("above the default limit", produce(usual, batch([b""], size=1_048_600)), 9)


@scenario()
async def produce_timestamps(run: Run) -> None:
    topic = await run.create()
    now = int(time.time() * 1000)
    for label, timestamp in (
        ("now", now),
        ("in 50 minutes", now + 50 * 60_000),
        ("in two hours", now + 2 * _HOUR_MS),
        ("far in the future", 2**62),
        ("a year ago", now - 365 * 24 * _HOUR_MS),
        ("zero", 0),
        ("-1", -1),
        ("-2", -2),
    ):
        for version in (7, 13):
            request = produce(topic, batch(2, timestamp=timestamp, step_ms=0))
            await run.ask(f"version {version} {label}", request, version)
    one_bad = b"".join(
        [patched(batch(3, timestamp=now, step_ms=2 * _HOUR_MS), _MAX_TIMESTAMP, ">q", now + 4 * _HOUR_MS)]
    )
    await run.ask("two of three too late", produce(topic, one_bad), 13)
    narrow = await run.create(
        "narrow", configs={"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}
    )
    for label, change in (("before", -90_000), ("just before", -30_000), ("after", 90_000), ("just after", 30_000)):
        request = produce(narrow, batch(1, timestamp=now + change, step_ms=0))
        await run.ask(f"narrow {label}", request, 13)
    await run.ask("narrow compressed", produce(narrow, batch(2, timestamp=now - 90_000, compression_type="lz4")), 13)


@scenario()
async def produce_log_append_time(run: Run) -> None:
    topic = await run.create(configs={"message.timestamp.type": "LogAppendTime"})
    for version in (3, 7, 8, 13):
        await run.ask(f"version {version}", produce(topic, batch(2)), version)
    await run.ask("compressed", produce(topic, batch(2, compression_type="gzip")))
    await run.ask("far away", produce(topic, batch(2, timestamp=2**61)))
    await run.ask("claims append time", produce(topic, patched(batch(2), ATTRIBUTES_OFFSET, ">h", 8)))
    compressed = patched(batch(2, key=None, compression_type="lz4"), ATTRIBUTES_OFFSET, ">h", 8 | 3)
    await run.ask("claims append time, compressed", produce(topic, compressed))
    await run.ask("bad checksum", produce(topic, batch()[:-1] + b"\x01"))
    await _log(run, "log", topic)


@scenario()
async def produce_to_compacted_topic(run: Run) -> None:
    topic = await run.create(configs={"cleanup.policy": "compact"})
    for codec in ("none", "lz4"):
        for version in (7, 8, 13):
            for label, records in (
                ("with key", batch(2, compression_type=codec)),
                ("with empty key", batch(2, key=b"", compression_type=codec)),
                ("without key", batch(2, key=None, compression_type=codec)),
                ("tombstone", batch([None], compression_type=codec)),
            ):
                await run.ask(f"{codec} version {version} {label}", produce(topic, records), version)
    future = int(time.time() * 1000) + 2 * _HOUR_MS
    for codec in ("none", "lz4"):
        for label, keys, times in (
            ("second and fourth without key", (b"a", None, b"c", None), (0, 0, 0, 0)),
            ("first without key, second too late", (None, b"b", b"c"), (0, future, 0)),
            ("first without key and too late", (None, b"b"), (future, 0)),
        ):
            records = [SimpleRecord(at or TIMESTAMP, key, b"v") for key, at in zip(keys, times, strict=True)]
            mixed = b"".join(encode_batch(records, compression_type=codec))
            for version in (7, 8, 13):
                await run.ask(f"{codec} version {version} {label}", produce(topic, mixed), version)
    both = await run.create("both", configs={"cleanup.policy": "compact,delete"})
    await run.ask("compact and delete without key", produce(both, batch(key=None)))
    await _log(run, "log", topic)


@scenario()
async def produce_to_topic_with_codec(run: Run) -> None:
    for codec in ("gzip", "uncompressed", "producer"):
        topic = await run.create(codec, configs={"compression.type": codec})
        for sent in ("none", "gzip", "lz4"):
            await run.ask(f"{sent} to {codec}", produce(topic, batch(2, compression_type=sent)))
        await _log(run, f"{codec} log", topic)


@scenario()
async def transactional_produce(run: Run) -> None:
    topic = await run.create()
    for version in (3, 9, 11, 12, 13):
        request = produce(topic, batch(1, producer_id=4242, producer_epoch=0, base_sequence=0, transactional=True))
        request.transactional_id = run.name("id")
        await run.ask(f"version {version} never initialised", request, version)
        plain = produce(topic, batch(1, producer_id=4242, producer_epoch=0, base_sequence=0, transactional=True))
        await run.ask(f"version {version} without transactional id", plain, version)
        named = produce(topic, batch())
        named.transactional_id = run.name("id")
        await run.ask(f"version {version} batch of no transaction", named, version)
    await _log(run, "log", topic)
