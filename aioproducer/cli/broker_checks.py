"""The checks of ``aioproducer doctor`` against a cluster: each step from the host name to the cluster's clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from aioproducer import __version__
from aioproducer._client.factory import connector_for
from aioproducer._common.diagnosis import connection_failed
from aioproducer._common.texts import printable
from aioproducer.admin import Admin, ClusterDescription
from aioproducer.cli.checks import Check
from aioproducer.config import CONFIG_DEF, ProducerConfig
from aioproducer.errors import (
    ConnectionFailedError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    broker_error,
)
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from aioproducer.protocol.messages.quorum_request import PartitionData, TopicData
from aioproducer.record import Node
from aioproducer.transport.addresses import peer_name
from aioproducer.transport.base import Buffer, Connector
from aioproducer.transport.stream import StreamConnector

T = TypeVar("T")

MOST_SKEW = 30.0
"""Difference between the clocks in seconds that Kafka's token validation tolerates by default
(``sasl.oauthbearer.clock.skew.seconds``)."""

_ADVICE_BOOTSTRAP = "Check that this is the port of a Kafka listener, and the broker's log."
_ADVICE_ADVERTISED = "Check advertised.listeners of that broker, routes and firewalls, and its log."

_CLOCK_SAMPLES = 5
_METADATA_TOPIC = "__cluster_metadata"
# The first bootstrap address of a client with only one.
_BOOTSTRAP_NODE = -1


class _IgnoringHandler:
    """A transport's handler for a connection that is closed at once."""

    def data_received(self, data: Buffer) -> None:
        """Do nothing: no request was sent."""

    def write_completed(self, count: int) -> None:
        """Do nothing: nothing was written."""

    def connection_lost(self, exception: Exception | None) -> None:
        """Do nothing: the connection is closed at once anyway."""


