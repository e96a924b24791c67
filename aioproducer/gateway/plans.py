"""The positions of brokers' addresses in responses, and how each response is rewritten.

* Metadata, DescribeCluster: an array near the start. The bytes up to its end are held, the rest passes.
* FindCoordinator: the same, in fields of the message itself up to version 3.
* Produce from version 10, Fetch from 16, ShareFetch, ShareAcknowledge: behind everything else (KIP-951). A small
response
  is held whole. A large one passes, and its size has been sent by then, so addresses of another length are fitted into
  the same number of bytes, see ``fit_tail``.
* ApiVersions has no addresses, but is limited to the versions that the gateway knows.

Other responses of Kafka 4.4 with host names pass unchanged. They have those of clients (DescribeGroups, the groups of
Kafka Streams) or of the controllers' quorum (DescribeQuorum), which no client of a broker connects to.
"""

from __future__ import annotations

import functools
import struct
from typing import Final, NamedTuple, TypeAlias

from aioproducer.gateway.rewriting import (
    Translate,
    cut_versions,
    padded,
    rewrite_address,
    rewrite_array,
    rewrite_tags,
    without_tag,
)
from aioproducer.gateway.share import ShareAcknowledgeResponse, ShareFetchResponse
from aioproducer.gateway.walking import Step, field_steps, steps_of, walk, walk_over, walk_tags
from aioproducer.protocol import APIS, ApiKey, Buffer, Message, Response
from aioproducer.protocol.schema import Field

UNSUPPORTED_VERSION: Final = 35
_INT16: Final = struct.Struct(">h")


class HeadPlan(NamedTuple):
    """Addresses near the start of a response."""

    response: type[Response]
    version: int
    flexible: bool
    names: tuple[str, ...]
    """The fields with the addresses: one array, or a host and a port."""
    before: tuple[Step, ...]
    """Steps from behind the correlation id to the first of these fields."""
    over: tuple[Step, ...]
    """Steps over these fields."""

    def rewrite(self, memory: memoryview, translate: Translate) -> list[Buffer]:
        """Return the new bytes for ``memory``, which contains exactly these fields."""
        pieces: list[Buffer] = []
        if self.names == ("host", "port"):
            rewrite_address(memory, 0, self.flexible, translate, pieces)
        else:
            element = _element(_field(self.response, self.names[0]))
            rewrite_array(memory, 0, element, self.version, self.flexible, translate, pieces)
        return pieces


class TailPlan(NamedTuple):
    """Addresses at the end of a response, which has the flexible encoding."""

    response: type[Response]
    version: int
    before: tuple[Step, ...]
    """Steps from behind the correlation id to the position where ``rewrite_tail`` starts."""
    endpoints: Field
    """The array of addresses: a tagged field, or the last field before the tagged fields."""

    def rewrite_tail(self, memory: memoryview, translate: Translate) -> list[Buffer]:
        """Return the new bytes for ``memory``, which extends to the end of the frame."""
        pieces: list[Buffer] = []
        element = _element(self.endpoints)
        if self.endpoints.tag is None:
            position = rewrite_array(memory, 0, element, self.version, True, translate, pieces)
            _, end = walk_over(walk_tags(), memory, position)
            pieces.append(memory[position:end])
        else:
            end = rewrite_tags(memory, 0, self.endpoints.tag, element, self.version, translate, pieces)
        pieces.append(memory[end:])
        return pieces

    def fit_tail(self, memory: memoryview, translate: Translate) -> tuple[bytes, bool]:
        """Rewrite into exactly as many bytes as ``memory`` has; also return whether the addresses are still there.

        Shorter addresses are followed by an unknown tagged field, which every reader skips. Longer ones are left out: a
        client that learns only that a leader has moved requests metadata.
        """
        rewritten = memoryview(b"".join(self.rewrite_tail(memory, translate)))
        fitted = padded(rewritten, self._tags_at(rewritten), len(memory)) if len(rewritten) <= len(memory) else None
        if fitted is not None:
            return fitted, True
        if self.endpoints.tag is None:
            bare = memoryview(b"\x01" + bytes(memory[self._tags_at(memory) :]))
            fitted = padded(bare, 1, len(memory))
        else:
            fitted = padded(memoryview(without_tag(memory, self.endpoints.tag)), 0, len(memory))
        # An address takes more bytes than the smallest tagged field.
        assert fitted is not None
        return fitted, False

    def _tags_at(self, memory: memoryview) -> int:
        if self.endpoints.tag is not None:
            return 0
        steps = field_steps(self.response, self.version, True, self.endpoints.name)
        return walk_over(walk(steps), memory, 0)[1]


