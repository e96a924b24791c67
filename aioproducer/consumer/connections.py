"""Connections and settings of a ``Consumer``, from its configuration."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from aioproducer._client.factory import node_settings
from aioproducer._common.client_log import ClientLog
from aioproducer.config import ProducerConfig
from aioproducer.config.consumer import ConsumerConfig
from aioproducer.config.consumer_keys import reset_duration_ms
from aioproducer.consumer.driver import FetchDriver
from aioproducer.consumer.group import ConsumerGroup
from aioproducer.consumer_metrics import ConsumerMetrics
from aioproducer.core.fetching.fetcher import Fetcher, FetcherSettings
from aioproducer.core.fetching.reset import OffsetReset, ResetKind
from aioproducer.core.membership.assignors import ASSIGNORS
from aioproducer.core.membership.events import MembershipSettings
from aioproducer.core.membership.membership import GroupMembership
from aioproducer.core.metadata.cluster import MetadataChange
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.io.client import BrokerClient
from aioproducer.io.group_member import CoordinatorClient, GroupMember
from aioproducer.transport.base import Connector

# The topics of an assignment are in use as long as they are assigned, however seldom they are fetched.
_NEVER_IDLE_MS = 2**53


class Clients(NamedTuple):
    """Three sets of connections over one metadata: a broker answers the requests of a connection one by one.

    A Fetch may wait for ``fetch_max_wait_ms``, a JoinGroup for the other members; requests for metadata and offsets
    must not wait behind them. A connection is made when a request needs it.
    """

    control: BrokerClient
    fetch: BrokerClient
    coordinator: CoordinatorClient


def make_clients(
    config: ConsumerConfig,
    loop: asyncio.AbstractEventLoop,
    connector: Connector,
    random: Random,
    log: ClientLog,
    metrics: ConsumerMetrics,
) -> Clients:
    """Return the clients of a consumer; ``control`` requests the metadata of all."""
    return connect(
        config.connection,
        loop,
        connector,
        random,
        log,
        may_create_topics=config.allow_auto_create_topics,
        metrics=metrics,
    )


def connect(
    config: ProducerConfig,
    loop: asyncio.AbstractEventLoop,
    connector: Connector,
    random: Random,
    log: ClientLog,
    *,
    may_create_topics: bool,
    metrics: ConsumerMetrics | None = None,
) -> Clients:
    """As ``make_clients``, from the keys about connections."""
    metadata = ClusterMetadata(
        config.bootstrap_addresses,
        random=random,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        metadata_max_age_ms=config.metadata_max_age_ms,
        metadata_max_idle_ms=_NEVER_IDLE_MS,
        metadata_recovery_strategy=config.metadata_recovery_strategy,
        metadata_recovery_rebootstrap_trigger_ms=config.metadata_recovery_rebootstrap_trigger_ms,
        allow_auto_topic_creation=may_create_topics,
    )
    # One login: a token is fetched once for all connections.
    settings = node_settings(config, loop, random, log)
    control, fetch = (
        BrokerClient(loop, metadata, connector, settings, random=random, metrics=metrics) for _ in range(2)
    )
    coordinator = CoordinatorClient(
        loop, metadata, connector, settings, random=random, control=control, metrics=metrics
    )

    def apply_change(change: MetadataChange) -> None:
        fetch.apply_change(change)
        coordinator.apply_change(change)

    control.on_change = apply_change
    return Clients(control, fetch, coordinator)


def offset_reset(policy: str) -> OffsetReset:
    """Return the policy of a checked value of ``auto.offset.reset``."""
    if policy.startswith(ResetKind.BY_DURATION.value):
        duration = reset_duration_ms(policy)
        assert duration is not None
        return OffsetReset(ResetKind.BY_DURATION, duration)
    return OffsetReset(ResetKind(policy))


def fetcher_settings(config: ConsumerConfig) -> FetcherSettings:
    """Return the settings of the fetcher, in its units."""
    return FetcherSettings(
        min_bytes=config.fetch_min_bytes,
        max_wait_ms=config.fetch_max_wait_ms,
        max_bytes=config.fetch_max_bytes,
        max_partition_bytes=config.max_partition_fetch_bytes,
        buffer_bytes=config.fetch_buffer_bytes,
        isolation_level=int(config.isolation_level == "read_committed"),
        check_crcs=config.check_crcs,
        reset=offset_reset(config.auto_offset_reset),
        rack=config.client_rack,
        retry_backoff=ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms),
        metadata_max_age=config.metadata_max_age_ms / 1000,
    )


def make_group(
    config: ConsumerConfig,
    loop: asyncio.AbstractEventLoop,
    clients: Clients,
    fetcher: Fetcher,
    driver: FetchDriver,
    random: Random,
    log: ClientLog,
    metrics: ConsumerMetrics,
) -> ConsumerGroup:
    """Return the group of a consumer with ``group_id``, with its membership."""
    assert config.group_id is not None
    backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
    group = ConsumerGroup(
        loop,
        fetcher,
        changed=driver.topics_changed,
        commit_interval=config.auto_commit_interval_ms / 1000 if config.enable_auto_commit else None,
        request_timeout=config.request_timeout_ms / 1000,
        log=log,
        metrics=metrics,
    )
    settings = MembershipSettings(
        config.group_id,
        group_instance_id=config.group_instance_id,
        rack=config.client_rack or None,
        session_timeout_ms=config.session_timeout_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        max_poll_interval_ms=config.max_poll_interval_ms,
        request_timeout_ms=config.request_timeout_ms,
    )
    assignors = [ASSIGNORS[name]() for name in config.partition_assignment_strategy]
    group.membership = GroupMember(
        clients.coordinator,
        GroupMembership(settings, assignors, backoff, random),
        control=clients.control,
        listener=group,
        on_assignment=group.assigned,
        on_news=driver.wake_waiters,
        request_metadata=driver.topics_changed,
        metadata_max_age=config.metadata_max_age_ms / 1000,
        exclude_internal=config.exclude_internal_topics,
        allow_creation=config.allow_auto_create_topics,
        timeout=config.default_api_timeout_ms / 1000,
        backoff=backoff,
        random=random,
        log=log,
        metrics=metrics,
    )
    return group