class _Warnings(logging.Handler):
    """Collects the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class ClockSample(NamedTuple):
    """A request and the time in its response, all in seconds since 1970: ``sent`` and ``received`` by this clock."""

    sent: float
    remote: float
    received: float

    @property
    def offset(self) -> float:
        """Seconds by which the other clock is ahead of this one, if request and response took equally long."""
        return self.remote - (self.sent + self.received) / 2

    @property
    def uncertainty(self) -> float:
        """The largest error of ``offset``, in seconds: half of the round trip."""
        return (self.received - self.sent) / 2


def configuration(config: dict[str, object]) -> tuple[ProducerConfig | None, list[Check]]:
    """Return the parsed configuration, None if it is wrong, and the checks: no value of a key is in them."""
    handler = _Warnings()
    logger = logging.getLogger("aioproducer.config")
    logger.addHandler(handler)
    try:
        parsed = ProducerConfig.from_mapping(config)
        # The files that its keys name are read here.
        connector_for(parsed, "tcp")
    except KafkaError as error:
        return None, [Check.failed("keys", error)]
    finally:
        logger.removeHandler(handler)
    names = {key.attribute: name for name, key in CONFIG_DEF.keys.items()}
    protocol = parsed.security_protocol + (f", {parsed.sasl_mechanism}" if parsed.uses_sasl else "")
    return parsed, [
        Check.ok("given keys", ", ".join(sorted(names.get(name, name) for name in config))),
        Check.ok("security", protocol),
        *(Check.note("warning", warning) for warning in handler.texts),
    ]


class BootstrapChecks:
    """The steps of a connection to one address of ``bootstrap.servers``.

    Args:
        timeout: limit of each step, in seconds.
    """

    def __init__(self, config: ProducerConfig, address: tuple[str, int], timeout: float) -> None:
        self._config = config
        self._host, self._port = address
        self._timeout = timeout
        self._peer = peer_name(*address)
        self.checks: list[Check] = []

    async def connect(self) -> bool:
        """Resolve the host name and connect; return whether requests can be sent."""
        plain = StreamConnector(None)
        addresses = await self._step("name", self._resolve(plain), lambda found: ", ".join(found))
        if not addresses:
            return False
        reached = await self._reach(addresses, plain)
        if reached is None:
            return False
        if not self._config.uses_tls:
            return True
        connector = connector_for(self._config, "tcp")
        began = time.monotonic()
        done = await self._step(
            "TLS",
            self._open(connector, reached, uses_tls=True),
            lambda _: f"connection and handshake in {_ms(time.monotonic() - began)}",
        )
        return done is not None

    async def _step(self, name: str, work: Awaitable[T], text: Callable[[T], str]) -> T | None:
        """Add the check of a step; return the result of its work, None if it failed."""
        try:
            result = await work
        except KafkaError as error:
            self.checks.append(Check.failed(name, error))
            return None
        self.checks.append(Check.ok(name, text(result)))
        return result

    async def _resolve(self, connector: Connector) -> list[str]:
        async with self._connecting(self._peer, uses_tls=False):
            return await connector.resolve(self._host, self._port)

    async def _reach(self, addresses: Sequence[str], connector: Connector) -> str | None:
        """Return the first address that accepts a TCP connection; a client tries them in the same order."""
        refused = []
        for address in addresses:
            began = time.monotonic()
            try:
                await self._open(connector, address, uses_tls=False)
            except KafkaError as error:
                refused.append(str(error))
                continue
            self.checks += [Check.note("TCP", text) for text in refused]
            self.checks.append(Check.ok("TCP", f"{peer_name(address, self._port)} in {_ms(time.monotonic() - began)}"))
            return address
        self.checks += [Check.failed("TCP", text) for text in refused]
        return None

    async def _open(self, connector: Connector, address: str, *, uses_tls: bool) -> bool:
        async with self._connecting(peer_name(address, self._port), uses_tls=uses_tls):
            transport = await connector.connect(address, self._port, _IgnoringHandler(), server_hostname=self._host)
        transport.abort()
        return True

    @asynccontextmanager
    async def _connecting(self, peer: str, *, uses_tls: bool) -> AsyncIterator[None]:
        """Limit the time of the block, and raise its errors as those of a client, with what to do.

        Raises:
            ConnectionFailedError, TlsError: the block failed.
        """
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError:
            text = f"{peer} did not answer within {self._timeout:g} s: check host, port and firewalls."
            raise ConnectionFailedError(text) from None
        except OSError as error:
            raise connection_failed(self._peer, error, uses_tls=uses_tls) from None

    async def log_in(self, admin: Admin) -> ApiVersionsResponse | None:
        """Send the first request, which logs in before, and a second one to measure the round trip."""
        first = f"{self._config.sasl_mechanism} login" if self._config.uses_sasl else "first request"
        began = time.monotonic()
        versions = await self._step(
            first,
            _api_versions(admin, _BOOTSTRAP_NODE, self._timeout, _ADVICE_BOOTSTRAP),
            lambda _: f"in {_ms(time.monotonic() - began)}",
        )
        if versions is None:
            return None
        began = time.monotonic()
        return await self._step(
            "ApiVersions",
            _api_versions(admin, _BOOTSTRAP_NODE, self._timeout, _ADVICE_BOOTSTRAP),
            lambda found: f"{len(found.api_keys)} requests known, round trip {_ms(time.monotonic() - began)}",
        )


async def _api_versions(admin: Admin, node_id: int, timeout: float, advice: str) -> ApiVersionsResponse:
    """Return a broker's answer to ApiVersions.

    Raises:
        KafkaTimeoutError: there was none in time; the text ends in ``advice``.
        KafkaError: as ``BrokerClient.request``, or the broker rejects the request.
    """
    request = ApiVersionsRequest(client_software_name="aioproducer", client_software_version=__version__)
    try:
        response = await admin.client.request(request, node_id=node_id, timeout=timeout)
    except KafkaTimeoutError as error:
        raise KafkaTimeoutError(f"{error} {advice}") from error
    if response.error_code:
        raise broker_error(response.error_code)
    return response


async def cluster(admin: Admin, versions: ApiVersionsResponse, timeout: float) -> list[Check]:
    """Return the checks of the cluster that a bootstrap address leads to."""
    try:
        described = await admin.describe_cluster()
        # The nodes' addresses are known to the client from here on.
        await admin.client.renew_metadata(timeout)
    except KafkaError as error:
        return [Check.failed("metadata", error)]
    return [
        *_overview(described),
        *await asyncio.gather(*(broker(admin, node, timeout) for node in described.nodes)),
        features(versions),
        await clock(admin, timeout),
    ]


def _overview(described: ClusterDescription) -> list[Check]:
    checks = [
        Check.ok("cluster id", printable(described.cluster_id))
        if described.cluster_id is not None
        else Check.unknown("cluster id", "the response has none"),
        Check.ok("brokers", len(described.nodes)),
    ]
    if described.controller is None:
        text = "no controller is known: check the brokers' logs for an election, or for errors in connecting to it"
        return [*checks, Check.failed("controller", text)]
    return [*checks, Check.ok("controller", f"clients use broker {described.controller}")]


async def broker(admin: Admin, node: Node, timeout: float) -> Check:
    """Return whether a broker can be reached at the address that it advertises."""
    name = f"broker {node.id}"
    peer = peer_name(node.host, node.port)
    try:
        await _api_versions(admin, node.id, timeout, _ADVICE_ADVERTISED)
        began = time.monotonic()
        await _api_versions(admin, node.id, timeout, _ADVICE_ADVERTISED)
    except KafkaError as error:
        return Check.failed(name, f"advertised as {peer}. {error}")
    rack = "" if node.rack is None else f", rack {printable(node.rack)}"
    return Check.ok(name, f"advertised as {peer}{rack}, round trip {_ms(time.monotonic() - began)}")


def features(versions: ApiVersionsResponse) -> Check:
    """Return the levels of features that the cluster uses (KIP-584)."""
    if versions.finalized_features_epoch < 0:
        return Check.unknown("features", "the response has none (KIP-584)")
    levels = sorted((printable(each.name), each.max_version_level) for each in versions.finalized_features)
    return Check.ok("features", ", ".join(f"{name} {level}" for name, level in levels) or "none")


async def clock(admin: Admin, timeout: float) -> Check:
    """Return the difference between the controller's clock and this one.

    No response of a broker has its time. The leader of the metadata log describes its own replica as caught up at this
    moment (KIP-836), so that DescribeQuorum has the active controller's time.
    """
    topic = TopicData(topic_name=_METADATA_TOPIC, partitions=[PartitionData()])
    request = DescribeQuorumRequest(topics=[topic])
    samples: list[ClockSample] = []
    try:
        async with asyncio.timeout(timeout):
            for _ in range(_CLOCK_SAMPLES):
                sent = time.time()
                response = await admin.client.request(request, timeout=timeout)
                received = time.time()
                remote = leader_time(response)
                if remote is None:
                    return Check.unknown("clock", "the response has no time (KIP-836, Kafka 3.3)")
                samples.append(ClockSample(sent, remote, received))
    except UnsupportedVersionError:
        return Check.unknown("clock", "the brokers do not support DescribeQuorum, which has the controller's time")
    except TimeoutError:
        if not samples:
            return Check.unknown("clock", f"DescribeQuorum was not answered within {timeout:g} s")
    except KafkaError as error:
        return Check.unknown("clock", f"DescribeQuorum has the controller's time, but: {error}")
    return clock_check(samples)


def leader_time(response: DescribeQuorumResponse) -> float | None:
    """Return the time of the metadata log's leader in seconds since 1970, None if the response has none.

    Raises:
        KafkaError: the broker rejects the request.
    """
    if response.error_code:
        raise broker_error(response.error_code, response.error_message)
    for partition in (partition for topic in response.topics for partition in topic.partitions):
        if partition.error_code:
            raise broker_error(partition.error_code, partition.error_message)
        for replica in partition.current_voters:
            if replica.replica_id == partition.leader_id and replica.last_caught_up_timestamp > 0:
                return replica.last_caught_up_timestamp / 1000
    return None


def clock_check(samples: Sequence[ClockSample]) -> Check:
    """Return the check of the most precise sample; it fails only if the difference is certainly too large."""
    best = min(samples, key=lambda sample: sample.uncertainty)
    # The other clock is read in whole milliseconds, rounded down.
    offset, uncertainty = best.offset + 0.0005, best.uncertainty + 0.0005
    direction = "ahead of" if offset > 0 else "behind"
    text = f"the controller is {abs(offset):.3f} s {direction} this machine, ± {uncertainty:.3f} s"
    if abs(offset) - uncertainty > MOST_SKEW:
        return Check.failed(
            "clock",
            f"{text}: synchronize the clocks (NTP), or timestamps are wrong, tokens are rejected and records are "
            "deleted too early or too late",
        )
    return Check.ok("clock", text)


async def brokers(config: dict[str, object], parsed: ProducerConfig, timeout: float) -> dict[str, list[Check]]:
    """Return a section for each bootstrap address, and one for the cluster behind the first that works."""
    sections: dict[str, list[Check]] = {}
    found: list[Check] | None = None
    for address in parsed.bootstrap_addresses:
        peer = peer_name(*address)
        checks = BootstrapChecks(parsed, address, timeout)
        sections[f"bootstrap {peer}"] = checks.checks
        if not await checks.connect():
            continue
        async with Admin.from_config(_only(config, peer), timeout=timeout) as admin:
            versions = await checks.log_in(admin)
            if versions is not None and found is None:
                found = await cluster(admin, versions, timeout)
    reason = "no bootstrap address works: see above"
    sections["cluster"] = [Check.unknown("metadata", reason)] if found is None else found
    return sections


def _only(config: dict[str, object], peer: str) -> dict[str, object]:
    """Return the configuration with one bootstrap address."""
    others = {name: value for name, value in config.items() if name.replace("_", ".") != "bootstrap.servers"}
    return {**others, "bootstrap.servers": peer}


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
