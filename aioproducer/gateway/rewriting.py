"""Changes addresses, and lists of versions, in bytes in memory; every other byte stays.

Each function takes a position in ``memory``, and appends the new bytes from there up to the position that it returns to
``pieces``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from aioproducer.errors import ProtocolError
from aioproducer.gateway.versions import NEWEST_VERSIONS, SASL_APIS
from aioproducer.gateway.walking import Step, steps_of, walk, walk_length, walk_over, walk_tags, walk_varint
from aioproducer.protocol import Buffer, Message
from aioproducer.wire.varint import encode_unsigned_varint

Translate: TypeAlias = Callable[[str, int], tuple[str, int]]

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_API_VERSION: Final = struct.Struct(">hhh")
_LONGEST_STRING: Final = 2**15 - 1

_PADDING_TAGS: Final = (16_382, 16_383)
"""Unused tags, far from those of Kafka; readers skip tags that they do not know (KIP-482)."""
_SMALLEST_PADDING: Final = 3
"""Two bytes of tag, one of size."""


def rewrite_address(
    memory: memoryview,
    position: int,
    flexible: bool,
    translate: Translate,
    pieces: list[Buffer],
) -> int:
    """Rewrite a ``host`` and the ``port`` behind it."""
    length, start = walk_over(walk_length(None if flexible else _INT16), memory, position)
    end = start + max(length, 0)
    behind = end + _INT32.size
    if behind > len(memory):
        raise ProtocolError("the message ends inside an address")
    try:
        host = str(memory[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a host name is not UTF-8: {bytes(memory[start:end])!r}") from error
    (port,) = _INT32.unpack_from(memory, end)
    told = translate(host, port)
    if told == (host, port):
        pieces.append(memory[position:behind])
        return behind
    name = told[0].encode()
    if len(name) > _LONGEST_STRING:
        raise ProtocolError(f"a host name of {len(name)} bytes does not fit a string")
    pieces.append(encode_unsigned_varint(len(name) + 1) if flexible else _INT16.pack(len(name)))
    pieces.append(name + _INT32.pack(told[1]))
    return behind


def rewrite_array(
    memory: memoryview,
    position: int,
    struct_class: type[Message],
    version: int,
    flexible: bool,
    translate: Translate,
    pieces: list[Buffer],
) -> int:
    """Rewrite an array of structs with ``host`` and ``port``."""
    count, behind = walk_over(walk_length(None if flexible else _INT32), memory, position)
    pieces.append(memory[position:behind])
    position = behind
    before = steps_of(struct_class, version, flexible, until="host")
    after = steps_of(struct_class, version, flexible, after="port")
    for _ in range(count):
        start = position
        position = _skip(before, memory, position)
        pieces.append(memory[start:position])
        position = rewrite_address(memory, position, flexible, translate, pieces)
        start = position
        position = _skip(after, memory, position)
        pieces.append(memory[start:position])
    return position


def _skip(steps: Sequence[Step], memory: memoryview, position: int) -> int:
    """Return the position behind ``steps``."""
    for step in steps:
        position = position + step if isinstance(step, int) else walk_over(step(), memory, position)[1]
    return position


def rewrite_tags(
    memory: memoryview, position: int, tag: int, struct_class: type[Message], version: int, translate: Translate,
    pieces: list[Buffer],
) -> int:  # fmt: skip
    """Rewrite tagged fields, of which the one with ``tag`` is an array of structs with ``host`` and ``port``."""
    count, behind = walk_over(walk_varint(), memory, position)
    pieces.append(memory[position:behind])
    position = behind
    for _ in range(count):
        start = position
        found, position = walk_over(walk_varint(), memory, position)
        behind_tag = position
        size, position = walk_over(walk_varint(), memory, position)
        if position + size > len(memory):
            raise ProtocolError("the message ends inside a tagged field")
        if found == tag:
            value: list[Buffer] = []
            end = rewrite_array(memory[: position + size], position, struct_class, version, True, translate, value)
            pieces.append(memory[start:behind_tag])
            pieces.append(encode_unsigned_varint(sum(map(len, value)) + position + size - end))
            pieces += value
            pieces.append(memory[end : position + size])
        else:
            pieces.append(memory[start : position + size])
        position += size
    return position


def cut_versions(memory: memoryview, position: int, flexible: bool, sasl_passes: bool, pieces: list[Buffer]) -> int:
    """Remove the requests and versions that are not in ``NEWEST_VERSIONS`` from the array of an ApiVersions response.

    Without ``sasl_passes`` the SASL requests are removed too.
    """
    count, position = walk_over(walk_length(None if flexible else _INT32), memory, position)
    kept: list[Buffer] = []
    left = 0
    for _ in range(count):
        start = position
        _, position = walk_over(walk([_API_VERSION.size]), memory, position)
        tags_at = position
        if flexible:
            _, position = walk_over(walk_tags(), memory, position)
        api_key, oldest, newest = _API_VERSION.unpack_from(memory, start)
        newest = min(newest, NEWEST_VERSIONS.get(api_key, -1))
        if newest >= oldest and (sasl_passes or api_key not in SASL_APIS):
            left += 1
            kept += [_API_VERSION.pack(api_key, oldest, newest), memory[tags_at:position]]
    pieces.append(encode_unsigned_varint(left + 1) if flexible else _INT32.pack(left))
    pieces += kept
    return position


def without_tag(memory: memoryview, tag: int) -> bytes:
    """Return the tagged fields at the start of ``memory`` without ``tag``, and everything behind them."""
    count, position = walk_over(walk_varint(), memory, 0)
    kept: list[Buffer] = []
    left = 0
    for _ in range(count):
        start = position
        found, position = walk_over(walk_varint(), memory, position)
        size, position = walk_over(walk_varint(), memory, position)
        position += size
        if found != tag:
            left += 1
            kept.append(memory[start:position])
    return b"".join([encode_unsigned_varint(left), *kept, memory[position:]])


def padded(memory: memoryview, tags_at: int, size: int) -> bytes | None:
    """Extend ``memory``, with tagged fields from ``tags_at`` on, to ``size`` bytes by unused tags.

    Returns ``None`` if it is too long already, or there is no room for a tag.
    """
    missing = size - len(memory)
    if missing == 0:
        return bytes(memory)
    count, position = walk_over(walk_varint(), memory, tags_at)
    for pads in (1, 2):
        # The count of the tags may become a byte longer.
        counted = encode_unsigned_varint(count + pads)
        room = missing - (len(counted) - (position - tags_at))
        padding = _padding(room, pads)
        if padding is not None:
            end = position
            for _ in range(count):
                _, end = walk_over(walk_varint(), memory, end)
                length, end = walk_over(walk_varint(), memory, end)
                end += length
            return b"".join([memory[:tags_at], counted, memory[position:end], padding, memory[end:]])
    return None


def _padding(room: int, pads: int) -> bytes | None:
    """Return ``pads`` tagged fields that fill ``room`` bytes; ``None`` if that is impossible."""
    if pads == 2:
        first = _padding(_SMALLEST_PADDING, 1)
        second = _padding(room - _SMALLEST_PADDING, 1)
        return None if first is None or second is None else _tag_of(first, 0) + second
    for digits in range(1, 6):
        size = room - 2 - digits
        if size >= 0 and len(encode_unsigned_varint(size)) == digits:
            return encode_unsigned_varint(_PADDING_TAGS[1]) + encode_unsigned_varint(size) + bytes(size)
    return None


def _tag_of(field: bytes, index: int) -> bytes:
    return encode_unsigned_varint(_PADDING_TAGS[index]) + field[2:]
