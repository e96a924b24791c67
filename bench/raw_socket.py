"""A blocking socket that sends prepared Produce requests: the cost of the kernel and the broker alone.

It sends the same bytes repeatedly, so unlike all other clients it is not idempotent. Requests of transactions are
prepared separately, because each transaction has the next epoch.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import repeat
from time import perf_counter_ns
from typing import Any

from bench.job import VALUE, Job, Measurement, Stopwatch, in_transactions, latencies

# A connection to a broker, and requests for it.
Link = tuple[socket.socket, list[bytes]]

IN_FLIGHT = 5
PRODUCE_VERSION = 9
# The newer generation of transactions (KIP-890): a batch adds its partition, and each end returns the next epoch.
PRODUCE_IN_TRANSACTION, END_TXN_VERSION = 12, 5
_CONCURRENT_TRANSACTIONS = 51
_LONGEST_START = 30.0


def connect(bootstrap: str) -> socket.socket:
    """Return a connection to the first address, with TCP_NODELAY."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive(sock: socket.socket) -> bytes:
    """Return one frame without its length, by one system call if it arrives at once."""
    data = sock.recv(65536)
    while len(data) < 4 or len(data) - 4 < int.from_bytes(data[:4]):
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError("the broker ended the connection")
        data += piece
    return data[4:]


class Responses:
    """Reads frames from a connection on which several may arrive at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""

    def receive(self) -> bytes:
        """Return the next frame."""
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


def batch_of(count: int, value: bytes = VALUE) -> bytes:
    """Return an uncompressed record batch with ``count`` times the value."""
    from aioproducer.wire.record_batch import SimpleRecord, encode_batch

    now = int(time.time() * 1000)
    return b"".join(encode_batch([SimpleRecord(timestamp=now, key=None, value=value) for _ in range(count)]))


def fitting(batch_size: int, value: bytes = VALUE) -> int:
    """Return how many of these values fit into a batch of ``batch_size`` bytes."""
    header = 61
    # Exact while the offsets within the batch need two bytes.
    per_record = (len(batch_of(1000, value)) - header) / 1000 + 0.1
    return int((batch_size - header) // per_record)


def frame_of(topic: str, partition: int, batch: bytes) -> bytes:
    """Return a complete Produce request, acks=all, with its length."""
    from aioproducer.protocol import encode_request
    from aioproducer.protocol.messages import ProduceRequest
    from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData

    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    return b"".join(encode_request(request, PRODUCE_VERSION, 1, "bench"))


def check_responses(frames: list[bytes]) -> None:
    """Check that no batch was refused; raise RuntimeError otherwise."""
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
    """Send ``count`` requests of ``frames`` in rotation, ``in_flight`` at a time; return all responses.

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


