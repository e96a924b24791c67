"""Other implementations read this project's batches, and the reverse."""

from __future__ import annotations

import random
import subprocess
import warnings
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords

from aioproducer.compression import CODECS, codec
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch, read_control_record
from aioproducer.wire.murmur2 import murmur2
from aioproducer.wire.record_batch import (
    BATCH_HEADER_SIZE,
    CREATE_TIME,
    LOG_APPEND_TIME,
    BatchRecord,
    RecordBatch,
    SimpleRecord,
    encode_batch,
    estimate_size_in_bytes_upper_bound,
    iter_batches,
)
from tests.kafka import jars

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that the standard library has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

pytestmark = pytest.mark.interop

CODEC_NAMES = [each.name for each in CODECS]
NOW = 1_700_000_000_000


def some_records(count: int = 40) -> list[SimpleRecord]:
    """Records of every shape: no key, no value, empty, larger than a codec's block, headers that repeat."""
    source = random.Random(count)
    records = [
        SimpleRecord(NOW, None, None),
        SimpleRecord(NOW - 7, b"", b""),
        SimpleRecord(NOW + 10**9, b"key", None, [("h", b""), ("h", None), ("ключ", b"\xff" * 200)]),
        SimpleRecord(NOW, None, source.randbytes(70_000)),
        SimpleRecord(NOW, b"k" * 9000, bytes(70_000)),
    ]
    for index in range(count):
        headers = [("n", source.randbytes(5))] * (index % 3)
        records.append(SimpleRecord(NOW + index, source.randbytes(index), b"value %d " % index * index, headers))
    return records


def expected(records: list[SimpleRecord], base_offset: int = 0) -> list[BatchRecord]:
    return [
        BatchRecord(
            base_offset + index,
            record.timestamp,
            CREATE_TIME,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((key, None if value is None else bytes(value)) for key, value in record.headers),
        )
        for index, record in enumerate(records)
    ]


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("reader", [AiokafkaRecords, KafkaPythonRecords], ids=["aiokafka", "kafka-python"])
def test_python_clients_read_our_batches(reader: type[AiokafkaRecords | KafkaPythonRecords], name: str) -> None:
    records = some_records()
    data = b"".join(
        encode_batch(
            records, compression_type=name, producer_id=99, producer_epoch=3, base_sequence=7, base_offset=1000
        )
    )
    theirs = reader(data * 2)
    for _ in range(2):
        batch = theirs.next_batch()
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (99, 3, 7)
        read = [
            BatchRecord(record.offset, record.timestamp, CREATE_TIME, record.key, record.value, tuple(record.headers))
            for record in batch
        ]
        assert read == expected(records, 1000)
    assert not theirs.has_next()


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder], ids=["aiokafka", "kafka-python"])
def test_batches_of_python_clients_are_read(builder: type[AiokafkaBuilder | KafkaPythonBuilder], name: str) -> None:
    records = some_records()
    theirs = builder(
        magic=2,
        compression_type=codec(name).id,
        is_transactional=True,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
        batch_size=10_000_000,
    )
    for offset, record in enumerate(records):
        theirs.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    (batch,) = iter_batches(bytes(theirs.build()))
    batch.validate()
    assert (batch.producer_id, batch.is_transactional, batch.compression_id) == (5, True, codec(name).id)
    assert list(batch.records()) == expected(records)


