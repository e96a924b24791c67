"""Records, record metadata, topic partitions and nodes."""

from __future__ import annotations

import ast
import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer import metrics, partitioner, record
from aioproducer.record import Node, PartitionInfo, Record, RecordMetadata, TopicPartition, normalise_headers


def test_only_the_topic_is_required() -> None:
    assert repr(Record("clicks")) == (
        "Record(topic='clicks', value=None, key=None, partition=None, timestamp_ms=None, headers=())"
    )


def test_positions_follow_the_documented_order() -> None:
    positional = Record("clicks", b"v", b"k", 3, 1_700_000_000_000, [("h", b"1")])
    assert positional == Record(
        topic="clicks", value=b"v", key=b"k", partition=3, timestamp_ms=1_700_000_000_000, headers=(("h", b"1"),)
    )


def test_a_record_is_immutable_and_replace_returns_a_changed_copy() -> None:
    original = Record("clicks", b"v", headers=[("h", b"1")])
    for name in Record.__match_args__:
        with pytest.raises(AttributeError):
            setattr(original, name, "other")
        with pytest.raises(AttributeError):
            delattr(original, name)
    changed = original.replace(topic="other", headers=[*original.headers, ("i", bytearray(b"2"))])
    assert original == Record("clicks", b"v", headers=[("h", b"1")])
    assert changed == Record("other", b"v", headers=[("h", b"1"), ("i", b"2")])
    assert original.replace(value=None, key=5, partition=1, timestamp_ms=2) == Record(
        "clicks", None, 5, 1, 2, [("h", b"1")]
    )
    with pytest.raises(ValueError, match="partition must be at least 0"):
        original.replace(partition=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'topics'"):
        original.replace(topics="other")


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is new in Python 3.13")
def test_copy_replace_changes_a_record() -> None:
    assert copy.replace(Record("clicks"), value=1) == Record("clicks", 1)  # type: ignore[attr-defined,unused-ignore]


def test_records_are_equal_and_hashed_by_their_values_and_class() -> None:
    class Other(Record):
        pass

    assert Record("t", 1) == Record("t", 1) != Record("t", 2)
    assert hash(Record("t", 1)) == hash(Record("t", 1))
    assert Record("t") != Other("t")
    assert Record("t") != ("t", None, None, None, None, ())
    assert type(Other("t", 1).replace(value=2)) is Other
    match Record("t", b"v", headers=[("h", None)]):
        case Record("t", value, headers=((name, None),)):
            assert (value, name) == (b"v", "h")
        case _:
            pytest.fail("a record is matched by position and by name")


def test_a_record_survives_pickling() -> None:
    original = Record("clicks", b"v", b"k", 1, 5, [("h", None)])
    assert pickle.loads(pickle.dumps(original)) == original


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Record(""), ValueError, "topic must not be empty"),
        (lambda: Record(None), TypeError, "topic must be str, not NoneType"),
        (lambda: Record(b"clicks"), TypeError, "topic must be str, not bytes"),
        (lambda: Record("t", partition=-1), ValueError, "partition must be at least 0, not -1"),
        (lambda: Record("t", partition="1"), TypeError, "partition must be int or None, not str"),
        (lambda: Record("t", partition=True), TypeError, "partition must be int or None, not bool"),
        (lambda: Record("t", timestamp_ms=-5), ValueError, "timestamp_ms must be at least 0, not -5"),
        (lambda: Record("t", timestamp_ms=1.5), TypeError, "timestamp_ms must be int or None, not float"),
        (lambda: Record("t", headers={"a": b"b"}), TypeError, r"of a mapping, pass its items\(\)"),
        (lambda: Record("t", headers=b"ab"), TypeError, "headers must be a sequence of .* pairs, not bytes"),
        (lambda: Record("t", headers=None), TypeError, "headers must be a sequence of .* pairs, not NoneType"),
        (lambda: Record("t", headers=["ab"]), TypeError, "a header must be a .* pair, not 'ab'"),
        (lambda: Record("t", headers=[("a", b"b", b"c")]), TypeError, "a header must be a .* pair"),
        (lambda: Record("t", headers=[(b"a", b"b")]), TypeError, "a header's key must be str, not bytes"),
        (lambda: Record("t", headers=[("a", "b")]), TypeError, "value of header 'a' must be bytes or None, not str"),
    ],
)
def test_a_malformed_record_is_rejected_with_the_reason(
    make: Callable[[], Record], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


@given(st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=5))
def test_headers_keep_order_and_repeats(headers: list[tuple[str, bytes | None]]) -> None:
    assert normalise_headers(headers) == tuple(headers)
    assert normalise_headers(iter(headers)) == tuple(headers)


def test_header_bytes_are_copied() -> None:
    mutable = bytearray(b"ab")
    headers = normalise_headers([("a", mutable), ("b", memoryview(mutable)[1:]), ["c", None]])
    mutable[:] = b"xx"
    assert headers == (("a", b"ab"), ("b", b"b"), ("c", None))


def test_topic_partitions_sort_hash_and_print_like_those_of_kafka() -> None:
    places = {TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2), TopicPartition("a", 2)}
    assert sorted(places) == [("a", 2), ("a", 10), ("b", 0)]
    assert [str(place) for place in sorted(places)] == ["a-2", "a-10", "b-0"]


def test_record_metadata_names_its_topic_partition() -> None:
    metadata = RecordMetadata("clicks", 3, None, None)
    assert metadata.topic_partition == TopicPartition("clicks", 3)


def test_nodes_print_their_address_and_id() -> None:
    assert str(Node(1, "broker", 9092)) == "broker:9092 (id 1)"
    assert str(Node(1, "broker", 9092, "a")) == "broker:9092 (id 1) (rack a)"
    assert PartitionInfo("clicks", 0, None).replicas == ()


@pytest.mark.parametrize("module", [record, partitioner, metrics])
def test_records_need_no_event_loop_and_no_clock(module: ModuleType) -> None:
    # The source, in any build under test.
    assert module.__file__ is not None
    tree = ast.parse((Path(module.__file__).parent / f"{module.__name__.rpartition('.')[2]}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported
    assert not {name.partition(".")[0] for name in imported} & {"asyncio", "socket", "threading", "time", "datetime"}


def test_invalid_topic_names_are_escaped_in_str() -> None:
    assert str(TopicPartition("clicks\n", 3)) == r"'clicks\n-3'"
    assert str(TopicPartition("\ud800", 3)) == r"'\ud800-3'"


def test_without_a_partition_only_the_topic_is_printed() -> None:
    """It was once printed as clicks--1."""
    assert str(TopicPartition("clicks", -1)) == "clicks"
