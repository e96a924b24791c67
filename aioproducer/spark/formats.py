"""``key_format`` and ``value_format``: columns of any type as text, as Spark's ``to_json`` and ``CAST`` write it.

All is done by Arrow's own functions, a column at a time; Python looks at single rows only where Arrow has nothing:
bytes in JSON, floating-point numbers that Java writes with an exponent, and timestamps from 2037 on in a region's time.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from aioproducer.spark.format_names import JSON, STRING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


_TEXTS: Final = frozenset(("string", "char", "varchar"))
_NUMBERS: Final = frozenset(("boolean", "byte", "short", "integer", "long", "float", "double", "decimal"))
_DATES: Final = frozenset(("date", "timestamp", "timestamp_ntz"))
_PLAIN: Final = _TEXTS | _NUMBERS | _DATES | {"binary", "time", "void"}
# Spark's own text of other keys of maps does not identify them.
_MAP_KEYS: Final = _TEXTS | _NUMBERS | _DATES


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type of Spark's, as far as the sink looks at it."""

    name: str
    """The type's class by its ``typeName``: ``integer``, ``struct``, ..."""
    text: str
    """All of it, as SQL has it: ``int``, ``struct<a:int>``, ..."""
    parts: tuple[SqlType, ...] = ()
    """Types of the fields, of the elements, or of keys and values."""

    @classmethod
    def of(cls, data_type: DataType) -> Self:
        """What a ``pyspark.sql.types.DataType`` is; pyspark itself is not imported for it."""
        given: Any = data_type
        name = given.typeName().partition(" ")[0]
        parts: tuple[DataType, ...] = ()
        if name == "struct":
            parts = tuple(field.dataType for field in given.fields)
        elif name == "array":
            parts = (given.elementType,)
        elif name == "map":
            parts = (given.keyType, given.valueType)
        return cls(name, given.simpleString(), tuple(cls.of(part) for part in parts))


def obstacle(format: str, sql_type: SqlType) -> str:
    """What keeps a type from being written in ``format``, in words that go on with ``"... cannot be written: "``.

    An empty string where nothing does.
    """
    if sql_type.name in _PLAIN:
        return ""
    if format == STRING or not sql_type.parts:
        return f"{format} is not for {sql_type.text}"
    if sql_type.name == "map" and sql_type.parts[0].name not in _MAP_KEYS:
        return f"{format} has no way for keys of the type {sql_type.parts[0].text}"
    return next(filter(None, (obstacle(format, part) for part in sql_type.parts)), "")


def converted(format: str, column: pa.Array) -> pa.Array:
    """A column as strings in ``format``; null stays null.

    Raises:
        ValueError: a date or timestamp is too far off to be written, or the time zone is unknown here.
    """
    column = decoded(column)
    return _json(column) if format == JSON else _text(column)


def decoded(column: pa.Array) -> pa.Array:
    """The column itself where it is none of indices into a dictionary."""
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


_LARGE_STRING: Final = pa.large_string()


