"""Compiled. Values of the public API: records, headers, a record's metadata, and what cluster metadata contains.

No Python form: ``set_member`` makes ``RecordMetadata.offset`` a member of the C struct, read without a function call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

from aioproducer._common.texts import printable

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.record import OFFSET_IN_RECORD_METADATA, set_member

_NO_PAIRS: tuple[HeaderPair, ...] = ()
# The default of an argument that changes nothing.
_SAME: Any = object()

HeaderPair: TypeAlias = tuple[str, bytes | None]
"""A record header as a plain pair, or a ``RecordHeader``. A key may occur more than once; the order is kept."""


class RecordHeader(NamedTuple):
    """A record header. A plain pair ``("key", b"value")`` is equal to it and works wherever headers are accepted."""

    key: str
    value: bytes | None


class TopicPartition(NamedTuple):
    """One partition of a topic. It sorts by topic, then by partition, and prints as in Kafka: ``clicks-3``.

    For a record that failed before a partition was chosen, the partition is -1 and only the topic is printed.

    An invalid topic name is printed quoted and escaped. It can therefore neither break a log's lines nor fail to be
    encoded.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        text = f"{self.topic}-{self.partition}" if self.partition >= 0 else self.topic
        return text if text.isascii() and text.isprintable() else ascii(text)


@cython.final
@cython.freelist(64)
@cython.no_gc
@cython.cclass
class RecordMetadata:
    """Topic, partition, offset and timestamp of an acknowledged record.

    With ``acks=0``, ``offset`` and ``timestamp_ms`` are None: there is no response. ``offset`` is also None if a broker
    acknowledged a duplicate whose offset it no longer knows. ``timestamp_ms`` is in milliseconds since the epoch: the
    record's own timestamp, or the broker's if the topic has ``message.timestamp.type=LogAppendTime``.

    Immutable. It behaves like a tuple of the four, in the order of the arguments: it can be unpacked, indexed, hashed
    and compared with one.
    """

    __slots__ = ("_offset", "_timestamp_ms", "_topic_partition")
    __match_args__ = ("topic", "partition", "offset", "timestamp_ms")

    _topic_partition: TopicPartition
    _offset: int | None
    # -1 stands for None: every awaited record creates one of these, and a plain integer costs least.
    _timestamp_ms: int

    def __init__(self, topic: str, partition: int, offset: int | None, timestamp_ms: int | None) -> None:
        self._topic_partition = TopicPartition(topic, partition)
        self._offset = offset
        self._timestamp_ms = -1 if timestamp_ms is None else timestamp_ms

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the partition."""
        return self._topic_partition

    @property
    def topic(self) -> str:
        return self._topic_partition[0]

    @property
    def partition(self) -> int:
        return self._topic_partition[1]

    @property
    def offset(self) -> int | None:
        return self._offset

    @property
    def timestamp_ms(self) -> int | None:
        return None if self._timestamp_ms < 0 else self._timestamp_ms

    def _as_tuple(self) -> tuple[str, int, int | None, int | None]:
        return (*self._topic_partition, self.offset, self.timestamp_ms)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._as_tuple())

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: Any) -> Any:
        return self._as_tuple()[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RecordMetadata):
            return self._as_tuple() == other._as_tuple()
        return self._as_tuple() == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._as_tuple())

    def __reduce__(self) -> tuple[type[RecordMetadata], tuple[str, int, int | None, int | None]]:
        return RecordMetadata, self._as_tuple()

    def __repr__(self) -> str:
        return (
            f"RecordMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms})"
        )


def new_record_metadata(topic_partition: TopicPartition, offset: int, timestamp_ms: int) -> RecordMetadata:
    """Create a ``RecordMetadata`` without the cost of calling the class; -1 stands for None."""
    metadata: RecordMetadata = RecordMetadata.__new__(RecordMetadata)
    metadata._topic_partition = topic_partition
    metadata._offset = None if offset < 0 else offset
    metadata._timestamp_ms = timestamp_ms
    return metadata


if cython.compiled:
    # Most callers that await a record read the offset. A property's function would cost as much as the await.
    set_member(RecordMetadata, b"offset", OFFSET_IN_RECORD_METADATA, b"Offset of the record in its partition, or None.")


class Node(NamedTuple):
    """A broker as listed in the cluster's metadata. A negative ``id`` means a bootstrap address of unknown id."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        rack = "" if self.rack is None else f" (rack {printable(self.rack)})"
        host = printable(f"[{self.host}]" if ":" in self.host else self.host)
        return f"{host}:{self.port} (id {self.id}){rack}"


