"""Decoders of the record format: no bytes crash them, and both builds give the same results and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.wire import murmur2, record, record_batch, record_survey, varint
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, SimpleRecord, encode_batch
from tests.fuzz import shapes
from tests.fuzz.sources import uncompiled

positions = st.one_of(st.integers(-2, 80), st.sampled_from([2**31, 2**62, 2**63 - 1]))


def _outcome(function: Callable[[], Any]) -> Any:
    """Return the result of a call: a value, or the name and text of its exception."""
    try:
        return function()
    except Exception as error:
        return type(error).__name__, str(error)


def _both(module: Any, call: Callable[[Any], Any]) -> Any:
    """Return the result of a call on a module, after comparing it with that on its source."""
    compiled = _outcome(lambda: call(module))
    assert _outcome(lambda: call(uncompiled(module.__name__))) == compiled
    return compiled


@given(st.binary(max_size=14) | st.binary(max_size=60).map(lambda data: b"\xff" * 9 + data), positions, shapes.shapes)
def test_both_builds_read_integers_alike(data: bytes, position: int, shape: Callable[[bytes], Any]) -> None:
    for name in ("decode_varint", "decode_varlong", "decode_unsigned_varint"):
        outcome = _both(varint, lambda module, name=name: getattr(module, name)(bytes(data), position))
        if isinstance(outcome[0], str):
            assert outcome[0] == ProtocolError.__name__
        assert _both(varint, lambda module, name=name: getattr(module, name)(bytearray(data), position)) == outcome


@given(st.integers() | st.sampled_from([-(2**31), 2**31 - 1, 2**31, -(2**63), 2**63 - 1, 2**63, 2**64]))
def test_both_builds_write_integers_alike(value: int) -> None:
    for name in ("encode_varint", "encode_varlong", "encode_unsigned_varint"):
        outcome = _both(varint, lambda module, name=name: getattr(module, name)(value))
        assert isinstance(outcome, bytes) or outcome[0] == OverflowError.__name__


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    shapes.nullable,
    shapes.nullable,
    shapes.headers,
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3), st.integers(0, 3)), max_size=3),
)
def test_both_builds_encode_and_decode_records_alike(
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    changes: list[tuple[int, bytes, int]],
) -> None:
    encoded = _both(record, lambda module: module.encode_record(offset, timestamp, key, value, headers))
    assert _both(record, lambda module: module.decode_record(encoded, 0)) == (
        offset,
        timestamp,
        key,
        value,
        headers,
        len(encoded),
    )
    changed = bytearray(encoded)
    for place, inserted, removed in changes:
        changed[place : place + removed] = inserted
    outcome = _both(record, lambda module: module.decode_record(bytes(changed), 0))
    assert len(outcome) == 6 or outcome[0] == ProtocolError.__name__


@given(st.binary(max_size=60), positions)
def test_both_builds_decode_any_bytes_alike(data: bytes, position: int) -> None:
    outcome = _both(record, lambda module: module.decode_record(data, position))
    assert len(outcome) == 6 or outcome[0] == ProtocolError.__name__


def _resealed(data: bytearray) -> bytes:
    """Return the batch with a valid checksum, so that readers parse the bytes after it."""
    if len(data) >= BATCH_HEADER_SIZE:
        data[17:21] = crc32c([bytes(data[21:])]).to_bytes(4, "big")
    return bytes(data)


def _read(module: Any, data: bytes) -> list[Any]:
    read: list[Any] = []
    for batch in module.iter_batches(data):
        read.append(_outcome(batch.validate))
        read.append(_outcome(lambda batch=batch: [tuple(each) for each in batch.records()]))
    return read


@given(
    st.lists(shapes.records, min_size=1, max_size=6),
    st.sampled_from(["none", "gzip", "lz4", "zstd"]),
    st.lists(st.tuples(st.integers(0, 150), st.binary(max_size=4), st.integers(0, 4)), max_size=3),
    st.booleans(),
)
def test_both_builds_read_batches_alike(
    sent: list[shapes.Sent], codec: str, changes: list[tuple[int, bytes, int]], sealed: bool
) -> None:
    whole = b"".join(
        encode_batch(
            [SimpleRecord(each.timestamp_ms, each.key, each.value, each.headers) for each in sent],
            compression_type=codec,
        )
    )
    data = bytearray(whole)
    for place, inserted, removed in changes:
        data[place : place + removed] = inserted
    changed = _resealed(data) if sealed else bytes(data)
    outcome = _both(record_batch, lambda module: _read(module, changed))
    if not changes:
        assert outcome == [None, [(index, sent[index].timestamp_ms, 0, *sent[index][:3]) for index in range(len(sent))]]


@given(
    st.lists(
        st.tuples(st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), shapes.nullable),
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=4), st.integers(0, 4)), max_size=3),
    st.integers(-1, 5) | st.just(None),
    st.sampled_from([0, -1, 1_700_000_000_000, 2**63 - 1, -(2**63)]),
    shapes.shapes,
)
def test_both_builds_survey_records_alike(
    sent: list[tuple[int, int, bytes | None]],
    changes: list[tuple[int, bytes, int]],
    count: int | None,
    base_timestamp: int,
    shape: Callable[[bytes], Any],
) -> None:
    data = bytearray().join(
        record.encode_record(index + off, timestamp, key, b"value", [("name", None)] * (index % 2))
        for index, (off, timestamp, key) in enumerate(sent)
    )
    for place, inserted, removed in changes:
        data[place : place + removed] = inserted
    stated = len(sent) if count is None else count
    outcome = _both(record_survey, lambda module: module.survey_records(shape(bytes(data)), stated, base_timestamp))
    if not changes and count is None:
        times = [record_survey.as_int64(base_timestamp + timestamp) for _, timestamp, _ in sent]
        assert outcome == (
            min([time for time in times if time != -1], default=2**63 - 1),
            max([-1, *times]),
            not any(off for off, _, _ in sent),
            all(key is not None for _, _, key in sent),
        )
    else:
        assert len(outcome) == 4 or outcome[0] == ProtocolError.__name__


@given(shapes.contents, shapes.shapes, st.integers(1, 2**31 - 1))
def test_both_builds_hash_keys_alike(data: bytes, shape: Callable[[bytes], Any], partitions: int) -> None:
    expected = uncompiled("aioproducer.wire.murmur2").murmur2(data)
    assert murmur2.murmur2(shape(data)) == expected
    assert murmur2.partition_for_key(shape(data), partitions) == (expected & 0x7FFFFFFF) % partitions
