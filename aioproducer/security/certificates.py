"""Subject and end of validity of X.509 certificates, read from PEM (RFC 7468, RFC 5280).

The ``ssl`` module has this only for the peer's certificate and for trusted authorities, not for the client's own chain.
Walking over the few fields in front of the subject is short, and expiry warnings then need no other package.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from aioproducer._common.texts import printable

_PEM_CERTIFICATE = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END (?:X509 |TRUSTED )?CERTIFICATE-----"
)

_SEQUENCE, _SET, _INTEGER, _OBJECT_IDENTIFIER, _VERSION = 0x30, 0x31, 0x02, 0x06, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18

_ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""Codecs of DER's string types: UTF8String, PrintableString, TeletexString, IA5String, UniversalString, BMPString."""

_ATTRIBUTES = {
    "550403": "CN",
    "550406": "C",
    "550407": "L",
    "550408": "ST",
    "55040a": "O",
    "55040b": "OU",
    "0992268993f22c640101": "UID",
    "0992268993f22c640119": "DC",
}
"""The attributes that RFC 4514 names, by the DER of their object identifiers; others are left out."""


class Certificate(NamedTuple):
    """The description of a certificate in the log."""

    subject: str
    """``CN=orders,O=Example``, the most specific name first (RFC 4514); the serial number if the subject is empty."""
    not_after: float
    """End of validity, in seconds since the epoch."""
    fingerprint: bytes
    """SHA-256 of the DER."""

    @property
    def end(self) -> str:
        """End of validity: ``2026-03-01 12:00:00 UTC``."""
        return f"{datetime.fromtimestamp(self.not_after, UTC):%Y-%m-%d %H:%M:%S} UTC"


def certificates_in(pem: bytes) -> Iterator[Certificate]:
    """Yield the certificates of a PEM text, in its order.

    Raises:
        ValueError: a certificate is malformed.
    """
    for block in _PEM_CERTIFICATE.finditer(pem):
        # binascii.Error is a ValueError.
        yield certificate_of(binascii.a2b_base64(block[1]))


def certificate_of(der: bytes) -> Certificate:
    """Describe a certificate from its DER.

    Raises:
        ValueError: it is malformed.
    """
    whole = _Reader(der, 0, len(der))
    fields = whole.enter(_SEQUENCE).enter(_SEQUENCE)
    if fields.next_tag() == _VERSION:
        fields.take()
    _, serial = fields.take(_INTEGER)
    fields.take(_SEQUENCE)  # algorithm
    fields.take(_SEQUENCE)  # issuer
    validity = fields.enter(_SEQUENCE)
    validity.take()  # not before
    not_after = _seconds(*validity.take())
    subject = _name(fields.enter(_SEQUENCE))
    return Certificate(subject or f"serial number {serial.hex()}", not_after, hashlib.sha256(der).digest())


class _Reader:
    """Reads DER elements one after the other."""

    def __init__(self, der: bytes, start: int, end: int) -> None:
        self._der = der
        self._position = start
        self._end = end

    @property
    def has_more(self) -> bool:
        return self._position < self._end

    def next_tag(self) -> int:
        if not self.has_more:
            raise ValueError("malformed certificate: a field is missing")
        return self._der[self._position]

    def _bounds(self, tag: int | None) -> tuple[int, int]:
        """Advance past the next element; return the bounds of its content."""
        found = self.next_tag()
        if tag is not None and found != tag:
            raise ValueError(f"malformed certificate: element {found:#04x} instead of {tag:#04x}")
        start = self._position + 2
        # A length byte that is missing reads as 0, and the check below fails.
        length = int.from_bytes(self._der[self._position + 1 : start])
        if length >= 0x80:
            # The long form: the number of bytes that hold the length.
            count = length - 0x80
            length = int.from_bytes(self._der[start : start + count])
            start += count
        if start + length > self._end:
            raise ValueError("malformed certificate: an element is longer than the element around it")
        self._position = start + length
        return start, start + length

    def take(self, tag: int | None = None) -> tuple[int, bytes]:
        """Return the next element's tag and content."""
        found = self.next_tag()
        start, end = self._bounds(tag)
        return found, self._der[start:end]

    def enter(self, tag: int) -> _Reader:
        """Return a reader of the next element's content."""
        return _Reader(self._der, *self._bounds(tag))


def _seconds(tag: int, content: bytes) -> float:
    """Return a DER time as seconds since the epoch. RFC 5280 requires seconds and Z, and years from 2050 in full."""
    digits = content.removesuffix(b"Z").decode("ascii", "replace")
    if tag == _UTC_TIME:
        digits = ("20" if digits < "50" else "19") + digits
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"malformed certificate: element {tag:#04x} instead of a time")
    if len(digits) != 14 or not digits.isdecimal() or not digits.isascii():
        raise ValueError(f"malformed certificate: {content!r} is no time")
    month, day, hour, minute, second = [int(digits[start : start + 2]) for start in range(4, 14, 2)]
    return datetime(int(digits[:4]), month, day, hour, minute, second, tzinfo=UTC).timestamp()


def _name(names: _Reader) -> str:
    parts: list[str] = []
    while names.has_more:
        relative = names.enter(_SET)
        while relative.has_more:
            attribute = relative.enter(_SEQUENCE)
            _, identifier = attribute.take(_OBJECT_IDENTIFIER)
            tag, value = attribute.take()
            name = _ATTRIBUTES.get(identifier.hex())
            if name is not None and tag in _ENCODINGS:
                parts.append(f"{name}={value.decode(_ENCODINGS[tag], 'replace')}")
    return printable(",".join(reversed(parts)))