# Not made beforehand: the first scalar has pyarrow import pandas, for which the driver waits when it plans.
@lru_cache(64)
def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _LARGE_STRING)


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Concatenate the texts of each row; null if one of them is null."""
    return pc.binary_join_element_wise(*parts, _scalar(""))


def _quoted(texts: pa.Array) -> pa.Array:
    return _joined(_scalar('"'), texts, _scalar('"'))


def _null_as(column: pa.Array, texts: pa.Array) -> pa.Array:
    """``texts``, but null where ``column`` is."""
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, _LARGE_STRING)) if column.null_count else texts


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())


def _text(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is_string(kind) or _is_bytes(kind):
        return column
    if types.is_floating(kind):
        return _floats(column)
    if types.is_decimal(kind):
        return _plain_decimals(column)
    if types.is_date(kind):
        return _dates(column)
    if types.is_timestamp(kind):
        return _without_zeros(_local(column)[0])
    if types.is_time(kind):
        return _without_zeros(column.cast(_LARGE_STRING))
    return column.cast(_LARGE_STRING)


def _is_string(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _without_zeros(texts: pa.Array) -> pa.Array:
    """Times without the zeros that end their fractions, and without a fraction of none but zeros."""
    return pc.replace_substring_regex(texts, r"\.?0+$", "")


def _plain_decimals(column: pa.Array) -> pa.Array:
    texts = column.cast(_LARGE_STRING)
    scientific = pc.fill_null(pc.match_substring(texts, "E"), False)
    return _rewritten(texts, scientific, lambda text: format(Decimal(text), "f"))


def _rewritten(texts: pa.Array, where: pa.Array, rewrite: Callable[[str], str]) -> pa.Array:
    if not _any(where):
        return texts
    new = pa.array(map(rewrite, texts.filter(where).to_pylist()), _LARGE_STRING)
    return pc.replace_with_mask(texts, where, new)


# Between these, Java writes a number without an exponent.
_LEAST_PLAIN: Final = 1e-3
_PLAIN_ENDS: Final = 1e7


def _floats(column: pa.Array) -> pa.Array:
    """As ``Double.toString`` and ``Float.toString`` of Java 19 and later have it."""
    texts = pc.replace_substring_regex(column.cast(_LARGE_STRING), r"^(-?\d+)$", r"\1.0")
    values = column.cast(pa.float64())
    size = pc.abs(values)
    plain = pc.or_(pc.equal(size, 0.0), pc.and_(pc.greater_equal(size, _LEAST_PLAIN), pc.less(size, _PLAIN_ENDS)))
    others = pc.fill_null(pc.invert(plain), False)
    if not _any(others):
        return texts
    pairs = zip(texts.filter(others).to_pylist(), values.filter(others).to_pylist(), strict=True)
    return pc.replace_with_mask(texts, others, pa.array([_with_exponent(*pair) for pair in pairs], _LARGE_STRING))


def _with_exponent(shortest: str, value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    digits, exponent = _significant(shortest)
    if len(digits) == 1:
        # Java wants two digits at least, and of all pairs the one that is nearest to the value.
        digits, exponent = _significant(f"{value:.1e}")
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _significant(number: str) -> tuple[str, int]:
    """Digits without zeros around them, and the exponent of the first."""
    mantissa, _, exponent = number.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    return digits.rstrip("0"), int(exponent or 0) + len(digits) - len(fraction) - 1


_DAY_US: Final = 86_400_000_000
# Of the years 0000 to 9999, first and last, in days since 1970.
_FIRST_DAY: Final = -719_528
_LAST_DAY: Final = 2_932_896


def _dates(column: pa.Array) -> pa.Array:
    days = column.cast(pa.date32())
    return _signed_years(days.cast(_LARGE_STRING), days.cast(pa.int32()), _FIRST_DAY, _LAST_DAY + 1)


def _signed_years(texts: pa.Array, numbers: pa.Array, first: int, end: int) -> pa.Array:
    """Dates with a plus before years of more than four digits.

    Raises:
        ValueError: one is so far off that Arrow does not write it.
    """
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or (bounds["min"] >= first and bounds["max"] < end):
        return texts
    far = texts.filter(pc.fill_null(pc.starts_with(texts, "<"), False))
    if len(far):
        raise ValueError(f"a date beyond the year 32767 cannot be written as text: {far[0].as_py()}")
    return pc.replace_substring_regex(texts, r"^(\d{5,}-)", r"+\1")


def _local(column: pa.Array) -> tuple[pa.Array, pa.Array | pa.Scalar]:
    """Timestamps as text with six digits of fraction, in their own zone; and the zone's offsets as ISO 8601 has them.

    Raises:
        ValueError: the zone is unknown here.
    """
    zone = column.type.tz
    microseconds = column.cast(pa.timestamp("us", zone)).cast(pa.int64())
    offsets: pa.Array | pa.Scalar = _scalar("")
    local = microseconds
    if zone is not None:
        fixed = _fixed_offset(zone)
        if fixed is not None:
            local = pc.add(microseconds, fixed * 1_000_000)
            offsets = _scalar(_offset(fixed))
        else:
            try:
                local = pc.local_timestamp(column).cast(pa.timestamp("us")).cast(pa.int64())
                local = _by_rules(local, microseconds, zone)
            except (pa.ArrowInvalid, ZoneInfoNotFoundError) as error:
                raise ValueError(
                    f"the time zone {zone!r} of spark.sql.session.timeZone is unknown on this executor: name a region "
                    "(Europe/Berlin), an offset (+01:00) or UTC, and see that the system has its time zone database "
                    "(tzdata)"
                ) from error
            seconds = pc.divide(pc.subtract(local, microseconds), 1_000_000).dictionary_encode()
            named = pa.array([_offset(each) for each in seconds.dictionary.to_pylist()], _LARGE_STRING)
            offsets = named.take(seconds.indices)
    texts = local.cast(pa.timestamp("us")).cast(_LARGE_STRING)
    return _signed_years(texts, local, _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US), offsets


# 2037 begins. Most files of time zones list the changes of the clock until then, and have a rule for those after it, at
# which Arrow does not look.
_RULES_BEGIN: Final = 2_114_380_800_000_000
# 2100 begins: no file lists a change as late as that.
_ONLY_RULES: Final = 4_102_444_800
# The calendar, and with it the rules, repeats after this many seconds, 400 years.
_CALENDAR: Final = 146_097 * 86_400


def _by_rules(local: pa.Array, microseconds: pa.Array, zone: str) -> pa.Array:
    """Return ``local`` with the times that follow only from the zone's rules.

    Raises:
        ZoneInfoNotFoundError: Python does not know the zone.
    """
    late = pc.fill_null(pc.greater_equal(microseconds, _RULES_BEGIN), False)
    if not _any(late):
        return local
    region = ZoneInfo(zone)
    ruled = [each + _offset_us(each // 1_000_000, region) for each in microseconds.filter(late).to_pylist()]
    return pc.replace_with_mask(local, late, pa.array(ruled, pa.int64()))


def _offset_us(seconds: int, region: ZoneInfo) -> int:
    if seconds >= _ONLY_RULES:
        seconds = _ONLY_RULES + (seconds - _ONLY_RULES) % _CALENDAR
    offset = datetime.fromtimestamp(seconds, region).utcoffset()
    assert offset is not None
    return round(offset.total_seconds() * 1_000_000)


def _fixed_offset(zone: str) -> int | None:
    """Return the seconds of a zone that is an offset from UTC, as Java's ``ZoneId`` parses it; else ``None``."""
    if zone in ("UTC", "Z", "GMT", "UT", "Etc/UTC", "Etc/GMT"):
        return 0
    match = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d)(?::?(\d\d))?)?", zone, re.ASCII)
    if match is None:
        return None
    sign, *parts = match.groups()
    hours, minutes, seconds = (int(part or 0) for part in parts)
    offset = hours * 3600 + minutes * 60 + seconds
    return -offset if sign == "-" else offset


