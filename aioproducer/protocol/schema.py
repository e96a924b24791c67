"""Declarations of messages: one class per message, one line per field, for all of its versions at once.

::

    class MetadataRequestTopic(Struct):
        topic_id: bytes = uuid("10+", ignorable=True)
        name: str | None = string("0+", nullable="10+")

    class MetadataRequest(Request[MetadataResponse], api_key=3, versions="0-13", flexible="9+"):
        topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
        allow_auto_topic_creation: bool = boolean("4+", default=True)

The words are those of Kafka's message definitions. ``versions`` are the versions of the message that have a field,
``nullable`` those in which it may be ``None``. ``tag`` makes it a tagged field (KIP-482) wherever it exists. The value
of an ``ignorable`` field is dropped silently in versions without the field. Versions are written ``"2+"``, ``"2-5"``,
``"2"`` or ``"none"``.

A message is an ordinary object: its constructor takes its fields by keyword, each has a default, and two are equal when
their fields are. ``aioproducer.protocol.codec`` generates its codec when a version is first used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    overload,
)

Buffer: TypeAlias = bytes | bytearray | memoryview

Records: TypeAlias = Buffer | Sequence[Buffer] | None
"""Record batches: one buffer, or several that follow each other. Written by reference; read as a view of the frame."""

ZERO_UUID: Final = bytes(16)
"""The id that stands for "no id": the topic id if only the topic's name is known."""

NO_API_KEY: Final = -1

LATEST: Final = 2**15 - 1
"""The last version of an open range (``"3+"``): versions are 16-bit integers."""

T = TypeVar("T")
M = TypeVar("M", bound="Message")


@functools.cache
def parse_versions(text: str) -> range:
    """Return the versions that ``text`` stands for: ``"2+"``, ``"2-5"``, ``"2"`` or ``"none"``.

    Raises:
        ValueError: ``text`` is none of these.
    """
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), LATEST + 1)
    lowest, dash, highest = text.partition("-")
    return range(int(lowest), int(highest if dash else lowest) + 1)


class Scalar(Generic[T]):
    """A type of single values: ``name`` is Kafka's, ``struct_format`` is ``struct``'s if its size is fixed."""

    __slots__ = ("name", "struct_format")

    def __init__(self, name: str, struct_format: str = "") -> None:
        self.name: Final = name
        self.struct_format: Final = struct_format

    def __repr__(self) -> str:
        return self.name.upper()


BOOLEAN: Final = Scalar[bool]("bool", "?")
INT8: Final = Scalar[int]("int8", "b")
INT16: Final = Scalar[int]("int16", "h")
UINT16: Final = Scalar[int]("uint16", "H")
INT32: Final = Scalar[int]("int32", "i")
INT64: Final = Scalar[int]("int64", "q")
UUID: Final = Scalar[bytes]("uuid", "16s")
STRING: Final = Scalar[str]("string")
BYTES: Final = Scalar[bytes]("bytes")
RECORDS: Final = Scalar[Records]("records")

Element: TypeAlias = "Scalar[bool] | Scalar[int] | Scalar[bytes] | Scalar[str] | Scalar[Records] | type[Message]"


class Field:
    """One field of a message, as declared."""

    __slots__ = (
        "default",
        "element",
        "flexible",
        "ignorable",
        "is_array",
        "name",
        "nullable",
        "tag",
        "versions",
    )

    def __init__(
        self,
        element: Element,
        *,
        is_array: bool,
        versions: range,
        nullable: range,
        flexible: bool,
        tag: int | None,
        ignorable: bool,
        default: object,
    ) -> None:
        self.name: str = ""
        """Set when the class is created: a declaration has no access to it."""
        self.element: Final = element
        self.is_array: Final = is_array
        self.versions: Final = versions
        self.nullable: Final = nullable
        self.flexible: Final = flexible
        """``False`` for the only field that keeps its old encoding in flexible versions: the client id of the request
        header."""
        self.tag: Final = tag
        self.ignorable: Final = ignorable
        self.default: Final = default
        """The default if it is immutable, ``...`` if ``make_default`` creates a list or struct."""

    def of_element(self) -> Field:
        """Return the field of an array's elements."""
        element = Field(
            self.element,
            is_array=False,
            versions=self.versions,
            nullable=range(0),
            flexible=self.flexible,
            tag=self.tag,
            ignorable=self.ignorable,
            default=self.default,
        )
        element.name = self.name
        return element

    @property
    def struct_format(self) -> str:
        """``struct``'s letter if the field's size is fixed, else empty."""
        return "" if self.is_array or not isinstance(self.element, Scalar) else self.element.struct_format

    @property
    def has_mutable_default(self) -> bool:
        """Whether each message needs its own default: an empty list, a struct."""
        return self.default is ...

    def make_default(self) -> object:
        """Return the value of the field if it is not set."""
        if self.default is not ...:
            return self.default
        return [] if self.is_array or isinstance(self.element, Scalar) else self.element()


