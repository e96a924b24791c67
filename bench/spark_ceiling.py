"""The ceiling of any sink of Python's: Spark hands all rows to workers that drop them, while a raw socket in this
process sends the broker record batches, made beforehand, of as many such rows. The later of the two ends the run.

Every row costs Spark's way into Python, the codec's work and the broker's, and nothing between: where batches are
compressed, the codec compresses each again, as in any producer, before it is sent as it was. Batches are of the same
rows, with the scenario's codec, and as large as its batch size; each request has one for every partition, as a
producer's have that is never idle. Requests keep step with the rows, a request with the rows that it has as many of, so
that Spark and the broker work side by side from the first row to the last, as they do where rows are sent.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bench import spark_parts
from bench.job import Job, Measurement
from bench.raw_socket import PRODUCE_VERSION, connect, replay
from bench.spark_session import measure, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rows that show how large a row is in a batch.
SAMPLE = 1000
# Seconds between two looks at how many rows have come.
LOOK_EVERY = 0.001


class Replayed(NamedTuple):
    """The request that is sent again and again, how many rows each of its batches has, and the codec's work on it."""

    frame: bytes
    per_batch: int
    compress: Callable[[], object]


def batch_of_rows(spark: SparkSession, job: Job) -> tuple[bytes, int]:
    """A record batch of the first rows, of at most ``batch_size`` bytes, and how many they are."""
    from aioproducer.wire.record_batch import SimpleRecord, encode_batch

    def batch_of(count: int) -> bytes:
        found = rows(spark, count).collect()
        now = int(time.time() * 1000)
        records = [SimpleRecord(timestamp=now, key=bytes(row.key), value=bytes(row.value)) for row in found]
        return b"".join(encode_batch(records, compression_type=job.compression))

    count = max(SAMPLE * job.batch_size // len(batch_of(SAMPLE)), 1)
    while len(batch := batch_of(count)) > job.batch_size:
        count -= max(count // 100, 1)
    return batch, count


def compressing(job: Job, batch: bytes) -> Callable[[], object]:
    """What does the codec's work on one request; nothing where batches are not compressed."""
    from aioproducer.compression import codec
    from aioproducer.wire.record_batch import BATCH_HEADER_SIZE

    if job.compression == "none":
        return lambda: None
    of_scenario = codec(job.compression)
    records = of_scenario.decompress(memoryview(batch)[BATCH_HEADER_SIZE:])
    return lambda: [of_scenario.compress([records]) for _ in range(job.partitions)]


def frame_of(job: Job, batch: bytes) -> bytes:
    """A whole Produce request, acks=all, with its length, and the batch for each partition."""
    from aioproducer.protocol import encode_request
    from aioproducer.protocol.messages import ProduceRequest
    from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData

    partitions = [PartitionProduceData(index=index, records=batch) for index in range(job.partitions)]
    data = TopicProduceData(name=job.topic, partition_data=partitions)
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    return b"".join(encode_request(request, PRODUCE_VERSION, 1, "bench"))


def check_responses(frames: list[bytes]) -> None:
    """Raises RuntimeError if a batch was refused."""
    from aioproducer.protocol import decode_response
    from aioproducer.protocol.messages.produce import ProduceResponse

    for frame in frames:
        for partition in decode_response(ProduceResponse, PRODUCE_VERSION, frame)[1].responses[0].partition_responses:
            if partition.error_code:
                raise RuntimeError(f"refused: {partition}")


def run(job: Job) -> Measurement:
    """With the pyspark that this process has."""
    replayed: Replayed | None = None

    def write(spark: SparkSession, count: int) -> int:
        from bench.spark_null import NullDataSource, rows_so_far

        nonlocal replayed
        if replayed is None:
            spark.dataSource.register(NullDataSource)
            batch, per_batch = batch_of_rows(spark, job)
            replayed = Replayed(frame_of(job, batch), per_batch, compressing(job, batch))
        frame, per_batch, compress = replayed
        per_request = per_batch * job.partitions
        requests = -(-count // per_request)
        found: list[bytes] = []
        all_came = threading.Event()
        with tempfile.NamedTemporaryFile() as counts:

            def keep_step(number: int) -> None:
                while number * per_request >= rows_so_far(counts.fileno()) and not all_came.wait(LOOK_EVERY):
                    pass
                compress()

            sending = threading.Thread(
                target=lambda: found.extend(replay(sock, [frame], requests, before=keep_step)), name="bench-replay"
            )
            sending.start()
            try:
                sink = rows(spark, count).write.format("bench-null").mode("append")
                sink.option("rows", count).option("counts", counts.name).save()
            finally:
                all_came.set()
                sending.join()
        if len(found) != requests:
            raise RuntimeError(f"{len(found)} of {requests} requests were answered")
        check_responses(found)
        return requests * per_batch * job.partitions

    with connect(job.bootstrap) as sock:
        measured = measure(job, write)
    assert replayed is not None
    return measured | {"records_a_batch": replayed.per_batch}


def defaults(job: Job) -> Measurement:
    """With the codec and the batch size of the job's scenario."""
    spark_parts.prepare()
    return run(job)


large_batches = defaults
