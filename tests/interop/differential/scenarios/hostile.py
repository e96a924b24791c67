"""Invalid frames, and whether the connection survives them."""

from __future__ import annotations

import random
import struct

from aioproducer.protocol import decode_correlation_id, encode_request
from aioproducer.protocol.messages import ApiVersionsRequest, FetchRequest, MetadataRequest, ProduceRequest
from tests.interop.differential.batches import batch
from tests.interop.differential.scenario import Run, Topic, fetch, produce, scenario
from tests.interop.differential.wire import Outcome


def _header(api_key: int, version: int, correlation_id: int = 7, client_id: str | None = "x") -> bytes:
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    return struct.pack(">hhi", api_key, version, correlation_id) + name


def _frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def _throw(run: Run, label: str, data: bytes, timeout: float = 5) -> None:
    """Send bytes on a new connection, then a valid request; record the responses to both."""
    connection = await run.nodes.connect()
    await connection.send_bytes(data)
    found: list[object] = []
    first = await connection.read_frame(timeout)
    if isinstance(first, Outcome):
        found.append(first.value)
    else:
        found.append(f"answer to {decode_correlation_id(first)}")
        after = await connection.ask(MetadataRequest(topics=[]), 12, timeout)
        found.append(after.value if isinstance(after, Outcome) else "goes on")
    run.observe(label, found)


@scenario()
async def unknown_requests(run: Run) -> None:
    for api_key in (-1, 4, 5, 6, 7, 58, 95, 1000, 32767):
        await _throw(run, f"api key {api_key}", _frame(_header(api_key, 0)))
    for api_key, version in ((0, 0), (0, 2), (0, 14), (1, 3), (1, 19), (2, 0), (3, 14), (3, -1), (11, 10), (19, 1)):
        await _throw(run, f"api key {api_key} version {version}", _frame(_header(api_key, version) + bytes(40)))
    for version in (-1, 6, 7, 100, 32767):
        await _throw(run, f"ApiVersions {version}", _frame(_header(18, version)))
        await _throw(run, f"ApiVersions {version} with garbage", _frame(_header(18, version) + b"\xff" * 20))


@scenario()
async def malformed_frames(run: Run) -> None:
    await _throw(run, "empty frame", _frame(b""))
    await _throw(run, "short header", _frame(b"\0\x03\0"))
    await _throw(run, "negative size", struct.pack(">i", -1))
    await _throw(run, "size of 2 GiB", struct.pack(">i", 2**31 - 1))
    await _throw(run, "size above socket.request.max.bytes", struct.pack(">i", 104_857_601))
    await _throw(run, "HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await _throw(run, "TLS hello", bytes.fromhex("160301020001000001fc0303") + bytes(505))
    await _throw(run, "client id is null", _frame(_header(3, 1, client_id=None) + struct.pack(">i", 0)))
    await _throw(run, "client id longer than the frame", _frame(struct.pack(">hhih", 3, 1, 7, 1000)))
    await _throw(run, "client id is no UTF-8", _frame(struct.pack(">hhih", 3, 1, 7, 2) + b"\xff\xfe" + bytes(4)))
    await _throw(run, "array longer than the frame", _frame(_header(3, 1) + struct.pack(">i", 1_000_000_000)))
    await _throw(run, "array of negative length", _frame(_header(3, 1) + struct.pack(">i", -2)))
    await _throw(run, "null where none may be", _frame(_header(3, 1) + struct.pack(">ih", 1, -1)))
    await _throw(run, "bytes left over", _frame(_header(3, 1) + struct.pack(">i", 0) + b"left over"))


@scenario()
async def truncated_and_mangled(run: Run) -> None:
    topic = Topic(run.name(), bytes(16))
    requests = {
        "Metadata": (MetadataRequest(topics=[]), 12),
        "ApiVersions": (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
        "Fetch": (fetch(topic), 12),
        "Produce": (produce(topic, batch()), 9),
    }
    for name, (request, version) in requests.items():
        assert isinstance(request, MetadataRequest | ApiVersionsRequest | FetchRequest | ProduceRequest)
        body = b"".join(encode_request(request, version, 7, "x"))[4:]
        for length in sorted({9, 10, 11, 12, len(body) // 2, len(body) - 1} & set(range(len(body)))):
            await _throw(run, f"{name} of {len(body)} bytes cut to {length}", _frame(body[:length]))
        await _throw(run, f"{name} and two more bytes", _frame(body + b"\x01\x02"))
    generator = random.Random(4)
    for number in range(30):
        await _throw(run, f"garbage {number}", _frame(generator.randbytes(generator.randrange(1, 200))))


@scenario()
async def pipelined_requests(run: Run) -> None:
    topic = await run.create()
    connection = await run.nodes.connect()
    request = MetadataRequest(topics=[])
    first = await connection.send(produce(topic, batch()), 9)
    waits = await connection.send(fetch(topic, 1, max_wait_ms=200, min_bytes=1), 12)
    second = await connection.send(request, 12)
    third = await connection.send(produce(topic, batch(), acks=0), 9)
    last = await connection.send(request, 12)
    order = []
    for _ in range(4):
        frame = await connection.read_frame()
        assert not isinstance(frame, Outcome)
        order.append(
            {first: "produce", waits: "fetch", second: "metadata", third: "acks 0", last: "metadata again"}[
                decode_correlation_id(frame)
            ]
        )
    run.observe("order of answers", order)
