"""Kafka's ``ConfigDef``: keys with types, defaults and validators, and the parsers of their values.

The parsers follow ``org.apache.kafka.common.config.ConfigDef.parseType`` of Kafka 4.4, so that a properties file has
the same meaning in both. Besides strings they accept Python's types: ``int``, ``float``, ``bool``, lists and tuples.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Never, Self, TypeAlias

from aioproducer._common.diagnosis import nearest
from aioproducer.errors import ConfigurationError

logger = logging.getLogger("aioproducer.config")


class Immutable:
    """Base of objects that never change: their copies are they themselves."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Password(Immutable):
    """A secret value: ``str``, ``repr`` and logs hide it, ``value`` returns it; it is copied, but not pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @property
    def value(self) -> str:
        return self._value

    def __reduce__(self) -> Never:
        raise TypeError("a Password is not pickled, as its pickle would show the secret")

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Password) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)


class HiddenValues(Immutable, Mapping[str, str]):
    """An immutable mapping of options, some of which are secret: ``repr`` and logs hide all of it."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __reduce__(self) -> Never:
        raise TypeError("these options are not pickled, as their pickle would show secrets")

    def __repr__(self) -> str:
        return "[hidden]"


class NoDefault(enum.Enum):
    """The type of ``NO_DEFAULT``, the mark of a required key; ``None`` can be a default."""

    NO_DEFAULT = "no default"

    def __repr__(self) -> str:
        return self.name


NO_DEFAULT: Final = NoDefault.NO_DEFAULT

# A parsed value. The type is object because CLASS keys accept any plug-in.
Value: TypeAlias = object


class Type(enum.Enum):
    """Kafka's types of configuration values."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    SHORT = "short"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    CLASS = "class"
    PASSWORD = "password"


class Importance(enum.Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Status(enum.Enum):
    """The treatment of a key of Kafka's producer."""

    SUPPORTED = "supported"
    WITHOUT_EFFECT = "accepted, without effect"
    REFUSED = "refused"


class Validator:
    """A rule for a parsed value: Kafka's ``description``, the check ``accepts``, the ``demand`` for an error."""

    __slots__ = ("accepts", "choices", "demand", "description", "ignores_case")

    def __init__(
        self,
        description: str,
        accepts: Callable[[Value], bool],
        demand: str,
        choices: tuple[str, ...] = (),
        ignores_case: bool = False,
    ) -> None:
        self.description: Final = description
        self.accepts: Final = accepts
        self.demand: Final = demand
        self.choices: Final = choices
        """The accepted values of an enumeration; empty for other rules."""
        self.ignores_case: Final = ignores_case
        """Whether the choices may be written in upper or lower case."""


def at_least(minimum: int) -> Validator:
    return Validator(
        f"[{minimum},...]", lambda value: isinstance(value, int) and value >= minimum, f"must be at least {minimum}"
    )


def between(minimum: float, maximum: float) -> Validator:
    return Validator(
        f"[{minimum},...,{maximum}]",
        lambda value: isinstance(value, int | float) and minimum <= value <= maximum,
        f"must be between {minimum} and {maximum}",
    )


def between_or(minimum: int, maximum: int, extra: int) -> Validator:
    return Validator(
        f"[{minimum},...,{maximum}] or {extra}",
        lambda value: isinstance(value, int) and (minimum <= value <= maximum or value == extra),
        f"must be between {minimum} and {maximum}, or {extra}",
    )


def one_of(*values: str) -> Validator:
    return Validator(
        f"[{', '.join(values)}]", lambda value: value in values, f"must be one of {', '.join(values)}", choices=values
    )


def one_of_ignoring_case(*values: str) -> Validator:
    return Validator(
        f"(case insensitive) [{', '.join(values)}]",
        lambda value: isinstance(value, str) and value.upper() in values,
        f"must be one of {', '.join(values)} (upper or lower case)",
        choices=values,
        ignores_case=True,
    )


def non_empty_string() -> Validator:
    return Validator("non-empty string", lambda value: value is None or value != "", "must not be empty")


