"""Record batches for scenarios, good ones and bad ones."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    SimpleRecord,
    encode_batch,
)

TIMESTAMP = 1_700_000_000_000
"""A fixed time of creation, in milliseconds; each record is one millisecond later than the one before."""


def batch(
    values: int | Sequence[bytes | None] = 1,
    *,
    key: bytes | None = b"k",
    timestamp: int = TIMESTAMP,
    step_ms: int = 1,
    compression_type: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    transactional: bool = False,
    control: bool = False,
    size: int = 0,
) -> bytes:
    """Return a batch of ``values``; for a number, that many short values, padded to ``size`` bytes."""
    found = [b"value-%d" % index for index in range(values)] if isinstance(values, int) else list(values)
    records = [
        SimpleRecord(timestamp + index * step_ms, key, value if value is None else value.ljust(size, b"x"))
        for index, value in enumerate(found)
    ]
    return b"".join(
        encode_batch(
            records,
            compression_type=compression_type,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            base_offset=base_offset,
            transactional=transactional,
            control=control,
        )
    )


def patched(data: bytes, offset: int, form: str, value: int, *, checksum: bool = True) -> bytes:
    """Return ``data`` with the field at ``offset`` replaced, and by default with a new checksum."""
    changed = bytearray(data)
    struct.pack_into(form, changed, offset, value)
    if checksum:
        struct.pack_into(">I", changed, CRC_OFFSET, crc32c((bytes(changed[ATTRIBUTES_OFFSET:]),)))
    return bytes(changed)


def old_message(magic: int, value: bytes = b"old") -> bytes:
    """Return a message of format version 0 or 1, from before Kafka 0.11."""
    body = struct.pack(">bb", magic, 0)
    if magic == 1:
        body += struct.pack(">q", TIMESTAMP)
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message
