"""ApiVersions: the requests and features that client and broker have in common (KIP-35, KIP-511, KIP-584)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class ApiVersion(Struct):
    """The versions of one request."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    """The levels of one feature that the broker knows."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    """The levels of one feature that the cluster uses."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Response, api_key=18, versions="0-5", flexible="3+"):
    """The requests and versions that a broker knows, and the features of its cluster (KIP-584).

    ``finalized_features_epoch`` is -1 if it is unknown.
    """

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", ignorable=True, tag=0)
    finalized_features_epoch: int = int64("3+", default=-1, ignorable=True, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", ignorable=True, tag=2)
    zk_migration_ready: bool = boolean("3+", ignorable=True, tag=3)


class ApiVersionsRequest(Request[ApiVersionsResponse], api_key=18, versions="0-5", flexible="3+"):
    """Request the APIs and versions of a broker, and send the client's software name and version.

    From version 5 on the client can state the cluster and node that it expects at this address (KIP-1242).
    """

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)
    cluster_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    node_id: int = int32("5+", default=-1, ignorable=True)
