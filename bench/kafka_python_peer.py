"""kafka-python: ``linger_ms`` and ``batch_size`` as its documentation recommends; idempotent by default."""

from __future__ import annotations

import warnings

from bench.job import Job, Measurement, Stopwatch


def kept(job: Job) -> Measurement:
    """Keep the future of each record, and read its offset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=job.linger_ms,
        batch_size=job.batch_size,
        compression_type=None if job.compression == "none" else job.compression,
    )

    def send(count: int) -> int:
        futures = []
        for values in job.chunks(count):
            for value in values:
                futures.append(producer.send(job.topic, value))
        producer.flush()
        offsets = 0
        for future in futures:
            offsets += future.get().offset
        return offsets

    try:
        send(job.warm_up)
        watch = Stopwatch()
        offsets = send(job.records)
        return watch.stop(job.records, sent=job.warm_up + job.records, offsets=offsets)
    finally:
        producer.close()