class PartitionInfo(NamedTuple):
    """One partition as described in the cluster's metadata.

    ``leader`` is None while the partition has no leader. The replica tuples contain node ids: a replica may be on a
    broker that metadata does not list at the moment.
    """

    topic: str
    partition: int
    leader: Node | None
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


def header_list(headers: Iterable[tuple[str, bytes | bytearray | memoryview | None]]) -> list[HeaderPair]:
    """Return headers of any iterable as a new list of ``(str, bytes | None)``; bytearrays and memoryviews are copied.

    Raises:
        TypeError: ``headers`` is a mapping or no iterable of pairs, or a key or value has another type.
    """
    if type(headers) is not list and type(headers) is not tuple:
        is_data = isinstance(headers, str | bytes | bytearray | memoryview)
        if is_data or not isinstance(headers, Iterable) or hasattr(headers, "keys"):
            raise not_headers(headers)
    found: list[HeaderPair] = []
    for header in headers:
        found.append(header if _is_plain(header) else _normalise_header(header))
    return found


def normalise_in_place(headers: list[Any]) -> None:
    """Make each header of a list that user code has changed a ``(str, bytes | None)``.

    Raises:
        TypeError: a header is no pair of these types, bytearray or memoryview.
    """
    for index in range(len(headers)):
        header = headers[index]
        if not _is_plain(header):
            headers[index] = _normalise_header(header)


def normalise_headers(headers: Iterable[tuple[str, bytes | bytearray | memoryview | None]]) -> tuple[HeaderPair, ...]:
    """Return headers of any iterable as a tuple of ``(str, bytes | None)``; see `header_list`."""
    if type(headers) is tuple:
        for header in headers:
            if not _is_plain(header):
                break
        else:
            return headers
    return tuple(header_list(headers))


def _is_plain(header: object) -> TypeGuard[HeaderPair]:
    """Return whether this is a tuple of a str and bytes or None: nothing in it can change, so it need not be copied."""
    if type(header) is not tuple or len(header) != 2:
        return False
    value = header[1]
    return type(header[0]) is str and (value is None or type(value) is bytes)


def _normalise_header(header: object) -> HeaderPair:
    if isinstance(header, tuple | list) and len(header) == 2:
        key, value = header
        if isinstance(key, str) and (value is None or isinstance(value, bytes)):
            return key, value
    key, value = check_header(header)
    return key, None if value is None else bytes(value)


def not_headers(headers: object) -> TypeError:
    """Return the error for an object that cannot be the headers of a record."""
    remedy = "; of a mapping, pass its items()" if hasattr(headers, "keys") else ""
    return TypeError(f"headers must be a sequence of (str, bytes or None) pairs, not {_type_name(headers)}{remedy}")


def check_header(header: object) -> tuple[str, bytes | bytearray | memoryview | None]:
    """Return the header as a pair.

    Raises:
        TypeError: it is no pair of a str and bytes, bytearray, memoryview or None.
    """
    if not isinstance(header, tuple | list) or len(header) != 2:
        raise TypeError(f"a header must be a (str, bytes or None) pair, not {header!r}")
    key, value = header
    if not isinstance(key, str):
        raise TypeError(f"a header's key must be str, not {_type_name(key)}")
    if value is not None and not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"the value of header {key!r} must be bytes or None, not {_type_name(value)}")
    return key, value


def _type_name(value: object) -> str:
    return type(value).__name__


def _check_not_negative(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int or None, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} must be at least 0, not {value}")


