"""A client of raw requests and responses: tests see the bytes on the wire, without a client library."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from aioproducer.protocol import Buffer, Request, Response, decode_response, encode_request
from aioproducer.protocol.messages import FetchRequest, ProduceRequest
from aioproducer.protocol.messages.fetch import FetchPartition, FetchTopic, ReplicaState
from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData
from aioproducer.transport.memory import MemoryNetwork, MemoryTransport
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import RecordBatch, encode_batch, iter_batches

ResponseT = TypeVar("ResponseT", bound=Response)

TIMEOUT = 10.0
"""Seconds after which a test that waits for a broker has failed."""


class _Stream(Protocol):
    async def write(self, data: bytes) -> None: ...
    async def read(self, size: int) -> bytes:
        """Read ``size`` bytes; raises ``IncompleteReadError`` with the received ones if the connection ends before."""

    def close(self) -> None: ...
    async def closed(self) -> None: ...


class _Socket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        try:
            await self._writer.wait_closed()
        except OSError:
            # The broker reset the connection.
            return


class _Memory:
    """One side of a connection in a ``MemoryNetwork``."""

    transport: MemoryTransport

    def __init__(self) -> None:
        self._reader = asyncio.StreamReader()
        self._lost = asyncio.Event()

    def data_received(self, data: Buffer) -> None:
        self._reader.feed_data(bytes(data))

    def write_completed(self, count: int) -> None:
        """Ignored."""

    def connection_lost(self, exception: Exception | None) -> None:
        self._reader.feed_eof()
        self._lost.set()

    async def write(self, data: bytes) -> None:
        self.transport.write([data])

    async def read(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self.transport.close()

    async def closed(self) -> None:
        await self._lost.wait()


class WireClient:
    """A connection to a broker; an async context manager.

    ``await WireClient.connect("host:port")`` over TCP, or with ``network=`` in memory.
    """

    def __init__(self, stream: _Stream, client_id: str | None) -> None:
        self._stream = stream
        self.client_id = client_id
        self.correlation_id = 0

    @classmethod
    async def connect(
        cls, address: str, *, network: MemoryNetwork | None = None, client_id: str | None = "wire"
    ) -> Self:
        """Connect to ``host:port``, or to the first of several with commas between them."""
        host, _, port = address.partition(",")[0].rpartition(":")
        if network is None:
            return cls(_Socket(*await asyncio.open_connection(host, int(port))), client_id)
        stream = _Memory()
        stream.transport = await network.connect(host, int(port), stream)
        return cls(stream, client_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._stream.close()
        async with asyncio.timeout(TIMEOUT):
            await self._stream.closed()

    async def call(self, request: Request[ResponseT], version: int) -> ResponseT:
        """Send ``request`` in ``version`` and return its response."""
        correlation_id = await self.send(request, version)
        answered, response = await self.receive(type(request), version)
        assert answered == correlation_id
        return response

    async def send(self, request: Request[Response], version: int) -> int:
        """Send ``request`` and return its correlation id."""
        self.correlation_id += 1
        await self.send_bytes(b"".join(encode_request(request, version, self.correlation_id, self.client_id)))
        return self.correlation_id

    async def receive(self, request_class: type[Request[ResponseT]], version: int) -> tuple[int, ResponseT]:
        """Return the next response, decoded as the one to such a request, and its correlation id."""
        return decode_response(request_class.response_class(), version, await self.receive_frame())

    async def send_bytes(self, data: bytes) -> None:
        """Send any bytes."""
        await self._stream.write(data)

    async def receive_frame(self) -> bytes:
        """Return the next frame without its size; raises ``IncompleteReadError`` if the connection ends before."""
        async with asyncio.timeout(TIMEOUT):
            (size,) = struct.unpack(">i", await self._stream.read(4))
            return await self._stream.read(size)

    async def receive_end(self) -> bytes:
        """Wait until the broker ends the connection, and return the bytes received before."""
        received = b""
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    received += await self._stream.read(1)
                except asyncio.IncompleteReadError:
                    return received
                except ConnectionResetError:
                    return received


def batch(
    *values: bytes | None,
    timestamp: int = 1_700_000_000_000,
    key: bytes | None = None,
    compression_type: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Encode a record batch of ``values``, with timestamps that rise by 1 from ``timestamp`` on."""
    return b"".join(
        encode_batch(
            [SimpleRecord(timestamp + index, key, value) for index, value in enumerate(values)],
            compression_type=compression_type,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
    )


def produce_request(
    topic: str | bytes,
    batches: dict[int, bytes | None],
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Return a request with ``batches`` by partition, for a topic by name or by id (version 13)."""
    data = TopicProduceData(
        partition_data=[PartitionProduceData(index=index, records=records) for index, records in batches.items()]
    )
    _name(data, "name", topic)
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[data])


def fetch_request(
    topic: str | bytes,
    offsets: dict[int, int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**31 - 1,
    partition_max_bytes: int = 2**20,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    replica_id: int = -1,
    version: int = 18,
) -> FetchRequest:
    """Return a request to read partitions from ``offsets`` on, of a topic by name or by id (from version 13 on).

    ``replica_id`` is in the field that ``version`` has for it.
    """
    data = FetchTopic(
        partitions=[
            FetchPartition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                current_leader_epoch=current_leader_epoch,
                last_fetched_epoch=last_fetched_epoch,
            )
            for index, offset in offsets.items()
        ]
    )
    _name(data, "topic", topic)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[data] if offsets else [],
    )
    if version >= 15:
        request.replica_state = ReplicaState(replica_id=replica_id)
    else:
        request.replica_id = replica_id
    return request


def _name(data: TopicProduceData | FetchTopic, field: str, topic: str | bytes) -> None:
    if isinstance(topic, bytes):
        data.topic_id = topic
    else:
        setattr(data, field, topic)


def read_batches(records: Buffer | Sequence[Buffer] | None) -> list[RecordBatch]:
    """Return the batches in the records of a Fetch response."""
    if records is None:
        return []
    whole = records if isinstance(records, Buffer) else b"".join(records)
    return list(iter_batches(whole))


def read_values(records: Buffer | Sequence[Buffer] | None) -> list[bytes | None]:
    """Return the values of the records of a Fetch response."""
    return [record.value for found in read_batches(records) for record in found.records()]
