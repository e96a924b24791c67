"""Builds the parts of a client from its configuration."""

from __future__ import annotations

import asyncio
import logging
import mmap
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from aioproducer._common.client_log import ClientLog, Log
from aioproducer.compression import codec
from aioproducer.core.batching.accumulator import AccumulatorSettings, RecordAccumulator
from aioproducer.core.batching.buffer_pool import BufferPool
from aioproducer.core.batching.completion import Completion
from aioproducer.core.batching.partition_queue import PartitionChoice
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.errors import ConfigurationError, KafkaError
from aioproducer.hooks import Hooks
from aioproducer.interceptors import InterceptorChain
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.failure_reporter import FailureReporter, OnError
from aioproducer.io.outcome_reporter import OutcomeReporter
from aioproducer.io.sender import Sender, SenderPasses, SenderSettings
from aioproducer.metrics import ProducerMetrics
from aioproducer.partitioner import check_partition, resolve_partitioner
from aioproducer.transport.base import Connector
from aioproducer.transport.stream import StreamConnector
from aioproducer.wire.record_batch import Buffer

if TYPE_CHECKING:
    import ssl
    from random import Random

    from aioproducer.config import ProducerConfig
    from aioproducer.core.transactions.manager import TransactionManager
    from aioproducer.security import RenewedContext
    from aioproducer.transport.rdma.counters import Counters as RdmaCounters

_logger = logging.getLogger("aioproducer")


@runtime_checkable
class MemoryRegistry(Protocol):
    """A connector that sends from registered memory, and counts its operations (``RdmaConnector``)."""

    def register(self, memory: mmap.mmap) -> None: ...

    def unregister(self, memory: mmap.mmap) -> None: ...

    @property
    def counters(self) -> RdmaCounters: ...


class Parts(NamedTuple):
    """The parts of a producer."""

    accumulator: RecordAccumulator
    metadata: ClusterMetadata
    sender: Sender
    metrics: ProducerMetrics
    failures: FailureReporter
    transactions: TransactionManager | None
    """Of a producer with a transactional id."""


def connector_for(config: ProducerConfig, transport: str | Connector, log: Log = _logger) -> Connector:
    """Return the connector for ``Producer(transport=...)``, which may be a name or a connector.

    Certificates that expire or cannot be renewed are logged to ``log``.

    Raises:
        ConfigurationError: there is no such transport, it does not support this ``security_protocol``, or the TLS
            settings are wrong.
    """
    if not isinstance(transport, str):
        _check_connector(config, transport)
        return transport
    names = tuple([name.strip() for name in transport.split(",")])
    if names not in (("tcp",), ("rdma",), ("rdma", "tcp")):
        raise ConfigurationError(
            f"transport {transport!r} does not exist: use 'tcp', 'rdma', 'rdma,tcp' (RDMA if available, else TCP), or "
            "a connector"
        )
    if names == ("rdma",):
        return _rdma_connector(config, None)
    stream = StreamConnector(
        _ssl_context(config, log),
        send_buffer_bytes=config.send_buffer_bytes,
        receive_buffer_bytes=config.receive_buffer_bytes,
    )
    return stream if names == ("tcp",) else _rdma_connector(config, stream)


def _check_connector(config: ProducerConfig, connector: Connector) -> None:
    """Check a user's connector. It opens the connections itself, so it would ignore a ``security_protocol`` with TLS.

    Raises:
        ConfigurationError: a method is missing, or ``security_protocol`` includes TLS.
    """
    missing = [f"has no {name}()" for name in ("resolve", "connect") if not callable(getattr(connector, name, None))]
    problems = ["is a class: pass an instance"] if isinstance(connector, type) else missing
    if problems:
        raise ConfigurationError(
            f"transport {connector!r} {problems[0]}; use 'tcp', 'rdma', 'rdma,tcp', or a connector "
            "(aioproducer.transport.base.Connector)"
        )
    if config.uses_tls:
        raise ConfigurationError(
            f"security_protocol {config.security_protocol} needs transport 'tcp': a {type(connector).__name__} opens "
            "its own connections and would not encrypt them"
        )


