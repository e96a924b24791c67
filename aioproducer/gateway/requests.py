"""The direction from a client to its broker: every byte passes, and the expected responses are recorded.

Only the header of a request is read, and ``acks`` of a Produce request, which decides whether there is a response.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from aioproducer.errors import ProtocolError
from aioproducer.gateway.versions import SASL_APIS, is_known
from aioproducer.gateway.walking import Walk, Walker, walk_sized, walk_tags
from aioproducer.protocol import APIS, ApiKey, Buffer

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">ihhi")
"""Size, API key, version, correlation id."""
_VERSION_AT: Final = 6
_INT16: Final = struct.Struct(">h")
_SMALLEST_REQUEST: Final = _HEADER.size - _SIZE.size

_FIRST_WITH_TRANSACTIONS: Final = 3
_UNHEARD_OF: Final = 2**15 - 1
"""An ApiVersions version that no broker has: it answers in version 0 with the versions that it has (KIP-511)."""


class Expected(NamedTuple):
    """A request that will be answered."""

    correlation_id: int
    api_key: int
    version: int


class Exchange:
    """State that both directions of a connection share."""

    __slots__ = ("expected", "raw_tokens", "requests", "responses", "rewritten", "sasl_passes", "shortened")

    def __init__(self, *, sasl_passes: bool = True) -> None:
        self.sasl_passes = sasl_passes
        """Whether clients authenticate to the broker. Otherwise the gateway does, and offers them no SASL."""
        self.expected: deque[Expected] = deque()
        """The unanswered requests; a broker answers in their order."""
        self.raw_tokens = False
        """After SaslHandshake of version 0 frames may be tokens of a mechanism, until the first request."""
        self.requests = 0
        self.responses = 0
        self.rewritten = 0
        """Number of responses with replaced addresses or removed versions."""
        self.shortened = 0
        """Number of responses that lost the leaders' addresses, as there was no room for those of their gateways."""


class RequestStream:
    """The requests of a client. ``max_request_size``: bytes of a request without its size."""

    __slots__ = ("_acks", "_exchange", "_held", "_max_request_size", "_remaining", "_request", "_stopped", "failure")

    def __init__(self, exchange: Exchange, max_request_size: int) -> None:
        self.failure: ProtocolError | None = None
        """Why nothing passes any longer: invalid bytes, or a request that may not pass; the text has the reason."""
        self._exchange = exchange
        self._max_request_size = max_request_size
        self._held = b""
        """The received part of an incomplete header."""
        self._remaining = 0
        """Bytes of the current frame that have not arrived."""
        self._acks: Walker[int] | None = None
        self._request = Expected(0, 0, 0)
        """The Produce request in which ``acks`` is being read."""
        self._stopped = False

    @property
    def between_requests(self) -> bool:
        """Whether every request that has begun to pass is complete, or can never be."""
        return self._remaining == 0 or self.failure is not None

    def stop(self) -> None:
        """Let no further request pass; the rest of one that has begun still passes."""
        self._stopped = True

    def feed(self, data: Buffer) -> list[Buffer]:
        """Return the bytes for the broker, in memory of their own; none after the cause of ``failure``."""
        if self.failure is not None:
            return []
        chunk = bytearray(self._held)
        chunk += data
        self._held = b""
        view = memoryview(chunk)
        end = len(chunk)
        position = 0
        try:
            while position < end:
                if self._remaining:
                    count = min(self._remaining, end - position)
                    self._pass(view[position : position + count])
                    position += count
                elif self._stopped:
                    end = position
                else:
                    count = self._begin(chunk, position)
                    if not count:
                        self._held = bytes(view[position:])
                        end = position
                    position += count
        except ProtocolError as error:
            self.failure = error
            end = position
        return [view[:end]] if end else []

    def _begin(self, chunk: bytearray, position: int) -> int:
        """Begin a frame; return the number of bytes read, 0 if there are too few yet."""
        available = len(chunk) - position
        if available < _SIZE.size:
            return 0
        (size,) = _SIZE.unpack_from(chunk, position)
        if not 0 <= size <= self._max_request_size:
            raise ProtocolError(
                f"a request of {size} bytes (minimum {_SMALLEST_REQUEST}, maximum {self._max_request_size}); "
                "it may use another protocol than Kafka's"
            )
        if size < _SMALLEST_REQUEST:
            if not self._exchange.raw_tokens:
                raise ProtocolError(f"a request of {size} bytes, too short for its header")
            self._remaining = size
            return _SIZE.size
        if available < _HEADER.size:
            return 0
        _, api_key, version, correlation_id = _HEADER.unpack_from(chunk, position)
        if self._exchange.raw_tokens:
            # No token begins like a request. A text token has letters or separators at the position of the version. A
            # GSSAPI token has an ASN.1 tag or a token id at that of the API key.
            if not is_known(api_key, version):
                self._remaining = size
                return _SIZE.size
            self._exchange.raw_tokens = False
        if not is_known(api_key, version):
            self._refuse_unknown(api_key, version)
            _INT16.pack_into(chunk, position + _VERSION_AT, _UNHEARD_OF)
        if api_key in SASL_APIS and not self._exchange.sasl_passes:
            raise ProtocolError(
                "a SASL request, although this gateway authenticates to the broker itself; set the client's "
                "security.protocol to PLAINTEXT"
            )
        self._remaining = size - _SMALLEST_REQUEST
        self._record(Expected(correlation_id, api_key, version))
        return _HEADER.size

    def _refuse_unknown(self, api_key: int, version: int) -> None:
        """Refuse unknown requests, except ApiVersions: with it clients find out the versions."""
        if api_key != ApiKey.API_VERSIONS or version < 0:
            raise ProtocolError(
                f"a request with API key {api_key} in version {version}, which clients were not offered: the gateway "
                "does not know whether its response has addresses"
            )

    def _record(self, request: Expected) -> None:
        self._exchange.requests += 1
        if request.api_key == ApiKey.PRODUCE:
            self._request = request
            self._acks = Walker(_walk_to_acks(request.version))
            if not self._remaining:
                raise ProtocolError("a Produce request that ends before its acks")
            return
        if request.api_key == ApiKey.SASL_HANDSHAKE and request.version == 0:
            self._exchange.raw_tokens = True
        self._exchange.expected.append(request)

    def _pass(self, data: memoryview) -> None:
        self._remaining -= len(data)
        if self._acks is None:
            return
        self._acks.feed(data)
        if self._acks.done:
            if self._acks.result != 0:
                self._exchange.expected.append(self._request)
            self._acks = None
        elif not self._remaining:
            raise ProtocolError("a Produce request that ends before its acks")


def _walk_to_acks(version: int) -> Walk[int]:
    """Walk from behind the correlation id of a Produce request to its acks, and return them."""
    flexible = version in APIS[ApiKey.PRODUCE].flexible
    # The client id has the old encoding in every version of the header.
    yield from walk_sized(_INT16)
    if flexible:
        yield from walk_tags()
    if version >= _FIRST_WITH_TRANSACTIONS:
        yield from walk_sized(None if flexible else _INT16)
    acks: int
    (acks,) = _INT16.unpack((yield _INT16.size))
    return acks
