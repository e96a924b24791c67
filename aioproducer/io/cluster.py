"""Compiled. The cluster of a producer: its nodes, and all requests other than Produce.

``Cluster`` requests metadata and the producer id from the least loaded node. The requests of transactions go to their
coordinators (``transactional_requests.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from enum import Enum
from functools import partial
from itertools import chain, repeat
from time import perf_counter
from typing import TYPE_CHECKING

from aioproducer._common.diagnosis import throttled, topic_unknown
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.metadata.cluster import MetadataChange, NodeCandidate, NodeState, least_loaded_node
from aioproducer.core.metadata.cluster_metadata import REFUSED_TOPIC_CODES, ClusterMetadata
from aioproducer.core.requests.connection import Completed, ReadResponse
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff
from aioproducer.core.requests.slots import InternalQueue
from aioproducer.error_codes import NONE
from aioproducer.errors import KafkaError, NetworkError, ProtocolError, broker_error
from aioproducer.hooks import Hooks
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.node import InternalRequest, NodeConnection, NodeOwner
from aioproducer.io.node_pool import NodePool
from aioproducer.metrics import ProducerMetrics
from aioproducer.protocol import Buffer, Request, Response
from aioproducer.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from aioproducer.protocol.parts import ResponseInParts
from aioproducer.transport.base import Connector

if TYPE_CHECKING:
    from random import Random

    from aioproducer.core.batching.accumulator import RecordAccumulator
    from aioproducer.core.metadata.shared_metadata import SharedAnswer, SharedMetadata
    from aioproducer.core.transactions.manager import TransactionManager
    from aioproducer.io.transactional_requests import TransactionalRequests

# Seconds for which a metadata response is applied before the loop runs other callbacks.
MAX_SLICE_SECONDS = 0.0005
# Partitions that change their leader before the clock is read again.
PARTITIONS_PER_CLOCK_CHECK = 256


class Internal(Enum):
    """The kinds of internal requests; at most one of each is in flight."""

    METADATA = "metadata"
    PRODUCER_ID = "producer id"
    TRANSACTION = "transaction"


_METADATA = Internal.METADATA
_PRODUCER_ID = Internal.PRODUCER_ID
_TRANSACTION = Internal.TRANSACTION


class Cluster:
    """The cluster's nodes, the metadata that lists them, and the producer id.

    Args:
        owner: receives the notifications of the nodes: the sender.
        wake: requests a pass of the sender.
        transactions: of a producer with a transactional id, else None.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: ClusterMetadata,
        accumulator: RecordAccumulator,
        producer_state: ProducerState,
        owner: NodeOwner,
        connector: Connector,
        node_settings: NodeSettings,
        retry_backoff: ExponentialBackoff,
        *,
        metrics: ProducerMetrics,
        hooks: Hooks,
        random: Random,
        wake: Callable[[], None],
        transactions: TransactionManager | None = None,
    ) -> None:
        self.pool = NodePool(loop, metadata, owner, connector, node_settings, metrics, hooks, random)
        self.nodes = self.pool.nodes
        self.metadata = metadata
        # Topics that the cluster rejects: the error, and the number of the last waiting record that it applies to.
        self.rejected_topics: dict[str, tuple[KafkaError, int]] = {}
        self._loop = loop
        self._accumulator = accumulator
        self._producer_state = producer_state
        self._setup_timeout = node_settings.setup_timeout.maximum
        self._log = node_settings.log
        self._metrics = metrics
        self._hooks = hooks
        self._random = random
        self._wake = wake
        self._internal = InternalQueue()
        self._transactional: TransactionalRequests | None = None
        if transactions is not None:
            # Imported late: few producers have transactions.
            from aioproducer.io.transactional_requests import TransactionalRequests

            self._transactional = TransactionalRequests(
                loop,
                transactions,
                accumulator,
                metadata,
                self.pool,
                node_settings.log,
                any_node=self._any_node,
                wake=wake,
            )
        self._producer_id_requested = False
        self._producer_id_attempts = Attempts(retry_backoff, random)
        self._metadata_waiters: dict[asyncio.Future[KafkaError | None], None] = {}
        # The client cannot log in; see ``pause``.
        self._is_paused = False
        self._metadata_request: InternalRequest | None = None
        self._metadata_requested_at = 0.0
        # Of the producers of a ``TransactionPool``.
        self.shared_metadata: SharedMetadata | None = None
        # The remaining steps of responses, and of rebootstraps, that are being applied.
        self._apply_steps: Iterator[None] | None = None

    # Nodes

    def node_ready(self, node: NodeConnection) -> None:
        self._is_paused = False
        self.pool.node_ready(node)
        if self._transactional is not None:
            self._transactional.node_ready(node)

    def node_lost(self, node: NodeConnection, now: float) -> None:
        """Prefer other nodes for metadata if an error has disconnected this one; see ``NodePool.node_lost``."""
        if node.last_error is not None:
            self.metadata.node_failed(node.id)
        self.pool.node_lost(node, now)
        if self._transactional is not None:
            self._transactional.node_lost(node, now)

    def _any_node(self, now: float) -> NodeConnection | None:
        return self._least_loaded(now, ())

    def _least_loaded(self, now: float, failed: Collection[int]) -> NodeConnection | None:
        """Return a node with a free slot for an internal request, or None.

        Without one, connect to the most promising node, or return to the bootstrap addresses. Nodes that have
        ``failed`` are skipped while another is ready: a node that is idle because of its errors would remain the
        least loaded.
        """
        known: Iterable[int] = self.metadata.nodes
        if failed:
            known = [
                node_id for node_id in known if node_id not in failed and self._is_available(node_id, now)
            ] or known
        # A node that was never needed is not created until it is chosen.
        candidates = []
        data_first = False
        for node_id in known:
            node = self.nodes.get(node_id)
            if node is None:
                candidates.append(NodeCandidate(node_id, NodeState.CAN_CONNECT))
                continue
            candidate = node.candidate(now)
            if candidate.state is NodeState.READY and not node.slots.is_for_internal(
                node_id in self._accumulator.ready.ready_nodes
            ):
                # This pass sends its data, and then checks the remaining slots again.
                data_first = True
                continue
            candidates.append(candidate)
        chosen = least_loaded_node(candidates, self._random)
        usable = chosen is not None or any(node.connected for node in self.nodes.values())
        if self._needs_rebootstrap(now, usable):
            if not self.metadata.rebootstraps:
                self._log.warning("No known broker can be reached: returning to the bootstrap addresses")
            if self._metadata_request is not None:
                self._metadata_request.give_up()
            self._begin_apply(
                chain.from_iterable(map(self._apply_change, self.metadata.rebootstrap_in_steps(now), repeat(now)))
            )
            self._wake()
            return None
        if chosen is None:
            return None
        node = self.pool.node(chosen)
        assert node is not None
        if node.can_send(now):
            return node
        if not data_first:
            node.request_connection()
        return None

    def _is_available(self, node_id: int, now: float) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and node.is_ready and now >= node.throttled_until

    def _needs_rebootstrap(self, now: float, usable: bool) -> bool:
        metadata = self.metadata
        nodes = [(node_id, node) for node_id in metadata.nodes if (node := self.nodes.get(node_id)) is not None]
        return metadata.needs_rebootstrap(
            now,
            node_available=usable,
            ready=[node_id for node_id, node in nodes if node.is_ready],
            connecting=[node_id for node_id, node in nodes if node.is_connecting],
            connecting_timeout=self._setup_timeout,
        )

    def is_only_hope(self, node: NodeConnection) -> bool:
        """Return whether no other node is connected or connecting."""
        others = [other for other in self.nodes.values() if other is not node]
        return not any(other.is_ready or other.is_connecting for other in others)

    def pause(self, error: KafkaError | None = None) -> None:
        """Send no internal request before a record or a call needs the cluster, as the client cannot log in.

        Attempts without need, again and again with a wrong password or client secret, would lock the account. With an
        error the calls that wait for metadata fail by it.
        """
        self._is_paused = True
        if error is not None:
            self._resolve_metadata_waiters(error)

    def _pauses(self) -> bool:
        """Return whether internal requests wait until the cluster is needed."""
        return (
            self._is_paused
            and not self._metadata_waiters
            and not self._accumulator.has_undelivered()
            and (self._transactional is None or self._transactional.manager.is_idle)
        )

    # Metadata and the producer id

    def is_due(self, now: float) -> bool:
        """Return whether an internal request waits for a slot."""
        if self._transactional is not None and self._transactional.is_due(now):
            return not self._pauses()
        return (self.metadata.next_update_delay(now) <= 0 or self._producer_id_due(now)) and not self._pauses()

    def _due(self, now: float) -> list[Internal]:
        due: list[Internal] = []
        if self._pauses():
            return due
        if self.metadata.next_update_delay(now) <= 0:
            due.append(_METADATA)
        if self._producer_id_due(now):
            due.append(_PRODUCER_ID)
        if self._transactional is not None and self._transactional.is_due(now):
            due.append(_TRANSACTION)
        return due

    def _producer_id_due(self, now: float) -> bool:
        state = self._producer_state
        if not state.needs_producer_id() or self._producer_id_requested or self._producer_id_attempts.delay(now) > 0:
            return False
        return self._accumulator.has_undelivered() or self.metadata.bootstrapped

    def send_due(self, now: float) -> float:
        """Send the internal requests that are due and may take a slot; return the time of the next check."""
        while self.is_due(now) and self.send_internal(now):
            continue
        if self._pauses():
            return float("inf")
        delay = self.metadata.next_update_delay(now)
        deadline = now + delay if delay > 0 else float("inf")
        if self.is_due(now):
            deadline = min(deadline, self._next_reconnect(now))
        if self._producer_state.needs_producer_id() and not self._producer_id_requested:
            retry = self._producer_id_attempts.retry_at
            if retry > now:
                deadline = min(deadline, retry)
        if self._transactional is not None:
            retry = self._transactional.retry_at()
            if retry > now:
                deadline = min(deadline, retry)
        return deadline

    def send_internal(self, now: float) -> bool:
        """Send the internal request that has been due longest and has a node with a slot; return whether one was sent.

        A request to an unreachable node does not delay those of other kinds.
        """
        due = self._due(now)
        if _METADATA in due:
            self.metadata.begin_attempt(now)
        for kind in self._internal.in_order(due):  # noqa: SIM110  # no generator expression in a cpdef method
            if self._send_kind(kind, now):
                return True
        return False

    def _send_kind(self, kind: Hashable, now: float) -> bool:
        if kind is _TRANSACTION:
            assert self._transactional is not None
            if not self._transactional.send(now):
                return False
            self._internal.sent(kind)
            return True
        if kind is _METADATA and self.shared_metadata is not None and self._apply_shared(self.shared_metadata, now):
            self._internal.sent(kind)
            return True
        node = self._least_loaded(now, self.metadata.failed_nodes if kind is _METADATA else ())
        if node is None:
            return False
        self._internal.sent(kind)
        if kind is _METADATA:
            self._metadata_requested_at = now
            self._metadata_request = InternalRequest(
                partial(self._metadata_answered, node), partial(self._metadata_failed, node)
            )
            return self._send_to(node, self._metadata_request, self.metadata.build_request(now), now, _read_metadata)
        self._producer_id_requested = True
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        return self._send_to(node, InternalRequest(self._producer_id_answered, self._producer_id_failed), request, now)

    def _send_to(
        self,
        node: NodeConnection,
        context: InternalRequest,
        request: Request[Response],
        now: float,
        read_response: ReadResponse | None = None,
    ) -> bool:
        try:
            node.send(request, context, now, read_response=read_response)
        except KafkaError as error:
            context.failed(node, error)
            return False
        node.slots.internal_sent()
        return True

    def _next_reconnect(self, now: float) -> float:
        """Return when a node that backs off may be tried again; nodes that connect wake the sender themselves."""
        waits = [
            node.retry_at()
            for node_id in self.metadata.nodes
            if (node := self.nodes.get(node_id)) and node.candidate(now).state is NodeState.BACKING_OFF
        ]
        return max(min((wait for wait in waits if wait > now), default=float("inf")), now)

    def _apply_shared(self, shared: SharedMetadata, now: float) -> bool:
        """Answer the request that is due with another producer's response; return whether there is one."""
        answer = shared.answer(list(self.metadata.topics_in_use), self.metadata.accepts_since(now))
        if answer is None:
            return False
        self._log.debug("another producer of the pool has requested metadata %.1f s ago", now - answer.requested_at)
        self.metadata.build_request(now)
        self._begin_apply(self._apply_answer(answer))
        return True

    def _metadata_answered(self, node: NodeConnection, completed: Completed) -> None:
        assert isinstance(completed.response, ResponseInParts)
        self._begin_apply(self._apply_response(node, completed.response, completed.version))

    def _begin_apply(self, steps: Iterator[None]) -> None:
        """Run the remaining steps of earlier updates, then ``steps``."""
        # A dropped response continues until it detects that: its changes so far must be applied here too.
        self._apply_steps = steps if self._apply_steps is None else chain(self._apply_steps, steps)
        self._continue_apply(self._apply_steps)

    def _continue_apply(self, steps: Iterator[None]) -> None:
        """Run steps for ``MAX_SLICE_SECONDS``; the next iteration of the loop continues."""
        if self._apply_steps is not steps:
            return
        until = perf_counter() + MAX_SLICE_SECONDS
        for _ in steps:
            if perf_counter() >= until:
                self._loop.call_soon(self._continue_apply, steps)
                return
        self._apply_steps = None

    def _apply_response(
        self, node: NodeConnection, response: ResponseInParts[MetadataResponse, MetadataResponseTopic], version: int
    ) -> Iterator[None]:
        """Apply a metadata response in steps."""
        now = self._loop.time()
        names: list[str] = []
        stored: list[MetadataResponseTopic] = []
        topics = response.elements()
        if self._hooks.metadata_updated:
            topics = _collect_names(topics, names)
        if self.shared_metadata is not None:
            topics = _collect_topics(topics, stored)
        requested = self.metadata.topics_in_flight
        requested_at = self._metadata_requested_at
        failure: KafkaError | None = None
        try:
            failure = yield from self._merge(response.head, topics, now, version)
        except ProtocolError as error:
            failure = ProtocolError(
                f"Broker {node.node} sent a malformed response to METADATA version {version}: {error}"
            )
            self._log.warning("%s", failure)
            self.metadata.handle_failure(failure, now)
            node.poison(failure)
        if failure is not None:
            self.metadata.node_failed(node.id)
        elif self.shared_metadata is not None and self.metadata.last_update == now:
            # It was not dropped by a rebootstrap in between.
            self.shared_metadata.store(response.head, stored, version, requested_at)
        yield from self._finish_update(requested, failure, names, now)

    def _apply_answer(self, answer: SharedAnswer) -> Iterator[None]:
        """Apply another producer's response in steps."""
        assert self.shared_metadata is not None
        now = self._loop.time()
        requested = self.metadata.topics_in_flight
        failure = yield from self._merge(answer.response, answer.topics, now, answer.version)
        if failure is None:
            self.metadata.limit_age(answer.requested_at)
        else:
            # The next attempt asks a broker.
            self.shared_metadata.clear()
        yield from self._finish_update(requested, failure, [topic.name or "" for topic in answer.topics], now)

    def _merge(
        self, response: MetadataResponse, topics: Iterable[MetadataResponseTopic | None], now: float, version: int
    ) -> Generator[None, None, KafkaError | None]:
        failure: KafkaError | None = None
        for change in self.metadata.apply_response(response, topics, now, version=version):
            failure = change.failure
            yield from self._apply_change(change, now)
        return failure

    def _finish_update(
        self, requested: Collection[str], failure: KafkaError | None, names: list[str], now: float
    ) -> Iterator[None]:
        metadata = self.metadata
        # Only the topics of this response: of a hundred thousand topics, each is in some request.
        for name in requested:
            queues = self._accumulator.blocked_records.topics.get(name)
            if queues is not None:
                # Records still wait for this topic, or for more of its partitions, after this response.
                topic = metadata.add_topic(name, now)
                if topic is not None and queues.unknown_partition_waiters:
                    metadata.request_update(now, f"topic {name} lacks a partition that records wait for")
                yield
        if failure is None:
            for on_metadata_updated in self._hooks.metadata_updated:
                on_metadata_updated(list(metadata.nodes.values()), names)
        self._resolve_metadata_waiters(None)
        self._wake()

    def _resolve_metadata_waiters(self, error: KafkaError | None) -> None:
        waiters, self._metadata_waiters = self._metadata_waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(error)

    def _metadata_failed(self, node: NodeConnection, error: KafkaError) -> None:
        self.metadata.node_failed(node.id)
        self.metadata.handle_failure(error, self._loop.time())
        self._wake()

    def add_metadata_waiter(self) -> asyncio.Future[KafkaError | None]:
        """Return a future that ends with the next metadata response, or with the error why there is none.

        ``close`` cancels it.
        """
        future: asyncio.Future[KafkaError | None] = self._loop.create_future()
        self._metadata_waiters[future] = None
        return future

    def remove_metadata_waiter(self, future: asyncio.Future[KafkaError | None]) -> None:
        """Remove a future of ``add_metadata_waiter`` that is no longer awaited."""
        self._metadata_waiters.pop(future, None)

    def record_topic_use(self, name: str, now: float) -> None:
        """Record that a topic is in use: metadata keeps it, or requests it."""
        if self.metadata.add_topic(name, now) is None:
            self._wake()

    def record_partition_use(self, name: str, partition: int, now: float) -> None:
        """Request a metadata update if the topic is known and does not have the partition."""
        topic = self.metadata.topic(name)
        if topic is not None and 0 < len(topic.partitions) <= partition:
            self.request_update(now, f"a record is for partition {partition} of topic {name}")

    def request_update(self, now: float, reason: str) -> None:
        self.metadata.request_update(now, reason)
        self._wake()

    def apply(self, change: MetadataChange, now: float) -> None:
        """Apply a metadata change to the accumulator and the nodes, in one step."""
        for _ in self._apply_change(change, now):
            # A leader hint concerns one partition.
            continue

    def _apply_change(self, change: MetadataChange, now: float) -> Iterator[None]:
        """Apply a metadata change in steps."""
        accumulator = self._accumulator
        topics = accumulator.topics
        self.pool.apply(change)
        grown = [added.topic for added in change.partitions_added]
        sized = [*change.new_topics, *change.recreated_topics, *grown]
        for name in sized:
            topic = self.metadata.topic(name)
            if topic is not None:
                accumulator.set_partition_count(name, len(topic.partitions), now)
        for name in change.recreated_topics:
            topics.recreated(name)
        # No step precedes this one: waiting records must go to partitions that have a leader, or a near one.
        for number, leader in enumerate(change.leaders, start=1):
            # The current leader: a hint may have named another one between two steps.
            node_id = self.metadata.leader(leader.topic, leader.partition)
            topics.set_leader(leader.topic, leader.partition, node_id, now)
            if number % PARTITIONS_PER_CLOCK_CHECK == 0:
                yield
        for name in sized:
            if self.metadata.topic(name) is not None:
                topics.leaders_known(name, now)
        for name in change.lost_topics:
            if self.metadata.topic(name) is None:
                accumulator.set_partition_count(name, 0, now)
                yield
        for name in change.forgotten_topics:
            if self.metadata.topic(name) is not None:
                # It was used again between two steps.
                continue
            if accumulator.forget_topic(name):
                self._metrics.forget_topic(name)
            else:
                self.metadata.add_topic(name, now)
            yield
        for name, code in change.topic_errors.items():
            if code in REFUSED_TOPIC_CODES:
                self.rejected_topics[name] = broker_error(code), accumulator.blocked_records.pending.last_number
                self._wake()
                yield
        yield

    def _producer_id_answered(self, completed: Completed) -> None:
        now = self._loop.time()
        response = completed.response
        assert isinstance(response, InitProducerIdResponse)
        self._producer_id_requested = False
        if response.error_code == NONE and (response.producer_id < 0 or response.producer_epoch < 0):
            self._log.warning(
                "A broker returned producer id %d with epoch %d, but neither may be negative; requesting another",
                response.producer_id,
                response.producer_epoch,
            )
            self._producer_id_attempts.failed(now)
        elif response.error_code == NONE:
            self._producer_id_attempts.succeeded()
            self._producer_state.set_producer_id(response.producer_id, response.producer_epoch)
            self._accumulator.ready.unblock_held(now)
        else:
            error = broker_error(response.error_code)
            if error.retriable:
                self._producer_id_attempts.failed(now)
            else:
                self._producer_state.fail(error)
        self._wake()

    def _producer_id_failed(self, error: KafkaError) -> None:
        self._producer_id_requested = False
        self._producer_id_attempts.failed(self._loop.time())
        if not (error.retriable or isinstance(error, NetworkError)) and error.fatal:
            self._producer_state.fail(error)
        self._wake()

    def unknown_topic_error(self, topic: str, waited_ms: float) -> KafkaError:
        """Return the error for a topic without known partitions after ``waited_ms``."""
        cause = self.pool.last_error()
        seen = self.metadata.last_update is not None
        code = self.metadata.topic_error(topic)
        if code and cause is None:
            cause = broker_error(code)
        now = self._loop.time()
        by_node = [self.throttling(node_id, now) for node_id in self.metadata.nodes]
        # Throttling is a reason only if all nodes throttle.
        throttling = by_node[0] if by_node and all(by_node) else ""
        return topic_unknown(topic, waited_ms, metadata_seen=seen, throttling=throttling, cause=cause)

    def throttling(self, node_id: int, now: float) -> str:
        """Return a sentence about a node that throttles this client, empty if it does not."""
        node = self.nodes.get(node_id)
        left = 0.0 if node is None else node.throttled_until - now
        return throttled(node.node, left * 1000) if node is not None and left > 0 else ""

    # The end

    async def close(self) -> None:
        """End every connection; none stays open, even if this is cancelled."""
        self._apply_steps = None
        for waiter in self._metadata_waiters:
            waiter.cancel()
        self._metadata_waiters.clear()
        await self.pool.close()


def _read_metadata(version: int, frame: Buffer) -> ResponseInParts[MetadataResponse, MetadataResponseTopic]:
    return ResponseInParts(MetadataResponse, MetadataResponseTopic, version, frame)


def _collect_topics(
    topics: Iterator[MetadataResponseTopic | None], collected: list[MetadataResponseTopic]
) -> Iterator[MetadataResponseTopic | None]:
    for topic in topics:
        if topic is not None:
            collected.append(topic)
        yield topic


def _collect_names(
    topics: Iterator[MetadataResponseTopic | None], names: list[str]
) -> Iterator[MetadataResponseTopic | None]:
    for topic in topics:
        if topic is not None:
            names.append(topic.name or "")
        yield topic