def _rdma_connector(config: ProducerConfig, otherwise: StreamConnector | None) -> Connector:
    """Return a connector over RDMA that uses ``otherwise``, if given, where RDMA is not available."""
    from aioproducer.transport.rdma import FallbackConnector, RdmaConnector
    from aioproducer.transport.rdma.verbs import RdmaUnavailableError

    if config.uses_tls:
        raise ConfigurationError(
            f"transport 'rdma' needs security_protocol PLAINTEXT or SASL_PLAINTEXT, not {config.security_protocol}: "
            "RDMA writes are not encrypted. Use transport 'tcp'"
        )
    try:
        rdma = RdmaConnector()
    except RdmaUnavailableError as error:
        if otherwise is None:
            raise ConfigurationError(f"transport 'rdma' cannot be used: {error}") from error
        return FallbackConnector(None, otherwise, str(error))
    return rdma if otherwise is None else FallbackConnector(rdma, otherwise)


def _ssl_context(config: ProducerConfig, log: Log) -> ssl.SSLContext | RenewedContext | None:
    if not config.uses_tls:
        return None
    from aioproducer.security import context_source_from

    return context_source_from(config, config.ssl_certificate_poll_interval_ms / 1000, log)


def make_parts(
    config: ProducerConfig,
    loop: asyncio.AbstractEventLoop,
    connector: Connector,
    hooks: Hooks,
    interceptors: InterceptorChain,
    on_error: OnError | None,
    random: Random,
    log: ClientLog,
) -> Parts:
    """Create and connect the parts of a producer, without starting any."""
    outcomes = OutcomeReporter(loop, interceptors) if interceptors.wants_acknowledgements else None
    retry_backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
    metadata = ClusterMetadata(
        config.bootstrap_addresses,
        random=random,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        metadata_max_age_ms=config.metadata_max_age_ms,
        metadata_max_idle_ms=config.metadata_max_idle_ms,
        metadata_recovery_strategy=config.metadata_recovery_strategy,
        metadata_recovery_rebootstrap_trigger_ms=config.metadata_recovery_rebootstrap_trigger_ms,
    )
    producer_state = ProducerState(
        idempotent=config.enable_idempotence, max_in_flight=config.max_in_flight_requests_per_connection
    )
    transactions = None
    if config.transactional_id is not None:
        # Imported late: few producers have transactions.
        from aioproducer.core.transactions.manager import TransactionManager

        transactions = TransactionManager(
            config.transactional_id,
            config.transaction_timeout_ms,
            producer_state,
            retry_backoff,
            random,
            topic_id=lambda name: None if (topic := metadata.topic(name)) is None else topic.topic_id,
        )
        producer_state.transactions = transactions
    # Kafka allows windows of length 0.
    metrics = ProducerMetrics(config.metrics_num_samples, max(config.metrics_sample_window_ms, 1))
    sender_passes = SenderPasses(loop)
    try:
        pool = BufferPool(config.buffer_memory)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"buffer.memory: this machine cannot reserve {config.buffer_memory} bytes: {error}"
        ) from error
    if isinstance(connector, MemoryRegistry) and pool.arena is not None:
        connector.register(pool.arena)
    accumulator = RecordAccumulator(
        loop,
        pool,
        producer_state,
        accumulator_settings(config, retry_backoff),
        wake=sender_passes.wake,
        random=random,
        choose_partition=partition_choice(config, metadata),
        rack_of=lambda node_id: None if (node := metadata.node(node_id)) is None else node.rack,
        on_outcome=None if outcomes is None else outcomes.add,
    )
    failed_records = None
    if hooks.record_failed:
        from aioproducer.io.failed_records import FailedRecords

        failed_records = FailedRecords(loop, hooks.record_failed, accumulator.release, pool.total_memory, log)
    failures = FailureReporter(
        loop,
        metrics,
        log,
        on_error,
        failed_records,
        on_failure=None if transactions is None else transactions.record_failed,
    )
    sender = Sender(
        loop,
        sender_passes,
        SenderSettings(
            acks=config.acks,
            request_timeout_ms=config.request_timeout_ms,
            retry_backoff=retry_backoff,
            node=node_settings(config, loop, random, log),
        ),
        accumulator,
        metadata,
        producer_state,
        Completion(accumulator, producer_state, retries=config.retries, keep_failed=bool(hooks.record_failed)),
        connector,
        metrics=metrics,
        hooks=hooks,
        random=random,
        failures=failures,
        outcomes=outcomes,
        transactions=transactions,
    )
    accumulator.blocked_records.on_memory_wait = lambda seconds, now: metrics.buffer_wait.record(seconds * 1e9, now)
    _set_gauges(metrics, accumulator, metadata, sender)
    if isinstance(connector, MemoryRegistry):
        _set_rdma_gauges(metrics, connector.counters)
    return Parts(accumulator, metadata, sender, metrics, failures, transactions)