def list_without_empty_items(*, may_be_empty: bool) -> Validator:
    return Validator(
        "" if may_be_empty else "not empty",
        lambda value: isinstance(value, tuple) and "" not in value and (may_be_empty or bool(value)),
        "must not contain empty items" if may_be_empty else "must contain at least one item and no empty items",
    )


class ConfigKey:
    """One configuration key."""

    __slots__ = (
        "attribute",
        "default",
        "doc",
        "importance",
        "internal",
        "name",
        "reason",
        "status",
        "takes_callables",
        "type",
        "validator",
    )

    def __init__(
        self,
        name: str,
        type: Type,
        default: Value,
        importance: Importance,
        doc: str,
        validator: Validator | None = None,
        status: Status = Status.SUPPORTED,
        reason: str = "",
        internal: bool = False,
        takes_callables: bool = False,
    ) -> None:
        self.name: Final = name
        """Kafka's dotted name."""
        self.attribute: Final = name.replace(".", "_")
        """The name as a keyword argument and as an attribute of ``ProducerConfig``."""
        self.type: Final = type
        self.default: Final = default
        """The parsed value if the key is not given; ``NO_DEFAULT`` for a required key."""
        self.importance: Final = importance
        self.doc: Final = doc
        """The meaning, in one or two sentences, with units."""
        self.validator: Final = validator
        self.status: Final = status
        self.reason: Final = reason
        """Why the key is not, or only partly, supported, or how it differs from Java's."""
        self.internal: Final = internal
        """Whether Kafka declares the key internal: it may change in any release."""
        self.takes_callables: Final = takes_callables
        """Whether a callable may stand for the value; it is kept as it is."""
        if default is not NO_DEFAULT and default is not None:
            if self.parse(default) != default:
                raise ConfigurationError(f"the default {default!r} of {name} is not of its type")
            self.validate(default)
        if status is not Status.SUPPORTED and not reason:
            raise ConfigurationError(f"{name} is {status.value}, but the reason is missing")

    def parse(self, value: object) -> Value:
        """Return ``value`` in the key's type.

        Raises:
            ConfigurationError: it cannot be converted to that type.
        """
        if self.takes_callables and callable(value):
            return value
        try:
            return _PARSERS[self.type](value.strip() if isinstance(value, str) else value)
        except _NotOfTypeError as error:
            shown = Password("") if self.type is Type.PASSWORD else value
            raise ConfigurationError(f"{self.name} must be {error}, not {shown!r}") from None

    def validate(self, value: Value) -> None:
        """Check a parsed ``value`` with the key's validator.

        Raises:
            ConfigurationError: the validator rejects it.
        """
        if self.validator is not None and not self.validator.accepts(value):
            raise ConfigurationError(f"{self.name} {self.validator.demand}, not {value!r}")