class Schema:
    """The declaration of a message class."""

    __slots__ = ("api_key", "fields", "flexible", "names", "versions")

    def __init__(self, fields: tuple[Field, ...], versions: range, flexible: range, api_key: int) -> None:
        self.fields: Final = fields
        self.names: Final = tuple(field.name for field in fields)
        self.versions: Final = versions
        """The supported versions, oldest first. For a struct all versions: its message restricts them."""
        self.flexible: Final = flexible
        """The versions with compact encodings and tagged fields (KIP-482)."""
        self.api_key: Final = api_key
        """The request's number, also in its response; ``NO_API_KEY`` for everything else."""

    def constructor(self) -> Callable[..., None]:
        """Generate an ``__init__`` that takes the fields by keyword, as ``dataclasses`` does."""
        names: dict[str, object] = {"missing": ...}
        parameters = ["self", "*"] if self.fields else ["self"]
        lines = []
        for field in self.fields:
            if field.has_mutable_default:
                names[f"make_{field.name}"] = field.make_default
                parameters.append(f"{field.name}=missing")
                value = f"make_{field.name}() if {field.name} is missing else {field.name}"
            else:
                names[f"default_{field.name}"] = field.default
                parameters.append(f"{field.name}=default_{field.name}")
                value = field.name
            lines.append(f" self.{field.name} = {value}")
        exec("\n".join([f"def __init__({', '.join(parameters)}):", *lines, " return"]), names)
        return cast("Callable[..., None]", names["__init__"])


def _write_constructor(message: Message, **values: object) -> None:
    """Each class's ``__init__`` until its first call, which generates the real one: so importing is fast."""
    message_class = type(message)
    constructor = message_class.schema.constructor()
    type.__setattr__(message_class, "__init__", constructor)
    constructor(message, **values)


@dataclass_transform(eq_default=True, kw_only_default=True)
class MessageType(type):
    """Creates a message class from a declaration: fields become slots, the declaration becomes ``schema``."""

    schema: Schema

    def __new__(
        metacls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, object],
        *,
        api_key: int = NO_API_KEY,
        versions: str = "0+",
        flexible: str = "none",
    ) -> MessageType:
        if any(isinstance(base, MessageType) and base.schema.fields for base in bases):
            raise TypeError(f"{name} cannot extend a message that has fields")
        declared = [(field_name, field) for field_name, field in namespace.items() if isinstance(field, Field)]
        for field_name, field in declared:
            del namespace[field_name]
            field.name = field_name
        fields = tuple(field for _, field in declared)
        schema = Schema(fields, parse_versions(versions), parse_versions(flexible), api_key)
        namespace["__slots__"] = schema.names
        namespace["__init__"] = _write_constructor
        made = super().__new__(metacls, name, bases, namespace)
        made.schema = schema
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object], **declared: object) -> None:
        super().__init__(name, bases, namespace)


class Message(metaclass=MessageType):
    """The base class of every declared message, struct and header."""

    if TYPE_CHECKING:
        schema: ClassVar[Schema]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = self.schema.names
        return [getattr(self, name) for name in names] == [getattr(other, name) for name in names]

    def __repr__(self) -> str:
        """All fields, with only the size of binary ones, as records are large and authentication bytes are secret."""
        shown = ", ".join(f"{field.name}={_shown(field, getattr(self, field.name))}" for field in self.schema.fields)
        return f"{type(self).__name__}({shown})"


def _shown(field: Field, value: object) -> str:
    if field.is_array or value is None:
        return repr(value)
    if field.element is UUID and isinstance(value, bytes):
        return value.hex()
    if field.element is BYTES and isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if field.element is RECORDS:
        buffers = [value] if isinstance(value, Buffer) else cast(Sequence[Buffer], value)
        return f"<{sum(memoryview(buffer).nbytes for buffer in buffers)} bytes>"
    return repr(value)


class Struct(Message):
    """A part of a message; its message determines its versions and encoding."""


class Data(Message):
    """A message that is neither request nor response: a header, or the content of a bytes field."""


class Response(Message):
    """The answer of a broker."""


R_co = TypeVar("R_co", bound=Response, covariant=True)


class Request(Message, Generic[R_co]):
    """A request of a client; ``Request[ProduceResponse]`` is answered with a ``ProduceResponse``."""

    @classmethod
    @functools.cache
    def response_class(cls) -> type[R_co]:
        """The class of this request's response."""
        (response_class,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]  # typeshed leaves it out
        return cast("type[R_co]", response_class)


# The following functions declare a field. At run time each returns a Field, which the metaclass removes from the class;
# for a type checker each returns the type of the message's attribute.