@contextmanager
def links(bootstrap: str, topic: str, batch: bytes) -> Iterator[list[Link]]:
    """Connect to each broker that leads a partition of the topic, with a request for each partition it leads."""
    from aioproducer.protocol.messages import MetadataRequest
    from aioproducer.protocol.messages.metadata import MetadataRequestTopic

    with connect(bootstrap) as sock:
        answer = ask(sock, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
    frames: dict[int, list[bytes]] = {}
    for partition in answer.topics[0].partitions:
        frames.setdefault(partition.leader_id, []).append(frame_of(topic, partition.partition_index, batch))
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    with ExitStack() as stack:
        yield [(stack.enter_context(connect(addresses[leader])), frames[leader]) for leader in sorted(frames)]


def replay_to(brokers: Sequence[Link], count: int, in_flight: int = IN_FLIGHT) -> list[bytes]:
    """Send ``count`` requests to the brokers in rotation, ``in_flight`` at a time to each; return all responses."""
    responses = [Responses(sock) for sock, _ in brokers]
    found = []
    for number in range(count):
        turn, broker = divmod(number, len(brokers))
        sock, frames = brokers[broker]
        sock.sendall(frames[turn % len(frames)])
        if turn >= in_flight - 1:
            found.append(responses[broker].receive())
    for number in range(len(found), count):
        found.append(responses[number % len(brokers)].receive())
    return found


def kept(job: Job) -> Measurement:
    """Send batches of ``batch_size`` to the partitions in rotation; responses are checked after the measurement."""
    value = b"x" * job.value_size
    per_batch = fitting(job.batch_size, value)
    with links(job.bootstrap, job.topic, batch_of(per_batch, value)) as brokers:
        warm_up = max(job.warm_up // per_batch, 1)
        check_responses(replay_to(brokers, warm_up))
        count = max(job.records // per_batch, 1)
        watch = Stopwatch()
        found = replay_to(brokers, count)
        measured = watch.stop(count * per_batch, sent=(warm_up + count) * per_batch, records_a_batch=per_batch)
        check_responses(found)
        return measured


unkept = many = kept


def alone(job: Job) -> Measurement:
    """Send one record for each request, one request at a time; responses are checked after the measurement."""
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


class _Transactional:
    """A connection with a transactional id; its requests for ``count`` transactions are prepared."""

    def __init__(self, job: Job, number: int, count: int) -> None:
        from aioproducer.protocol import encode_request
        from aioproducer.protocol.messages import ProduceRequest
        from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData
        from aioproducer.protocol.messages.transactions import EndTxnRequest
        from aioproducer.wire.record_batch import SimpleRecord, encode_batch

        self.produce_ns: list[int] = []
        """The broker's time for each Produce request, including those answered with a retriable error."""
        self._sock = connect(job.bootstrap)
        name = f"{job.topic}-{number}"
        producer_id, first_epoch = self._init(name)
        records = [SimpleRecord(timestamp=int(time.time() * 1000), key=None, value=VALUE)] * job.records_a_transaction
        self._frames = []
        for turn in range(count):
            epoch = first_epoch + turn
            batch = encode_batch(
                records, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True
            )
            data = PartitionProduceData(index=turn % job.partitions, records=b"".join(batch))
            topic = TopicProduceData(name=job.topic, partition_data=[data])
            produce = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=30_000, topic_data=[topic])
            end = EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True)
            self._frames.append(
                (
                    b"".join(encode_request(produce, PRODUCE_IN_TRANSACTION, 1, "bench")),
                    b"".join(encode_request(end, END_TXN_VERSION, 1, "bench")),
                )
            )
        self._next = 0

    def _init(self, name: str) -> tuple[int, int]:
        from aioproducer.protocol.messages.groups import FindCoordinatorRequest
        from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest

        deadline = time.monotonic() + _LONGEST_START
        while True:
            # The first request creates the coordinator's topic.
            ask(self._sock, FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            response = ask(self._sock, request, 4)
            if not response.error_code:
                return response.producer_id, response.producer_epoch
            if time.monotonic() > deadline:
                raise RuntimeError(f"no producer id: {response}")
            time.sleep(0.05)

    def run(self, count: int) -> None:
        """Run the next ``count`` transactions."""
        from aioproducer.protocol import decode_response
        from aioproducer.protocol.messages.produce import ProduceResponse
        from aioproducer.protocol.messages.transactions import EndTxnResponse

        for produce, end in self._frames[self._next : self._next + count]:
            began = perf_counter_ns()
            while True:
                self._sock.sendall(produce)
                produced = decode_response(ProduceResponse, PRODUCE_IN_TRANSACTION, receive(self._sock))[1]
                (partition,) = produced.responses[0].partition_responses
                if partition.error_code != _CONCURRENT_TRANSACTIONS:
                    break
            self.produce_ns.append(perf_counter_ns() - began)
            self._sock.sendall(end)
            ended = decode_response(EndTxnResponse, END_TXN_VERSION, receive(self._sock))[1]
            if partition.error_code or ended.error_code:
                raise RuntimeError(f"refused: {partition}, {ended}")
        self._next += count

    def close(self) -> None:
        self._sock.close()


def transactions(job: Job) -> Measurement:
    """Run transactions of one connection, or of several, each in a thread: Produce, then EndTxn."""
    warm_up, count = job.shares(job.warm_up), job.shares(job.records)
    with ThreadPoolExecutor(job.coroutines) as threads:
        producers = [_Transactional(job, number, warm_up + count) for number in range(job.coroutines)]
        list(threads.map(_Transactional.run, producers, repeat(warm_up)))
        for producer in producers:
            producer.produce_ns.clear()
        watch = Stopwatch()
        list(threads.map(_Transactional.run, producers, repeat(count)))
        measured = in_transactions(job, watch)
        taken = sorted(duration for producer in producers for duration in producer.produce_ns)
        for producer in producers:
            producer.close()
    # A broker tries again after 20 ms (add.partitions.to.txn.retry.backoff.ms).
    held = sum(duration >= 20_000_000 for duration in taken) / len(taken)
    return measured | {"held_share": held, **{f"produce_{key}": value for key, value in latencies(taken).items()}}


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
