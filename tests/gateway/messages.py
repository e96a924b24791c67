"""Messages as frames, whole and in pieces, and with other addresses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from aioproducer.protocol import Message, Response, encode_response


def response_frame(response: Response, version: int, correlation_id: int = 7) -> bytes:
    """Return a whole frame with its size."""
    return b"".join(encode_response(response, version, correlation_id))


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return ``data``, cut at these positions."""
    marks = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(marks)]


def mapped(message: Any, version: int, translate: Any) -> Any:
    """Translate every address in ``message`` that it has in ``version``, in any struct."""
    if isinstance(message, list):
        return [mapped(item, version, translate) for item in message]
    if not isinstance(message, Message):
        return message
    names = [field.name for field in message.schema.fields if version in field.versions]
    values = {name: mapped(getattr(message, name), version, translate) for name in names}
    if {"host", "port"} <= values.keys():
        values["host"], values["port"] = translate(values["host"], values["port"])
    return type(message)(**values)