class ConfigDef:
    """A set of keys, sorted by name."""

    __slots__ = ("keys", "other_names")

    def __init__(self, keys: Mapping[str, ConfigKey], other_names: Callable[[], Mapping[str, tuple[str, str]]]) -> None:
        self.keys: Final = keys
        self.other_names: Final = other_names

    @classmethod
    def of(
        cls, keys: Iterable[ConfigKey], other_names: Callable[[], Mapping[str, tuple[str, str]]] = dict
    ) -> ConfigDef:
        """Create a definition of ``keys``.

        ``other_names`` returns the names of keys in other clients: for each the name here, and a remark. Only an error
        or the documentation calls it.

        Raises:
            ConfigurationError: two keys have the same name.
        """
        by_name: dict[str, ConfigKey] = {}
        for key in sorted(keys, key=lambda key: key.name):
            if key.name in by_name:
                raise ConfigurationError(f"{key.name} is defined twice")
            by_name[key.name] = key
        return cls(by_name, other_names)

    def defaults(self) -> dict[str, Value]:
        """Return the default of every key that has one."""
        return {name: key.default for name, key in self.keys.items() if key.default is not NO_DEFAULT}

    def names(self, given: Iterable[str], *, extra: Iterable[str] = ()) -> dict[str, str]:
        """Map each ``given`` name, dotted or in snake_case, to its dotted name; names in ``extra`` stay unchanged.

        Raises:
            ConfigurationError: a name is unknown, or two names mean the same key.
        """
        known = {name: name for name in (*self.keys, *extra)}
        known.update((key.attribute, name) for name, key in self.keys.items())
        found: dict[str, str] = {}
        unknown: list[str] = []
        for name in given:
            dotted = known.get(name)
            if dotted is None:
                hint = self._hint(name, known)
                unknown.append(f"{name!r} ({hint})" if hint else f"{name!r}")
            elif dotted in found.values():
                raise ConfigurationError(
                    f"{dotted} is given twice, in dotted and in snake_case spelling: remove one of them"
                )
            else:
                found[name] = dotted
        if unknown:
            raise ConfigurationError(f"unknown configuration key: {', '.join(unknown)}")
        return found

    def _hint(self, name: str, known: Iterable[str]) -> str:
        """Return a hint at the name that an unknown one probably means, in the same spelling; or an empty string."""
        elsewhere = self.other_names().get(name if "." in name else name.replace("_", "."))
        if elsewhere is None:
            return nearest(name, [other for other in known if ("." in other) == ("." in name)])
        here, remark = elsewhere
        spelt = here if "." in name else self.keys[here].attribute
        return f"here it is {spelt!r}{', ' if remark else ''}{remark}"

    def parse(self, given: Mapping[str, object]) -> dict[str, Value]:
        """Return the value of every key: the ``given`` one, parsed and validated, or the default.

        Raises:
            ConfigurationError: a key is unknown or missing, or a value is rejected.
        """
        self.names(given)
        values: dict[str, Value] = {}
        for name, key in self.keys.items():
            if name not in given:
                if key.default is NO_DEFAULT:
                    raise ConfigurationError(f"{name} is missing and has no default: set it")
                values[name] = key.default
                continue
            value = key.parse(given[name])
            if value is None and key.default is not None:
                raise ConfigurationError(f"{name} must not be None")
            if value is not None:
                if key.type is Type.LIST:
                    value = _without_duplicates(key, value)
                key.validate(value)
            values[name] = value
        return values


def _without_duplicates(key: ConfigKey, value: Value) -> Value:
    assert isinstance(value, tuple)
    once: list[object] = []
    for item in value:
        if item not in once:
            once.append(item)
    if len(once) < len(value):
        logger.warning("%s contains duplicate values; the duplicates are ignored", key.name)
    return tuple(once)


class _NotOfTypeError(Exception):
    """A value does not have the type that the argument describes."""


# Compiled at their first use, for a value given as text.
_INTEGER = r"[+-]?\d+"
_DOUBLE = r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|NaN|Infinity)"


def _parse_boolean(value: object) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _NotOfTypeError("true or false")


def _integer_parser(bits: int) -> Callable[[object], Value]:
    minimum, maximum = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def parse(value: object) -> Value:
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(_INTEGER, value, re.ASCII):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        raise _NotOfTypeError(f"a whole number from -2**{bits - 1} to 2**{bits - 1} - 1")

    return parse


def _parse_double(value: object) -> Value:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(_DOUBLE, value, re.ASCII):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _NotOfTypeError("a number")


def _parse_string(value: object) -> Value:
    if value is None or isinstance(value, str):
        return value
    raise _NotOfTypeError("a string")


def _parse_password(value: object) -> Value:
    if value is None or isinstance(value, Password):
        return value
    if isinstance(value, str):
        return Password(value)
    raise _NotOfTypeError("a string")


def _parse_list(value: object) -> Value:
    if value is None:
        return None
    if isinstance(value, str):
        return tuple(re.split(r"\s*,\s*", value)) if value else ()
    if isinstance(value, list | tuple):
        return tuple(item.strip() if isinstance(item, str) else item for item in value)
    raise _NotOfTypeError("a list, or a string of items separated by commas")


_PARSERS: dict[Type, Callable[[object], Value]] = {
    Type.BOOLEAN: _parse_boolean,
    Type.STRING: _parse_string,
    Type.INT: _integer_parser(32),
    Type.SHORT: _integer_parser(16),
    Type.LONG: _integer_parser(64),
    Type.DOUBLE: _parse_double,
    Type.LIST: _parse_list,
    Type.CLASS: lambda value: value,
    Type.PASSWORD: _parse_password,
}