def accumulator_settings(config: ProducerConfig, retry_backoff: ExponentialBackoff) -> AccumulatorSettings:
    """Return the settings of the accumulator, in its units."""
    compression = None if config.compression_type == "none" else codec(config.compression_type)
    level = None
    if compression is not None:
        compression.load()
        level = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }.get(config.compression_type)
    return AccumulatorSettings(
        batch_size=config.batch_size,
        linger=config.linger_ms / 1000,
        delivery_timeout=config.delivery_timeout_ms / 1000,
        max_block=config.max_block_ms / 1000,
        max_request_size=config.max_request_size,
        codec=compression,
        compression_level=level,
        # Without sequence numbers a later batch could overtake a retry: one request at a time keeps the order.
        one_in_flight_per_partition=not config.enable_idempotence and config.acks != 0,
        retry_backoff=retry_backoff,
        ignore_keys=config.partitioner_ignore_keys,
        adaptive_partitioning=config.partitioner_adaptive_partitioning_enable,
        availability_timeout=config.partitioner_availability_timeout_ms / 1000,
        rack=config.client_rack if config.partitioner_rack_aware else None,
    )


def node_settings(
    config: ProducerConfig, loop: asyncio.AbstractEventLoop, random: Random, log: ClientLog
) -> NodeSettings:
    """Return the settings of connections, in their units."""
    idle = config.connections_max_idle_ms
    login = None
    if config.uses_sasl:
        # Imported late: most clients have no login.
        from aioproducer.security.login import login_from

        login = login_from(config, loop, random, log)
    return NodeSettings(
        client_id=config.client_id,
        log=log,
        max_in_flight=config.max_in_flight_requests_per_connection,
        request_timeout=config.request_timeout_ms / 1000,
        reconnect_backoff=ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms),
        setup_timeout=ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms
        ),
        max_idle=float("inf") if idle < 0 else idle / 1000,
        uses_tls=config.uses_tls,
        check_cluster=config.metadata_cluster_check_enable,
        canonical_bootstrap=config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only",
        login=login,
    )


def partition_choice(config: ProducerConfig, metadata: ClusterMetadata) -> PartitionChoice | None:
    """Return the configured partitioner as a function for the accumulator, or ``None`` for Kafka's default rule."""
    partitioner = config.partitioner_class
    if partitioner is None:
        return None
    from aioproducer.core.metadata.cluster_view import MetadataView

    function = resolve_partitioner(partitioner)
    view = MetadataView(metadata)

    def choose(topic: str, key: Buffer | None, value: Buffer | None) -> int:
        try:
            answer = function(topic, None if key is None else bytes(key), None if value is None else bytes(value), view)
        except KafkaError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            # For a queued record, another exception would stop the records behind it.
            raise KafkaError(f"The partitioner failed for a record of topic {topic!r}: {error!r}") from error
        return check_partition(answer, topic, view.partition_count(topic), partitioner)

    return choose


def _set_gauges(
    metrics: ProducerMetrics, accumulator: RecordAccumulator, metadata: ClusterMetadata, sender: Sender
) -> None:
    pool = accumulator.pool
    metrics.set_gauge("buffer-total-bytes", lambda now: float(pool.total_memory))
    metrics.set_gauge("buffer-available-bytes", lambda now: float(max(pool.available_memory, 0)))
    metrics.set_gauge("metadata-wait-time-ns-total", lambda now: accumulator.blocked_records.metadata_wait * 1e9)
    metrics.set_gauge("waiting-threads", lambda now: float(len(accumulator.blocked_records.pending.records)))
    metrics.set_gauge(
        "requests-in-flight", lambda now: float(sum(node.in_flight for node in sender.cluster.nodes.values()))
    )
    metrics.set_gauge(
        "connection-count", lambda now: float(sum(node.connected for node in sender.cluster.nodes.values()))
    )
    metrics.set_gauge(
        "metadata-age", lambda now: float("nan") if metadata.last_update is None else now - metadata.last_update
    )


def _set_rdma_gauges(metrics: ProducerMetrics, counters: RdmaCounters) -> None:
    metrics.set_gauge("rdma-bytes-sent-total", lambda now: float(counters.bytes_sent))
    metrics.set_gauge("rdma-bytes-copied-total", lambda now: float(counters.bytes_copied))
    metrics.set_gauge("bytes-copied-total", lambda now: float(counters.bytes_copied))
    metrics.set_gauge("rdma-writes-total", lambda now: float(counters.writes_posted))
    metrics.set_gauge("rdma-completions-total", lambda now: float(counters.completions))
    metrics.set_gauge("rdma-signals-total", lambda now: float(counters.signals))
