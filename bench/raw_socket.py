"""A blocking socket that sends Produce requests made beforehand: what the kernel and the broker cost by themselves.

Nobody can be idempotent by sending the same bytes again, so that these are not; everybody else is.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from itertools import repeat
from time import perf_counter_ns
from typing import Any

from bench.job import VALUE, Job, Measurement, Stopwatch, latencies

IN_FLIGHT = 5
PRODUCE_VERSION = 9


def connect(bootstrap: str) -> socket.socket:
    """A connection that delays nothing."""
    host, _, port = bootstrap.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive(sock: socket.socket) -> bytes:
    """One frame without its length; in one system call where it comes at once."""
    data = sock.recv(65536)
    while len(data) < 4 or len(data) - 4 < int.from_bytes(data[:4]):
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError("the broker ended the connection")
        data += piece
    return data[4:]


class Responses:
    """Frames from a connection on which several may come at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""

    def receive(self) -> bytes:
        """The next one."""
        while len(self._data) < 4 or len(self._data) - 4 < int.from_bytes(self._data[:4]):
            piece = self._sock.recv(65536)
            if not piece:
                raise ConnectionError("the broker ended the connection")
            self._data += piece
        end = 4 + int.from_bytes(self._data[:4])
        frame, self._data = self._data[4:end], self._data[end:]
        return frame


def ask(sock: socket.socket, message: Any, version: int) -> Any:
    """Send a request and return the response."""
    from aioproducer.protocol import decode_response, encode_request

    sock.sendall(b"".join(encode_request(message, version, 1, "bench")))
    return decode_response(message.response_class(), version, receive(sock))[1]


def batch_of(count: int) -> bytes:
    """A record batch of ``count`` values, uncompressed."""
    from aioproducer.wire.record_batch import SimpleRecord, encode_batch

    now = int(time.time() * 1000)
    return b"".join(encode_batch([SimpleRecord(timestamp=now, key=None, value=VALUE) for _ in range(count)]))


def fitting(batch_size: int) -> int:
    """How many values make a batch of at most ``batch_size`` bytes."""
    header = 61
    # As long as the offsets within the batch need two bytes.
    per_record = (len(batch_of(1000)) - header) / 1000 + 0.1
    return int((batch_size - header) // per_record)


def frame_of(topic: str, partition: int, batch: bytes) -> bytes:
    """A whole Produce request, acks=all, with its length."""
    from aioproducer.protocol import encode_request
    from aioproducer.protocol.messages import ProduceRequest
    from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData

    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    return b"".join(encode_request(request, PRODUCE_VERSION, 1, "bench"))


def check_responses(frames: list[bytes]) -> None:
    """Raises RuntimeError if a batch was refused."""
    from aioproducer.protocol import decode_response
    from aioproducer.protocol.messages.produce import ProduceResponse

    for frame in frames:
        response = decode_response(ProduceResponse, PRODUCE_VERSION, frame)[1]
        (partition,) = response.responses[0].partition_responses
        if partition.error_code:
            raise RuntimeError(f"refused: {partition}")


def replay(
    sock: socket.socket,
    frames: list[bytes],
    count: int,
    in_flight: int = IN_FLIGHT,
    before: Callable[[int], object] = lambda number: None,
) -> list[bytes]:
    """Send ``count`` requests, the frames in turn, ``in_flight`` at a time; every response, for ``check_responses``.

    ``before`` is called with the number of each request, and may wait.
    """
    responses = Responses(sock)
    found = []
    for number in range(count):
        before(number)
        sock.sendall(frames[number % len(frames)])
        if number >= in_flight - 1:
            found.append(responses.receive())
    while len(found) < count:
        found.append(responses.receive())
    return found


def kept(job: Job) -> Measurement:
    """Batches of ``batch_size`` to the partitions in turn; responses are looked into after the clock has been read."""
    per_batch = fitting(job.batch_size)
    batch = batch_of(per_batch)
    frames = [frame_of(job.topic, partition, batch) for partition in range(job.partitions)]
    with connect(job.bootstrap) as sock:
        warm_up = max(job.warm_up // per_batch, 1)
        check_responses(replay(sock, frames, warm_up))
        count = max(job.records // per_batch, 1)
        watch = Stopwatch()
        found = replay(sock, frames, count)
        measured = watch.stop(count * per_batch, sent=(warm_up + count) * per_batch, records_a_batch=per_batch)
        check_responses(found)
        return measured


unkept = many = kept


def alone(job: Job) -> Measurement:
    """A record a request, one request at a time; responses are looked into after the clock has been read."""
    batch = batch_of(1)
    frames = [frame_of(job.topic, partition, batch) for partition in range(job.partitions)]
    with connect(job.bootstrap) as sock:

        def send(count: int) -> tuple[list[int], list[bytes]]:
            taken, found = [], []
            for _ in repeat(None, count):
                frame = frames[len(taken) % len(frames)]
                began = perf_counter_ns()
                sock.sendall(frame)
                response = receive(sock)
                taken.append(perf_counter_ns() - began)
                found.append(response)
            return taken, found

        send(job.warm_up)
        watch = Stopwatch()
        taken, found = send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records)
        check_responses(found)
        return measured | latencies(taken)


def load(job: Job) -> Measurement:
    """Keep the broker busy for ``seconds``."""
    per_batch = fitting(job.batch_size)
    frames = [frame_of(job.topic, partition, batch_of(per_batch)) for partition in range(job.partitions)]
    ends = time.monotonic() + job.seconds
    sent = 0
    with connect(job.bootstrap) as sock:
        while time.monotonic() < ends:
            check_responses(replay(sock, frames, 100))
            sent += 100
    return {"sent": sent * per_batch}