def int8(versions: str, *, default: int = 0, ignorable: bool = False, tag: int | None = None) -> int:
    """A signed integer of 8 bits."""
    return _declare(INT8, versions, default=default, ignorable=ignorable, tag=tag)


def int16(versions: str, *, default: int = 0, ignorable: bool = False, tag: int | None = None) -> int:
    """A signed integer of 16 bits."""
    return _declare(INT16, versions, default=default, ignorable=ignorable, tag=tag)


def uint16(versions: str, *, default: int = 0, ignorable: bool = False, tag: int | None = None) -> int:
    """An unsigned integer of 16 bits."""
    return _declare(UINT16, versions, default=default, ignorable=ignorable, tag=tag)


def int32(versions: str, *, default: int = 0, ignorable: bool = False, tag: int | None = None) -> int:
    """A signed integer of 32 bits."""
    return _declare(INT32, versions, default=default, ignorable=ignorable, tag=tag)


def int64(versions: str, *, default: int = 0, ignorable: bool = False, tag: int | None = None) -> int:
    """A signed integer of 64 bits."""
    return _declare(INT64, versions, default=default, ignorable=ignorable, tag=tag)


def boolean(versions: str, *, default: bool = False, ignorable: bool = False, tag: int | None = None) -> bool:
    """One byte; any but zero is true."""
    return _declare(BOOLEAN, versions, default=default, ignorable=ignorable, tag=tag)


def uuid(versions: str, *, ignorable: bool = False, tag: int | None = None) -> bytes:
    """16 bytes; ``ZERO_UUID`` by default."""
    return _declare(UUID, versions, default=ZERO_UUID, ignorable=ignorable, tag=tag)


@overload
def string(versions: str, *, default: str = "", ignorable: bool = False, flexible: bool = True) -> str: ...
@overload
def string(
    versions: str,
    *,
    nullable: str,
    default: str | None = "",
    ignorable: bool = False,
    tag: int | None = None,
    flexible: bool = True,
) -> str | None: ...
def string(
    versions: str,
    *,
    nullable: str = "none",
    default: str | None = "",
    ignorable: bool = False,
    tag: int | None = None,
    flexible: bool = True,
) -> str | None:
    """UTF-8, at most 32,767 bytes."""
    return _declare(
        STRING, versions, nullable=nullable, default=default, ignorable=ignorable, tag=tag, flexible=flexible
    )


@overload
def binary(versions: str, *, ignorable: bool = False) -> bytes: ...
@overload
def binary(versions: str, *, nullable: str, default: bytes | None = b"", ignorable: bool = False) -> bytes | None: ...
def binary(
    versions: str, *, nullable: str = "none", default: bytes | None = b"", ignorable: bool = False
) -> bytes | None:
    """Kafka's ``bytes``: copied out of the frame when read."""
    return _declare(BYTES, versions, nullable=nullable, default=default, ignorable=ignorable)


def records(versions: str, *, nullable: str) -> Records:
    """Record batches, never copied: written by reference, read as a view of the frame."""
    return _declare(RECORDS, versions, nullable=nullable, default=None)


@overload
def array(
    element: Scalar[T] | type[T], versions: str, *, ignorable: bool = False, tag: int | None = None
) -> list[T]: ...
@overload
def array(
    element: Scalar[T] | type[T], versions: str, *, nullable: str, default: None = ..., ignorable: bool = False
) -> list[T] | None: ...
def array(
    element: Scalar[T] | type[T],
    versions: str,
    *,
    nullable: str = "none",
    default: object = ...,
    ignorable: bool = False,
    tag: int | None = None,
) -> list[T] | None:
    """An array of ``element``; empty by default, or null with ``default=None``."""
    declared = _declare(
        element, versions, nullable=nullable, default=default, ignorable=ignorable, tag=tag, is_array=True
    )
    return cast("list[T]", declared)


def struct(struct_class: type[M], versions: str, *, tag: int | None = None) -> M:
    """A struct in the message; one with all of its defaults by default."""
    return _declare(struct_class, versions, default=..., tag=tag)


def nullable_struct(struct_class: type[M], versions: str) -> M | None:
    """A struct that may be missing; null by default."""
    return _declare(struct_class, versions, nullable=versions, default=None)


def _declare(
    element: Scalar[T] | type[T],
    versions: str,
    *,
    default: object,
    nullable: str = "none",
    ignorable: bool = False,
    tag: int | None = None,
    is_array: bool = False,
    flexible: bool = True,
) -> T:
    declared = Field(
        cast("Element", element),
        is_array=is_array,
        versions=parse_versions(versions),
        nullable=parse_versions(nullable),
        flexible=flexible,
        tag=tag,
        ignorable=ignorable,
        default=default,
    )
    return cast("T", declared)
