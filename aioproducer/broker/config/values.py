"""Parsing, validation and formatting of configuration values, as Kafka does them.

Operators and tools know Kafka's texts for a wrong value, so these rules use the words of
``org.apache.kafka.common.config.ConfigDef`` of Kafka 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from aioproducer.config import ConfigKey, Type, Validator
from aioproducer.config.definition import Value
from aioproducer.errors import ConfigurationError, InvalidConfigurationError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_NOT_READABLE = {
    Type.BOOLEAN: "Expected value to be either true or false",
    Type.SHORT: "Not a number of type SHORT",
    Type.INT: "Not a number of type INT",
    Type.LONG: "Not a number of type LONG",
    Type.DOUBLE: "Not a number of type DOUBLE",
}


class Rule(Validator):
    """A validator with Kafka's own text: the value it shows and its complaint."""

    __slots__ = ("complaint",)

    def __init__(
        self,
        description: str,
        accepts: Callable[[Value], bool],
        demand: str,
        complaint: Callable[[str, Value], tuple[str, str]],
    ) -> None:
        super().__init__(description, accepts, demand)
        self.complaint: Final = complaint
        """Maps the key's name and the parsed value to the shown value and Kafka's complaint."""


def at_least(minimum: int) -> Rule:
    return Rule(
        f"[{minimum},...]",
        lambda value: isinstance(value, int | float) and value >= minimum,
        f"must be at least {minimum}",
        lambda name, value: (as_text(value), f"Value must be at least {minimum}"),
    )


def between(minimum: int, maximum: int) -> Rule:
    def complaint(name: str, value: Value) -> tuple[str, str]:
        too_small = isinstance(value, int | float) and value < minimum
        return as_text(value), f"Value must be {f'at least {minimum}' if too_small else f'no more than {maximum}'}"

    return Rule(
        f"[{minimum},...,{maximum}]",
        lambda value: isinstance(value, int | float) and minimum <= value <= maximum,
        f"must be between {minimum} and {maximum}",
        complaint,
    )


def between_or(minimum: int, maximum: int, extra: int) -> Rule:
    return Rule(
        f"[{minimum},...,{maximum}] or {extra}",
        lambda value: isinstance(value, int) and (minimum <= value <= maximum or value == extra),
        f"must be between {minimum} and {maximum}, or {extra}",
        lambda name, value: (as_text(value), f"Value must be between {minimum} and {maximum} or equal to {extra}"),
    )


def one_of(*values: str) -> Rule:
    return Rule(
        f"[{', '.join(values)}]",
        lambda value: value in values,
        f"must be one of {', '.join(values)}",
        lambda name, value: (as_text(value), f"String must be one of: {', '.join(values)}"),
    )


def some_of(*values: str) -> Rule:
    """A list, possibly empty, of the ``values`` only."""

    def complaint(name: str, value: Value) -> tuple[str, str]:
        assert isinstance(value, tuple)
        shown = next(str(item) for item in value if item not in values)
        return shown, f"String must be one of: {', '.join(values)}"

    return Rule(
        f"[{', '.join(values)}]",
        lambda value: isinstance(value, tuple) and all(item in values for item in value),
        f"must only contain {', '.join(values)}",
        complaint,
    )


def throttled_replicas() -> Rule:
    """``*``, or a list of partition:broker."""
    form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."

    def is_pair(item: object) -> bool:
        halves = str(item).split(":")
        return len(halves) == 2 and all(half.isascii() and half.isdecimal() for half in halves)

    return Rule(
        form,
        lambda value: isinstance(value, tuple) and (value == ("*",) or all(is_pair(item) for item in value)),
        f"must be '*' or {form}",
        lambda name, value: (
            f"[{as_text(value).replace(',', ', ')}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: {form}",
        ),
    )


def parse_as_kafka(key: ConfigKey, value: str) -> Value:
    """Parse ``value``, and check it by the key's rule.

    Raises:
        InvalidConfigurationError: the value is invalid; the text is Kafka's.
    """
    try:
        parsed = key.parse(value)
    except ConfigurationError:
        complaint = _NOT_READABLE.get(key.type, f"Not a value of type {key.type.name}")
        raise InvalidConfigurationError(f"Invalid value {value} for configuration {key.name}: {complaint}") from None
    if isinstance(parsed, tuple):
        parsed = tuple(dict.fromkeys(parsed))
    rule = key.validator
    if rule is not None and not rule.accepts(parsed):
        shown, complaint = rule.complaint(key.name, parsed) if isinstance(rule, Rule) else (value, rule.demand)
        raise InvalidConfigurationError(f"Invalid value {shown} for configuration {key.name}: {complaint}")
    return parsed


def as_number(value: Value) -> int:
    """Return a parsed value that is known to be a whole number."""
    if not isinstance(value, int):
        raise TypeError(f"a whole number was expected, not {value!r}")
    return value


def as_float(value: Value) -> float:
    """A parsed value that is known to be a number."""
    if not isinstance(value, int | float):
        raise TypeError(f"a number was expected, not {value!r}")
    return float(value)


def as_text(value: Value) -> str:
    """Return a parsed value as Kafka writes it (``ConfigDef.convertToString``)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double(value)
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    return str(value)


def _double(value: float) -> str:
    """Format as Java's ``Double.toString``: an exponent below 0.001 and from ten million."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{exponent + len(digits) - 1}"