class VersionsPlan(NamedTuple):
    """An ApiVersions response."""

    version: int

    def rewrite(self, memory: memoryview, sasl_passes: bool = True) -> list[Buffer]:
        """Return the new bytes for ``memory``, which is the message without its header.

        Without ``sasl_passes`` the SASL requests are left out.
        A broker without the requested version answers in version 0 (KIP-511).
        """
        _, behind = walk_over(walk([_INT16.size]), memory, 0)
        (error_code,) = _INT16.unpack_from(memory)
        pieces: list[Buffer] = [memory[:behind]]
        flexible = self.version >= 3 and error_code != UNSUPPORTED_VERSION
        position = cut_versions(memory, behind, flexible, sasl_passes, pieces)
        pieces.append(memory[position:])
        return pieces


Plan: TypeAlias = HeadPlan | TailPlan | VersionsPlan

_HEADS: Final = {
    ApiKey.METADATA: ("brokers",),
    ApiKey.FIND_COORDINATOR: ("coordinators",),
    ApiKey.DESCRIBE_CLUSTER: ("brokers",),
}
_LAST_SINGLE_COORDINATOR: Final = 3
_TAILS: Final = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)
_SHARE: Final[dict[int, type[Response]]] = {
    ApiKey.SHARE_FETCH: ShareFetchResponse,
    ApiKey.SHARE_ACKNOWLEDGE: ShareAcknowledgeResponse,
}


@functools.cache
def plan_of(api_key: int, version: int) -> Plan | None:
    """Return how the response to a known request is rewritten; ``None`` if it passes unchanged."""
    if api_key == ApiKey.API_VERSIONS:
        return VersionsPlan(version)
    if api_key in _TAILS:
        return _tail_plan(_SHARE.get(api_key) or APIS[ApiKey(api_key)].response, version)
    if api_key not in _HEADS:
        return None
    response = APIS[ApiKey(api_key)].response
    names: tuple[str, ...] = _HEADS[ApiKey(api_key)]
    if api_key == ApiKey.FIND_COORDINATOR and version <= _LAST_SINGLE_COORDINATOR:
        names = ("host", "port")
    flexible = version in response.schema.flexible
    over = tuple(step for name in names for step in field_steps(response, version, flexible, name))
    return HeadPlan(response, version, flexible, names, _before(response, version, flexible, until=names[0]), over)


def _tail_plan(response: type[Response], version: int) -> TailPlan | None:
    endpoints = _field(response, "node_endpoints")
    if version not in endpoints.versions:
        return None
    until = None if endpoints.tag is not None else endpoints.name
    return TailPlan(response, version, _before(response, version, True, until=until), endpoints)


def _before(response: type[Response], version: int, flexible: bool, *, until: str | None) -> tuple[Step, ...]:
    """Return the steps from behind the correlation id; a flexible header has tagged fields there."""
    header: tuple[Step, ...] = (walk_tags,) if flexible else ()
    return header + steps_of(response, version, flexible, until=until, tags=False)


def _field(message_class: type[Message], name: str) -> Field:
    (field,) = (field for field in message_class.schema.fields if field.name == name)
    return field


def _element(array: Field) -> type[Message]:
    assert isinstance(array.element, type)
    return array.element