class Java:
    """Kafka's own classes behind ``RecordBatches.java``."""

    def __init__(self, java: str, classpath: str) -> None:
        source = Path(__file__).with_name("RecordBatches.java")
        self._command = [java, "-Xmx512m", *jars.SHORT_LIVED, "-cp", classpath, str(source)]

    def ask(self, *commands: str) -> list[str]:
        """Return the answers to ``commands``, from one virtual machine."""
        done = subprocess.run(
            self._command, input="\n".join(commands) + "\n", capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        answers = done.stdout.splitlines()
        assert len(answers) == len(commands)
        return answers


@pytest.fixture(scope="module")
def java() -> Java:
    try:
        runtime = jars.java()
        folder = jars.resolve(jars.BROKER[jars.NEWEST])
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))
    listed = subprocess.run([runtime, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    if "jdk.compiler" not in listed.stdout:
        pytest.skip(
            f"{runtime} cannot run a source file: install a JDK (Debian: apt-get install openjdk-17-jdk-headless)"
        )
    return Java(runtime, str(folder / "*"))


def as_hex(data: object) -> str:
    return "-" if data is None else bytes(data).hex()  # type: ignore[call-overload, no-any-return]  # a buffer


def java_text(batch: RecordBatch, base_sequence: int) -> str:
    """Return the text that ``RecordBatches.java`` prints of an equal ``batch``."""
    fields = [
        "batch",
        batch.base_offset,
        batch.last_offset,
        batch.partition_leader_epoch,
        2,
        CODECS[batch.compression_id].name,
        batch.timestamp_type,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        base_sequence,
        batch.last_sequence,
        batch.record_count,
        str(batch.is_transactional).lower(),
        str(batch.is_control).lower(),
    ]
    text = " ".join(map(str, fields)) + ";"
    for record in batch.records():
        text += f"record {record.offset} {record.timestamp} {as_hex(record.key)} {as_hex(record.value)}"
        for key, value in record.headers:
            text += f" {key.encode().hex()}={as_hex(value)}"
        text += ";"
    return text


def levels_of(name: str) -> list[int | None]:
    levels = codec(name).levels
    return [None] if levels is None else [None, levels[0], 2, 5, levels[1]]


def test_java_reads_our_batches(java: Java) -> None:
    records = some_records()
    written = [
        b"".join(
            encode_batch(
                records,
                compression_type=name,
                compression_level=level,
                producer_id=2**40,
                producer_epoch=32767,
                base_sequence=2**31 - 2,
                base_offset=2**50,
                partition_leader_epoch=4,
                transactional=name == "zstd",
                timestamp_type=LOG_APPEND_TIME if name == "gzip" else CREATE_TIME,
                max_timestamp=NOW + 10**10 if name == "gzip" else None,
            )
        )
        for name in CODEC_NAMES
        for level in levels_of(name)
    ]
    # All codecs in one stream, as a Fetch response may hold them.
    written.append(b"".join(written[:8]))
    answers = java.ask(*[f"read {data.hex()}" for data in written])
    for data, answer in zip(written, answers, strict=True):
        assert answer == "".join(java_text(batch, 2**31 - 2) for batch in iter_batches(data))
    assert len(written) == 18


def test_java_reads_our_control_batches(java: Java) -> None:
    written = [
        encode_control_batch(kind, coordinator_epoch=9, producer_id=8, producer_epoch=7, timestamp=NOW, base_offset=6)
        for kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT)
    ]
    answer = f"batch 6 6 -1 2 none 0 {NOW} 8 7 -1 -1 1 true true;marker "
    assert java.ask(*[f"read {data.hex()}" for data in written]) == [answer + "COMMIT 9;", answer + "ABORT 9;"]


def test_batches_of_java_are_read(java: Java) -> None:
    records = some_records()
    words = " ".join(
        ",".join(
            [str(record.timestamp), as_hex(record.key), as_hex(record.value)]
            + [f"{key.encode().hex()}={as_hex(value)}" for key, value in record.headers]
        )
        for record in records
    )
    asked = [
        (name, level, timestamp_type)
        for name in CODEC_NAMES
        for level in levels_of(name)
        for timestamp_type in ("CREATE_TIME", "LOG_APPEND_TIME")
    ]
    answers = java.ask(
        *[f"write {name} {'-' if level is None else level} {kind} {words}" for name, level, kind in asked]
    )
    for (name, _, kind), answer in zip(asked, answers, strict=True):
        data = bytes.fromhex(answer)
        (batch,) = iter_batches(data)
        batch.validate()
        wanted = expected(records, 1000)
        if kind == "LOG_APPEND_TIME":
            wanted = [record._replace(timestamp=1700000009999, timestamp_type=LOG_APPEND_TIME) for record in wanted]
        assert list(batch.records()) == wanted
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 5, 2147483646)
        assert (batch.partition_leader_epoch, batch.is_transactional) == (9, True)
        if name in ("none", "snappy") and kind == "CREATE_TIME":
            ours = encode_batch(
                records,
                compression_type=name,
                base_offset=1000,
                producer_id=77,
                producer_epoch=5,
                base_sequence=2147483646,
                partition_leader_epoch=9,
                transactional=True,
            )
            body = codec(name).decompress(data[BATCH_HEADER_SIZE:])
            assert body == codec(name).decompress(ours[1])
            assert name != "none" or b"".join(ours) == data


def test_control_batches_of_java_are_read(java: Java) -> None:
    answers = java.ask(f"marker 5 {NOW} 3 4242 7 COMMIT 12", f"marker 0 0 0 1 0 ABORT {2**31 - 1}")
    commit, abort = [RecordBatch(bytes.fromhex(answer)) for answer in answers]
    assert read_control_record(commit) == (5, NOW, 0, ControlRecordType.COMMIT, 12)
    assert read_control_record(abort) == (0, 0, 0, ControlRecordType.ABORT, 2**31 - 1)


def test_upper_bounds_equal_those_of_java(java: Java) -> None:
    sizes = [(-1, -1), (0, 0), (0, -1), (63, 64), (64, 63), (8191, 8192), (100_000, 1_000_000)]
    answers = java.ask(*[f"bound {'-' if key < 0 else key} {'-' if value < 0 else value}" for key, value in sizes])
    headers = [("h\N{LATIN SMALL LETTER E WITH ACUTE}", bytes(3)), ("none", None)]
    assert [estimate_size_in_bytes_upper_bound(*pair, headers) for pair in sizes] == [int(bound) for bound in answers]


def test_murmur2_equals_that_of_java(java: Java) -> None:
    source = random.Random(4)
    keys = [source.randbytes(source.randrange(200)) for _ in range(2000)]
    assert [murmur2(key) for key in keys] == [
        int(value) for value in java.ask(*[f"murmur2 {key.hex()}" for key in keys])
    ]
