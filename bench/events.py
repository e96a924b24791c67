"""JSON events as services send them: each is a new dict, made when it is needed, with a key and two headers.

The time of every client includes making the events, as in a service. `bench.plain` measures only making and encoding
them. The objects inside an event (a customer, an address, items) already exist: a service has them from its request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, count, islice, repeat
from typing import Any, NamedTuple

from bench.job import CHUNK

# Event, key and headers.
EventMessage = tuple[dict[str, Any], bytes, list[tuple[str, bytes]]]

# Number of values of each kind: a prime, so that strides combine each value with every other.
_VARIANTS = 997
_START_MS = 1_741_000_000_000
_CONTENT_TYPE = ("content-type", b"application/json")


class _Values(NamedTuple):
    """The objects that a service already has when it makes an event."""

    identifiers: list[str]
    customers: list[dict[str, Any]]
    addresses: list[dict[str, str]]
    baskets: list[list[dict[str, Any]]]
    agents: list[str]
    keys: list[bytes]
    traces: list[bytes]


@cache
def _values(seed: int = 9) -> _Values:
    source = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def word(least: int, most: int) -> str:
        return "".join(source.choices(letters, k=source.randint(least, most)))

    def customer(number: int) -> dict[str, Any]:
        first, last = word(3, 9), word(5, 11)
        return {
            "id": 100_000 + number,
            "name": f"{first.title()} {last.title()}",
            "email": f"{first}.{last}@{word(5, 9)}.example",
            "language": source.choice(["de-DE", "en-GB", "fr-FR", "pt-BR"]),
        }

    def address() -> dict[str, str]:
        return {
            "street": f"{word(6, 12).title()} Street {source.randint(1, 200)}",
            "city": word(5, 12).title(),
            "postal_code": f"{source.randint(10_000, 99_999)}",
            "country": source.choice(["DE", "GB", "FR", "BR"]),
        }

    def item() -> dict[str, Any]:
        return {
            "sku": f"{word(3, 3).upper()}-{source.randint(10_000, 99_999)}",
            "title": f"{word(4, 9).title()} {word(4, 9)} {word(3, 8)}",
            "price_cents": source.randint(199, 99_999),
            "quantity": source.randint(1, 4),
        }

    variants = range(_VARIANTS)
    return _Values(
        [f"{source.getrandbits(64):016x}" for _ in variants],
        [customer(number) for number in variants],
        [address() for _ in variants],
        [[item() for _ in range(5)] for _ in variants],
        [f"Mozilla/5.0 (X11; Linux x86_64) {word(6, 9).title()}/{source.randint(100, 140)}.0" for _ in variants],
        [b"customer-%d" % (100_000 + number) for number in variants],
        [f"00-{source.getrandbits(128):032x}-{source.getrandbits(64):016x}-01".encode() for _ in variants],
    )


def _payment(number: int, values: _Values) -> dict[str, Any]:
    """Return an event of about 100 bytes of JSON."""
    return {
        "type": "payment.captured",
        "order": 40_000_000 + number,
        "customer": 100_000 + number % _VARIANTS,
        "cents": 199 + number % 99_991,
        "time_ms": _START_MS + number,
    }


def _order(number: int, values: _Values) -> dict[str, Any]:
    """Return an event of about 1,000 bytes of JSON."""
    return {
        "type": "order.placed",
        "version": 3,
        "order": 40_000_000 + number,
        "request": values.identifiers[number * 5 % _VARIANTS],
        "time_ms": _START_MS + number,
        "customer": values.customers[number % _VARIANTS],
        "shipping_address": values.addresses[number * 2 % _VARIANTS],
        "billing_address": values.addresses[number * 3 % _VARIANTS],
        "items": values.baskets[number * 7 % _VARIANTS],
        "total_cents": 199 + number % 499_979,
        "currency": "EUR",
        "paid": number % 10 != 0,
        "voucher": None,
        "user_agent": values.agents[number * 11 % _VARIANTS],
    }


_EVENTS: dict[int, Callable[[int, _Values], dict[str, Any]]] = {100: _payment, 1000: _order}


def stream(size: int) -> Iterator[EventMessage]:
    """Yield messages without an end, with JSON of about ``size`` bytes; each is made when it is requested.

    Raises:
        ValueError: there is no event of that size.
    """
    make = _EVENTS.get(size)
    if make is None:
        raise ValueError(f"No event of {size} bytes: event_size must be one of {', '.join(map(str, _EVENTS))}.")
    return _made(make, _values())


def chunks(size: int, records: int) -> Iterator[Sequence[EventMessage]]:
    """Yield ``records`` messages in lists of ``CHUNK``; each list is made when it is requested.

    Raises:
        ValueError: there is no event of that size.
    """
    messages = stream(size)
    whole, rest = divmod(records, CHUNK)
    for length in chain(repeat(CHUNK, whole), [rest] if rest else []):
        yield list(islice(messages, length))


def _made(make: Callable[[int, _Values], dict[str, Any]], values: _Values) -> Iterator[EventMessage]:
    for number in count():
        index = number % _VARIANTS
        yield make(number, values), values.keys[index], [("traceparent", values.traces[index]), _CONTENT_TYPE]
