"""The API versions and features of one broker, and the version that a client uses with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aioproducer.errors import UnsupportedVersionError
from aioproducer.protocol import APIS, ApiKey
from aioproducer.protocol.messages.api_versions import ApiVersionsResponse

_THROTTLED_FROM_VERSION: Mapping[int, int] = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.CREATE_PARTITIONS: 1,
}
"""First version of each response after which the client waits for the throttle time, not the broker (KIP-219).

Each is the version in ``shouldClientThrottle`` of the response's class in Kafka 4.4. APIs that are not listed are newer
than KIP-219: the client waits after any of their responses with a throttle time.
"""


class VersionRange(NamedTuple):
    """The versions of an API or a feature, both ends included."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


class BrokerVersions:
    """A broker's response to ApiVersions; without a response, an unknown broker.

    ``apis`` holds its versions by API key. ``finalized_features`` holds the active levels of the cluster's features
    (``transaction.version`` among them), valid if ``finalized_features_epoch`` is 0 or more. ``supported_features``
    holds the levels that the broker supports (KIP-584).
    """

    __slots__ = ("_peer", "apis", "finalized_features", "finalized_features_epoch", "supported_features")

    def __init__(self, peer: str, response: ApiVersionsResponse | None = None) -> None:
        response = ApiVersionsResponse() if response is None else response
        self._peer: str = peer
        self.apis: Mapping[int, VersionRange] = {
            api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys
        }
        self.supported_features: Mapping[str, VersionRange] = {
            feature.name: VersionRange(feature.min_version, feature.max_version)
            for feature in response.supported_features
        }
        self.finalized_features: Mapping[str, VersionRange] = {
            feature.name: VersionRange(feature.min_version_level, feature.max_version_level)
            for feature in response.finalized_features
        }
        self.finalized_features_epoch: int = response.finalized_features_epoch

    def negotiate(self, api_key: int, *, lowest: int = 0, highest: int = 32767) -> int:
        """Return the highest version of an API that broker and client support, within ``lowest`` and ``highest``.

        Raises:
            UnsupportedVersionError: there is none; the text contains both ranges.
        """
        ours = APIS[ApiKey(api_key)]
        theirs = self.apis.get(api_key)
        required = VersionRange(max(ours.min_version, lowest), min(ours.max_version, highest))
        name = ApiKey(api_key).name
        if theirs is None:
            raise UnsupportedVersionError(
                f"The broker {self._peer} does not offer {name} requests, of which version {required} is needed: "
                "its Apache Kafka is too old, or the listener is not for clients."
            )
        version = min(required.highest, theirs.highest)
        if version < required.lowest or version < theirs.lowest:
            raise UnsupportedVersionError(
                f"The broker {self._peer} supports {name} version {theirs}, but version {required} is needed: upgrade "
                f"{'the broker' if theirs.highest < required.lowest else 'aioproducer'}."
            )
        return version


def client_must_wait(api_key: int, version: int) -> bool:
    """Return whether the client must wait for the throttle time of this response (KIP-219)."""
    return version >= _THROTTLED_FROM_VERSION.get(api_key, 0)
