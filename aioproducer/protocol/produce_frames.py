"""Compiled. Common Produce requests and responses: with every batch acknowledged.

Small batches have the cost of a request and its response for every few records. These two therefore have a short form:
tuples instead of messages, and frames that are written and read in C. Anything unusual (an error, a leader hint, a
field that does not fit) is left to the messages and their codec, which produce the same frames.

No Python form: the functions of the last section write and read frames at addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioproducer.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aioproducer.protocol.schema import ZERO_UUID, Buffer

if TYPE_CHECKING and not TYPE_CHECKING:
    # Only Cython needs this.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy
else:
    # The compiled module has it from its .pxd file.
    from aioproducer.wire.record_batch import read_integer

# Flexible versions with varint lengths and tagged fields, up to the last version that is implemented here.
_FIRST_VERSION, _LAST_VERSION = 9, 13
TOPIC_IDS_FROM = 13
"""From this version on topics are identified by their ids (KIP-516)."""
_IDS_FROM = TOPIC_IDS_FROM
_ID_SIZE = 16
# The bytes between two batches must fit, with a topic name of at most 249 bytes, and copied batches too.
_ROOM = 1024
_LARGEST_PIECE = 300
_LARGEST_COPIED = 512
"""Maximum bytes of a buffer that is copied into the frame: sending it from its own memory would cost more."""
_LONGEST_FRAME = 2**31 - 1
# Maximum length that takes one byte; lengths are written plus one, 0 stands for null.
_LARGEST_SHORT = 0x7F
_INT32_SIZE = 4
# Index, error code, base offset, time of the append, start of the log; no record errors, no message, no tags.
_PARTITION_SIZE = 4 + 2 + 8 + 8 + 8 + 3


class PlainProduceRequest:
    """A Produce request.

    ``targets`` has the target of each record batch: a topic's name, its id (``b""`` if it is unknown) and the
    partition. All targets of a topic are adjacent. ``records`` are the buffers of the batches, in the same order.
    ``acks``, ``timeout_ms`` and ``transactional_id`` are those of ``ProduceRequest``.
    """

    __slots__ = ("acks", "records", "targets", "timeout_ms", "transactional_id")

    schema = ProduceRequest.schema

    def __init__(
        self,
        acks: int,
        timeout_ms: int,
        targets: list[tuple[str, bytes, int]],
        records: list[list[Buffer]],
        transactional_id: str | None = None,
    ) -> None:
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.targets = targets
        self.records = records
        self.transactional_id = transactional_id

    def message(self) -> ProduceRequest:
        """Return the same request as a message."""
        topics: list[TopicProduceData] = []
        for (name, topic_id, index), records in zip(self.targets, self.records, strict=True):
            if not topics or topics[-1].name != name:
                topics.append(TopicProduceData(name=name, topic_id=topic_id or ZERO_UUID, partition_data=[]))
            topics[-1].partition_data.append(PartitionProduceData(index=index, records=records))
        return ProduceRequest(
            transactional_id=self.transactional_id, acks=self.acks, timeout_ms=self.timeout_ms, topic_data=topics
        )


class Acknowledged:
    """A Produce response without errors.

    ``batches`` are tuples of topic, partition, the offset of the batch's first record and the time of its append. The
    topic is its name, or from version 13 on its id; the time is -1 unless timestamps are the broker's.
    """

    __slots__ = ("batches", "throttle_time_ms")

    def __init__(self, throttle_time_ms: int, batches: list[tuple[str | bytes, int, int, int]]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.batches = batches


# Compiled only


def encode_plain_request(
    head: bytes, correlation_id_at: int, request: PlainProduceRequest, version: int, correlation_id: int
) -> list[Any] | None:
    """Return the request as a gather list that begins with ``head``, its size and correlation id; ``None``: not
    possible.

    Small buffers, such as the headers of batches, are copied into the bytes between the others: the list of a request
    with one small batch has one element.
    """
    if not _FIRST_VERSION <= version <= _LAST_VERSION or len(head) > _LARGEST_PIECE:
        return None
    if type(request.acks) is not int or not -1 <= request.acks <= 1:
        return None
    if type(request.timeout_ms) is not int or not 0 <= request.timeout_ms <= _LONGEST_FRAME:
        return None
    if not 0 <= correlation_id <= _LONGEST_FRAME:
        return None
    room = cython.declare(cython.uchar[1024])
    begin = cython.cast(cython.p_uchar, room)
    address = begin
    end = begin + (_ROOM - _LARGEST_PIECE)
    memcpy(address, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
    _put_int32(address + correlation_id_at, correlation_id)
    address += PyBytes_GET_SIZE(head)
    acks: int = request.acks
    if request.transactional_id is None:
        address[0] = 0
    else:
        transactional_id: bytes = request.transactional_id.encode()
        size = len(transactional_id)
        if not 0 < size < _LARGEST_SHORT:
            return None
        address[0] = size + 1
        memcpy(address + 1, PyBytes_AS_STRING(transactional_id), size)
        address += size
    address[1] = (acks >> 8) & 0xFF
    address[2] = acks & 0xFF
    address = _put_int32(address + 3, request.timeout_ms)
    targets = request.targets
    count = len(targets)
    if not count or len(request.records) != count:
        return None
    topics = 0
    for number in range(count):
        if not number or _other_topic(targets[number - 1], targets[number]):
            topics += 1
    address = _put_length(address, topics)
    buffers: list[Any] = []
    total = 0
    # Remaining partitions of this topic.
    left = 0
    for number in range(count):
        where = targets[number]
        records = request.records[number]
        if not left:
            if version >= _IDS_FROM:
                name = where[1]
                if len(name) != _ID_SIZE:
                    return None
            else:
                if not where[0].isascii() or len(where[0]) > _LARGEST_PIECE - 16:
                    return None
                name = where[0].encode()
                address = _put_length(address, len(name))
            if address >= end:
                total += _add_piece(buffers, begin, address)
                address = begin
            memcpy(address, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            address += PyBytes_GET_SIZE(name)
            left = 1
            while number + left < count and not _other_topic(where, targets[number + left]):
                left += 1
            address = _put_length(address, left)
        index = where[2]
        if not 0 <= index <= _LONGEST_FRAME:
            return None
        size = 0
        for buffer in records:
            if type(buffer) is bytes:
                size += PyBytes_GET_SIZE(buffer)
            elif type(buffer) is memoryview:
                size += PyMemoryView_GET_BUFFER(buffer).len
            else:
                return None
        if size + total > _LONGEST_FRAME - _ROOM:
            return None
        if address >= end:
            total += _add_piece(buffers, begin, address)
            address = begin
        address = _put_int32(address, index)
        address = _put_length(address, size)
        for buffer in records:
            if type(buffer) is bytes:
                size = PyBytes_GET_SIZE(buffer)
                if size <= _LARGEST_COPIED and size <= end - address:
                    memcpy(address, PyBytes_AS_STRING(buffer), size)
                    address += size
                    continue
            else:
                size = PyMemoryView_GET_BUFFER(buffer).len
            if address > begin:
                total += _add_piece(buffers, begin, address)
                address = begin
            buffers.append(buffer)
            total += size
        address[0] = 0
        address += 1
        left -= 1
        if not left:
            address[0] = 0
            address += 1
    address[0] = 0
    address += 1
    total += _add_piece(buffers, begin, address)
    if total > _LONGEST_FRAME:
        return None
    first = buffers[0]
    _put_int32(cython.cast(cython.p_uchar, PyBytes_AS_STRING(first)), total - _INT32_SIZE)
    return buffers


def decode_acknowledged(frame: bytes, version: int) -> Acknowledged | None:
    """Decode a response; ``None``: not possible, or the response is malformed."""
    address = cython.cast(cython.p_uchar, PyBytes_AS_STRING(frame))
    end = address + PyBytes_GET_SIZE(frame)
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        return None
    # The header's tags, and the number of topics in one byte.
    if end - address < _INT32_SIZE + 2 or address[4] or not 1 <= address[5] <= _LARGEST_SHORT:
        return None
    count = address[5] - 1
    address += _INT32_SIZE + 2
    batches: list[Any] = []
    for _ in range(count):
        size = _ID_SIZE
        if version < _IDS_FROM:
            if end - address < 1 or not 1 <= address[0] <= _LARGEST_SHORT:
                return None
            size = address[0] - 1
            address += 1
        # The name or id, and the number of partitions in one byte.
        if end - address < size + 1 or not 1 <= address[size] <= _LARGEST_SHORT:
            return None
        topic: Any
        if version < _IDS_FROM:
            try:
                topic = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, address), size, cython.NULL)
            except UnicodeDecodeError:
                return None
        else:
            topic = PyBytes_FromStringAndSize(cython.cast(cython.p_char, address), size)
        address += size
        partitions_left = address[0] - 1
        address += 1
        # A partition, and the topic's tags behind the last one.
        while partitions_left and end - address > _PARTITION_SIZE:
            # No error; no record errors, no message, no tags.
            if address[4] or address[5]:
                return None
            if address[_PARTITION_SIZE - 3] != 1 or address[_PARTITION_SIZE - 2] or address[_PARTITION_SIZE - 1]:
                return None
            batches.append(
                (topic, read_integer(address, 4), read_integer(address + 6, 8), read_integer(address + 14, 8))
            )
            address += _PARTITION_SIZE
            partitions_left -= 1
        if partitions_left or end - address < 1 or address[0]:
            return None
        address += 1
    # Bytes behind the tags are ignored.
    if end - address < _INT32_SIZE + 1 or address[_INT32_SIZE]:
        return None
    return Acknowledged(read_integer(address, 4), batches)


def _other_topic(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two targets belong to different topics."""
    return one[0] is not other[0] and one[0] != other[0]


def _add_piece(buffers: list[Any], begin: Any, end: Any) -> int:
    """Append the bytes between two addresses to the gather list, and return their number."""
    buffers.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, begin), end - begin))
    size: int = end - begin
    return size


def _put_int32(address: Any, value: int) -> Any:
    """Write ``value``, which is not negative, and return the address behind it."""
    address[0] = (value >> 24) & 0xFF
    address[1] = (value >> 16) & 0xFF
    address[2] = (value >> 8) & 0xFF
    address[3] = value & 0xFF
    return address + 4


def _put_length(address: Any, length: int) -> Any:
    """Write the length of a compact array, string or records, and return the address behind it."""
    length += 1
    while length > _LARGEST_SHORT:
        address[0] = length & 0x7F | 0x80
        length >>= 7
        address += 1
    address[0] = length
    return address + 1