@cython.freelist(16)
@cython.cclass
class Record:
    """A record to send (Kafka's ``ProducerRecord``): an argument of ``Producer.send_record`` and of interceptors.

    ``value`` and ``key`` are the caller's objects, before any serializer; ``value=None`` is a tombstone. With
    ``partition=None`` the partitioner chooses. ``timestamp_ms`` is in milliseconds since the epoch; ``None`` stands for
    the time of the send. ``headers`` accepts any iterable of pairs and stores a tuple of ``(str, bytes | None)``.

    Immutable; `replace` returns a changed copy. Records are equal if all their values are.

    Raises:
        TypeError: the topic is not a str, partition or timestamp are no int, or the headers are malformed.
        ValueError: the topic is empty, or partition or timestamp are negative.
    """

    __slots__ = ("headers", "key", "partition", "timestamp_ms", "topic", "value")
    __match_args__ = ("topic", "value", "key", "partition", "timestamp_ms", "headers")

    topic: str
    value: Any
    key: Any
    partition: int | None
    timestamp_ms: int | None
    headers: tuple[HeaderPair, ...]

    def __init__(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | bytearray | memoryview | None]] = (),
    ) -> None:
        self._fill(topic, value, key, partition, timestamp_ms, headers)

    def _fill(
        self, topic: str, value: object, key: object, partition: int | None, timestamp_ms: int | None, headers: Any
    ) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        if not topic:
            raise ValueError("topic must not be empty")
        if partition is not None:
            _check_not_negative("partition", partition)
        if timestamp_ms is not None:
            _check_not_negative("timestamp_ms", timestamp_ms)
        pairs = _NO_PAIRS if type(headers) is tuple and not headers else normalise_headers(headers)
        if cython.compiled:
            self.topic = topic
            self.value = value
            self.key = key
            self.partition = partition
            self.timestamp_ms = timestamp_ms
            self.headers = pairs
            return
        for name, given in zip(self.__match_args__, (topic, value, key, partition, timestamp_ms, pairs), strict=True):
            object.__setattr__(self, name, given)

    def replace(
        self,
        *,
        topic: Any = _SAME,
        value: Any = _SAME,
        key: Any = _SAME,
        partition: Any = _SAME,
        timestamp_ms: Any = _SAME,
        headers: Any = _SAME,
    ) -> Record:
        """Return a copy with some values replaced, as ``record.replace(topic="other")``; also by ``copy.replace``.

        Raises:
            TypeError, ValueError: as for ``Record``.
        """
        if topic is _SAME:
            topic = self.topic
        if value is _SAME:
            value = self.value
        if key is _SAME:
            key = self.key
        if partition is _SAME:
            partition = self.partition
        if timestamp_ms is _SAME:
            timestamp_ms = self.timestamp_ms
        if headers is _SAME:
            headers = self.headers
        if type(self) is Record:
            return new_record(topic, value, key, partition, timestamp_ms, headers)
        return type(self)(topic, value, key, partition, timestamp_ms, headers)

    def __replace__(self, **changes: Any) -> Record:
        return self.replace(**changes)

    def _as_tuple(self) -> tuple[Any, ...]:
        return self.topic, self.value, self.key, self.partition, self.timestamp_ms, self.headers

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Record)
        return self._as_tuple() == other._as_tuple()

    def __hash__(self) -> int:
        return hash(self._as_tuple())

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return type(self), self._as_tuple()

    def __repr__(self) -> str:
        shown = ", ".join(
            [f"{name}={value!r}" for name, value in zip(self.__match_args__, self._as_tuple(), strict=True)]
        )
        return f"{type(self).__name__}({shown})"


def new_record(
    topic: str, value: object, key: object, partition: int | None, timestamp_ms: int | None, headers: Any
) -> Record:
    """Create a ``Record`` without the cost of calling the class."""
    record: Record = Record.__new__(Record)
    record._fill(topic, value, key, partition, timestamp_ms, headers)
    return record


if not cython.compiled:

    def _refuse(record: Record, name: str, value: object = None) -> None:
        raise AttributeError(f"a Record is immutable: replace({name}=...) returns a changed copy")

    # Compiled, the values are members that cannot be set.
    Record.__setattr__ = Record.__delattr__ = _refuse  # type: ignore[method-assign,assignment]
