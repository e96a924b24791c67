"""The frames of Produce as they nearly always are, written and read in C.

Whoever sends little at a time pays for a request and its response with every record. What is at all out of the ordinary
(a transaction, a hint where a leader has gone, an error of single records, a field that does not fit) is left to the
codec of all messages, whose result for the rest is the same. For compiled modules: without them this holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch
from aioproducer.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    import cython
else:
    from aioproducer.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER
    from cython.cimports.cpython.type import PyType_GenericNew
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy

# Flexible versions, whose lengths are varints and which have tagged fields, up to the last whose fields stand here.
_FIRST_VERSION, _LAST_VERSION = 9, 13
# From here on topics go by id.
_IDS_FROM = 13
_ID_SIZE = 16
# What is between two batches has to fit: a topic's name has at most 249 bytes.
_ROOM = 1024
_LARGEST_PIECE = 300
_LONGEST_FRAME = 2**31 - 1
# A length that takes one byte; lengths are written one larger, 0 stands for null.
_LARGEST_SHORT = 0x7F
_INT32_SIZE = 4
# Index, error code, base offset, time of the append, start of the log; no record errors, no message, no tags.
_PARTITION_SIZE = 4 + 2 + 8 + 8 + 8 + 3
_NO_NAME = TopicProduceResponse().name
_NO_ID = TopicProduceResponse().topic_id


def encode_plain_request(
    head: bytes, correlation_id_at: int, message: ProduceRequest, version: int, correlation_id: int
) -> list[Any] | None:  # compiled only
    """The request as a gather list, ``head`` with its size and correlation id first; ``None``: not by this way."""
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        return None
    if message.transactional_id is not None or len(head) > _LARGEST_PIECE:
        return None
    if type(message.acks) is not int or not -1 <= message.acks <= 1:
        return None
    if type(message.timeout_ms) is not int or not 0 <= message.timeout_ms <= _LONGEST_FRAME:
        return None
    topics = message.topic_data
    if type(topics) is not list or not 0 <= correlation_id <= _LONGEST_FRAME:
        return None
    room = cython.declare(cython.uchar[1024])
    place = cython.cast(cython.p_uchar, room)
    end = place + (_ROOM - _LARGEST_PIECE)
    memcpy(place, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
    _put_int32(place + correlation_id_at, correlation_id)
    place += PyBytes_GET_SIZE(head)
    acks: int = message.acks
    place[0] = 0
    place[1] = (acks >> 8) & 0xFF
    place[2] = acks & 0xFF
    place = _put_int32(place + 3, message.timeout_ms)
    place = _put_length(place, len(topics))
    buffers: list[Any] = []
    total = 0
    for topic in topics:
        if version >= _IDS_FROM:
            name = topic.topic_id
            if type(name) is not bytes or len(name) != _ID_SIZE:
                return None
        else:
            if type(topic.name) is not str or not topic.name.isascii() or len(topic.name) > _LARGEST_PIECE - 16:
                return None
            name = topic.name.encode()
            place = _put_length(place, len(name))
        if place >= end:
            return None
        memcpy(place, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        place += PyBytes_GET_SIZE(name)
        partitions = topic.partition_data
        if type(partitions) is not list:
            return None
        place = _put_length(place, len(partitions))
        for partition in partitions:
            if type(partition.index) is not int or not 0 <= partition.index <= _LONGEST_FRAME:
                return None
            if type(partition.records) is not list or place >= end:
                return None
            size = 0
            for buffer in partition.records:
                if type(buffer) is bytes:
                    size += PyBytes_GET_SIZE(buffer)
                elif type(buffer) is memoryview:
                    size += PyMemoryView_GET_BUFFER(buffer).len
                else:
                    return None
            if size + total > _LONGEST_FRAME - _ROOM:
                return None
            place = _put_int32(place, partition.index)
            place = _put_length(place, size)
            total += size + (place - cython.cast(cython.p_uchar, room))
            buffers.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, room), place - room))
            buffers.extend(partition.records)
            place = cython.cast(cython.p_uchar, room)
            place[0] = 0
            place += 1
        place[0] = 0
        place += 1
    if not buffers:
        return None
    place[0] = 0
    place += 1
    total += place - cython.cast(cython.p_uchar, room)
    buffers.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, room), place - room))
    if total > _LONGEST_FRAME:
        return None
    first = buffers[0]
    _put_int32(cython.cast(cython.p_uchar, PyBytes_AS_STRING(first)), total - _INT32_SIZE)
    return buffers


def decode_plain_response(frame: bytes, version: int) -> tuple[int, ProduceResponse] | None:  # compiled only
    """The correlation id and the response; ``None``: not by this way, or there is something wrong with it."""
    place = cython.cast(cython.p_uchar, PyBytes_AS_STRING(frame))
    end = place + PyBytes_GET_SIZE(frame)
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        return None
    # The header's tags, and a count of topics in one byte.
    if end - place < _INT32_SIZE + 2 or place[4] or not 1 <= place[5] <= _LARGEST_SHORT:
        return None
    correlation_id = _integer(place, 4)
    count = place[5] - 1
    place += _INT32_SIZE + 2
    responses = []
    for _ in range(count):
        topic = PyType_GenericNew(TopicProduceResponse, None, None)
        topic.name = _NO_NAME
        topic.topic_id = _NO_ID
        size = _ID_SIZE
        if version < _IDS_FROM:
            if end - place < 1 or not 1 <= place[0] <= _LARGEST_SHORT:
                return None
            size = place[0] - 1
            place += 1
        # The name or id, and a count of partitions in one byte.
        if end - place < size + 1 or not 1 <= place[size] <= _LARGEST_SHORT:
            return None
        if version < _IDS_FROM:
            try:
                topic.name = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, place), size, cython.NULL)
            except UnicodeDecodeError:
                return None
        else:
            topic.topic_id = PyBytes_FromStringAndSize(cython.cast(cython.p_char, place), size)
        place += size
        partitions_left = place[0] - 1
        place += 1
        partitions = []
        # A partition, and the topic's tags behind the last of them.
        while partitions_left and end - place > _PARTITION_SIZE:
            # No record errors, no message, no tags.
            if place[_PARTITION_SIZE - 3] != 1 or place[_PARTITION_SIZE - 2] or place[_PARTITION_SIZE - 1]:
                return None
            partition = PyType_GenericNew(PartitionProduceResponse, None, None)
            partition.index = _integer(place, 4)
            partition.error_code = _integer(place + 4, 2)
            partition.base_offset = _integer(place + 6, 8)
            partition.log_append_time_ms = _integer(place + 14, 8)
            partition.log_start_offset = _integer(place + 22, 8)
            partition.record_errors = []
            partition.error_message = None
            leader = PyType_GenericNew(LeaderIdAndEpoch, None, None)
            leader.leader_id = -1
            leader.leader_epoch = -1
            partition.current_leader = leader
            partitions.append(partition)
            place += _PARTITION_SIZE
            partitions_left -= 1
        if partitions_left or end - place < 1 or place[0]:
            return None
        place += 1
        topic.partition_responses = partitions
        responses.append(topic)
    if end - place < _INT32_SIZE + 1 or place[_INT32_SIZE]:
        return None
    response = PyType_GenericNew(ProduceResponse, None, None)
    response.responses = responses
    response.throttle_time_ms = _integer(place, 4)
    response.node_endpoints = []
    return correlation_id, response


def _put_int32(place: Any, value: int) -> Any:  # compiled only
    """Write ``value``, which is not negative, and return the address behind it."""
    place[0] = (value >> 24) & 0xFF
    place[1] = (value >> 16) & 0xFF
    place[2] = (value >> 8) & 0xFF
    place[3] = value & 0xFF
    return place + 4


def _put_length(place: Any, length: int) -> Any:  # compiled only
    """Write a length as compact arrays, strings and records have it, and return the address behind it."""
    length += 1
    while length > _LARGEST_SHORT:
        place[0] = length & 0x7F | 0x80
        length >>= 7
        place += 1
    place[0] = length
    return place + 1


def _integer(place: Any, size: int) -> int:  # compiled only
    """The signed number of ``size`` bytes."""
    value = 0
    for here in range(size):
        value = value << 8 | place[here]
    unused = 64 - 8 * size
    number: int = cython.cast(cython.longlong, value << unused) >> unused
    return number
