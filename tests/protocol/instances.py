"""Random instances of any message, for any of its versions."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from aioproducer.protocol.schema import BOOLEAN, BYTES, RECORDS, STRING, UINT16, UUID, Field, Message, Scalar

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def _elements(element: object, version: int) -> st.SearchStrategy[Any]:
    if not isinstance(element, Scalar):
        return instances(element, version)
    if element is STRING:
        return _texts
    if element is BOOLEAN:
        return st.booleans()
    if element is UUID:
        return st.binary(min_size=16, max_size=16)
    if element in (BYTES, RECORDS):
        # Also values with a length of two bytes.
        return st.binary(max_size=5) | st.just(bytes(200))
    if element is UINT16:
        return st.integers(0, 2**16 - 1)
    bits = {"b": 8, "h": 16, "i": 32, "q": 64}[element.struct_format]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _values(field: Field, version: int) -> st.SearchStrategy[Any]:
    values = _elements(field.element, version)
    if field.is_array:
        values = st.lists(values, max_size=2)
    return st.none() | values if version in field.nullable else values


@functools.cache
def instances(message_class: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Any message that can be written in ``version`` without dropping anything."""
    fields = {f.name: _values(f, version) for f in message_class.schema.fields if version in f.versions}
    return st.builds(message_class, **fields)