def _offset(seconds: int) -> str:
    if not seconds:
        return "Z"
    minutes, rest = divmod(abs(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{'-' if seconds < 0 else '+'}{hours:02}:{minutes:02}{f':{rest:02}' if rest else ''}"


def _json(column: pa.Array) -> pa.Array:
    """Return each row as JSON; null if the row is null."""
    column = decoded(column)
    kind = column.type
    if types.is_null(kind) or not len(column):
        return pa.nulls(len(column), _LARGE_STRING)
    if types.is_struct(kind):
        return _objects(column)
    if types.is_list(kind) or types.is_large_list(kind):
        return _arrays(column)
    if types.is_map(kind):
        return _maps(column)
    if _is_string(kind):
        return _quoted(_escaped(_valid(column)))
    if _is_bytes(kind):
        encoded = [None if each is None else b64encode(each).decode("ascii") for each in column.to_pylist()]
        return _quoted(pa.array(encoded, _LARGE_STRING))
    if types.is_floating(kind):
        texts = _floats(column)
        # Nulls are not finite either, and stay null.
        return (
            texts if pc.all(pc.is_finite(column)).as_py() else pc.if_else(pc.is_finite(column), texts, _quoted(texts))
        )
    if types.is_timestamp(kind):
        return _instants(column)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return column.cast(_LARGE_STRING)
    return _quoted(_text(column))


def _instants(column: pa.Array) -> pa.Array:
    texts, offsets = _local(column)
    milliseconds = pc.utf8_slice_codeunits(texts, start=0, stop=-3)
    return _joined(_scalar('"'), pc.replace_substring(milliseconds, " ", "T"), offsets, _scalar('"'))


def _valid(column: pa.Array) -> pa.Array:
    """Return strings with U+FFFD for bytes that are not UTF-8, which Spark does not check."""
    texts = column.cast(_LARGE_STRING)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        rows = texts.cast(pa.large_binary()).to_pylist()
        return pa.array([None if row is None else row.decode("utf-8", "replace") for row in rows], _LARGE_STRING)
    return texts


_ESCAPES: Final[Mapping[str, str]] = {
    **{chr(code): f"\\u{code:04X}" for code in range(0x20)},
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


def _escaped(texts: pa.Array) -> pa.Array:
    if _any(pc.match_substring_regex(texts, r'["\\]')):
        texts = pc.replace_substring(texts, "\\", "\\\\")
        texts = pc.replace_substring(texts, '"', '\\"')
    if _any(pc.match_substring_regex(texts, r"[\x00-\x1f]")):
        for character, escape in _ESCAPES.items():
            texts = pc.replace_substring(texts, character, escape)
    return texts


def _objects(column: pa.Array) -> pa.Array:
    """Return structs as JSON without fields that are null, as Spark does by default."""
    names = _quoted(_escaped(pa.array([field.name for field in column.type], _LARGE_STRING)))
    parts: list[pa.Array | pa.Scalar] = [_scalar("{")]
    begun = False
    for place, (name, field) in enumerate(zip(names, column.flatten(), strict=True)):
        start = _scalar(f"{',' if place else ''}{name.as_py()}:")
        texts = _json(field)
        if texts.null_count:
            parts.append(pc.fill_null(_joined(_scalar(f",{name.as_py()}:"), texts), _scalar("")))
        else:
            parts += start, texts
            begun = begun or not place
    if len(parts) == 1:
        return _null_as(column, pa.repeat(_scalar("{}"), len(column)))
    objects = _joined(*parts, _scalar("}"))
    if not begun:
        # In rows without the first field, the next field begins with a comma.
        objects = pc.replace_substring(objects, "{,", "{", max_replacements=1)
    return _null_as(column, objects)


def _arrays(column: pa.Array) -> pa.Array:
    offsets, start, count = _extent(column)
    elements = pc.fill_null(_json(column.values.slice(start, count)), _scalar("null"))
    return _listed(column, offsets, elements, "[", "]")


def _maps(column: pa.Array) -> pa.Array:
    offsets, start, count = _extent(column)
    keys = _quoted(_escaped(_map_keys(decoded(column.keys.slice(start, count)))))
    values = pc.fill_null(_json(column.items.slice(start, count)), _scalar("null"))
    return _listed(column, offsets, _joined(keys, _scalar(":"), values), "{", "}")


def _map_keys(keys: pa.Array) -> pa.Array:
    """Return the texts of keys; dates and timestamps are numbers of days or microseconds, as inside Spark."""
    kind = keys.type
    if _is_string(kind):
        return _valid(keys)
    if types.is_date(kind):
        keys = keys.cast(pa.int32())
    elif types.is_timestamp(kind):
        keys = keys.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return _floats(keys) if types.is_floating(kind) else keys.cast(_LARGE_STRING)


def _extent(column: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the offsets from 0 on, and the start and number of their elements."""
    offsets = column.offsets
    start = offsets[0].as_py()
    return pc.subtract(offsets, offsets[0]), start, offsets[-1].as_py() - start


def _listed(column: pa.Array, offsets: pa.Array, elements: pa.Array, opening: str, closing: str) -> pa.Array:
    lists = pa.LargeListArray if types.is_large_list(column.type) else pa.ListArray
    texts = pc.binary_join(lists.from_arrays(offsets, elements), _scalar(","))
    return _null_as(column, _joined(_scalar(opening), texts, _scalar(closing)))
