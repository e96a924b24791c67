"""Compiled. The sender: drains ready batches into produce requests, and completes the batches of each response.

It takes the place of Kafka's Sender thread. When something is ready or due, it runs a pass: a callback of the loop that
performs the steps of ``_run_once`` in their order. One pass serves all records that were sent since the last. A node
with room again is drained at once, in the callback that reads its response. If a few coroutines await that response,
they run first, and the records that they send next leave without waiting for another iteration of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from aioproducer._common.diagnosis import buffer_full, held_up, partition_unknown, serializer_late
from aioproducer.core.batching.accumulator import RecordAccumulator
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.completion import ACKED, Completion, Fate, Verdict
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.outcomes.delivery import Awaiting, resume
from aioproducer.core.requests.connection import Completed
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.error_codes import FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER
from aioproducer.errors import AuthenticationError, KafkaError, ProducerClosedError
from aioproducer.hooks import Hooks, OnBatchAcked
from aioproducer.io.cluster import Cluster
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.failure_reporter import FailureReporter
from aioproducer.io.node import NodeConnection
from aioproducer.io.outcome_reporter import OutcomeReporter
from aioproducer.io.produce import (
    LAST_BEFORE_TV2,
    ProduceOwner,
    choose_version,
    produce_in_flight,
    produce_request,
)
from aioproducer.metrics import ProducerMetrics
from aioproducer.protocol import decode_produced
from aioproducer.protocol.messages.produce import PartitionProduceResponse
from aioproducer.protocol.produce_frames import TOPIC_IDS_FROM
from aioproducer.record import Node
from aioproducer.transport.base import Connector

if TYPE_CHECKING:
    from contextvars import Context
    from random import Random

    from aioproducer.core.transactions.manager import TransactionManager
    from aioproducer.io.offload import Compressor
    from aioproducer.io.rejection import Rejection

# Waiting records that one pass admits. The limits of a pass keep it short.
ADMITTED_PER_PASS = 100

# After this many batches, the rest waits for the next pass.
BATCHES_PER_PASS = 16
# Batches, and waiting records, that one pass fails.
BATCHES_FAILED_PER_PASS = 32
RECORDS_FAILED_PER_PASS = 100
# Distinct reasons for which one pass lets waiting records expire, checked after each chunk of records.
REASONS_PER_PASS = 20
RECORDS_PER_CHUNK = 20
# Failures of waiting records that one pass reports. A failure covers all records of a partition with the same kind of
# error.
FAILURES_REPORTED_PER_PASS = 16
# While further records fail, which may belong to the same failures, at most this many failures stay unreported.
MAX_UNREPORTED_FAILURES = 1000
# Seconds that waiting records may outlive their deadline while records before them are admitted.
LONGEST_POSTPONED_EXPIRY = 0.5

# At most this many coroutines resume in the callback that reads the responses they await. If there are more, the loop
# calls them back in its next iteration, as usual.
RESUMED_AT_ONCE = 8

_NEVER = float("inf")


class SenderSettings(NamedTuple):
    """Settings of the sender itself; its parts have their own. Times are in seconds unless the name has a unit."""

    acks: int
    request_timeout_ms: int
    retry_backoff: ExponentialBackoff
    node: NodeSettings


class SenderPasses:
    """Schedules the sender's next pass in the loop; any number of requests before it runs lead to one pass.

    It is created before the sender, as parts of the sender need it.
    """

    __slots__ = ("_context", "_held", "_loop", "_requested", "_run_pass", "next")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._run_pass: Callable[[], None] | None = None
        self._context: Context | None = None
        self._held = False
        self._requested = False
        self.next: asyncio.Handle | None = None

    def begin(self, run_pass: Callable[[], None]) -> None:
        """Call ``run_pass`` for every pass, in the current context rather than in that of a caller of ``send``."""
        self._run_pass = run_pass
        self._context = copy_context()

    def wake(self) -> None:
        """Request a pass in the next iteration of the loop."""
        if self.next is None and self._run_pass is not None:
            if self._held:
                self._requested = True
            else:
                self.next = self._loop.call_soon(self._run_pass, context=self._context)

    def hold(self) -> None:
        """Schedule no pass until ``release``."""
        self._held = True

    def release(self) -> bool:
        """Return whether a pass was requested since ``hold``; the caller must run it."""
        self._held = False
        requested, self._requested = self._requested, False
        return requested

    def end(self) -> None:
        """Cancel the next pass, and ignore later requests."""
        self._run_pass = None
        self._requested = False
        if self.next is not None:
            self.next.cancel()


class Sender(ProduceOwner):
    """Sends ready batches to the nodes of the cluster.

    Args:
        failures: receives every failed batch and every failed waiting record.
        outcomes: reports to the interceptors; ``None`` if none wants the outcomes.
        transactions: of a producer with a transactional id, else ``None``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sender_passes: SenderPasses,
        settings: SenderSettings,
        accumulator: RecordAccumulator,
        metadata: ClusterMetadata,
        producer_state: ProducerState,
        completion: Completion,
        connector: Connector,
        *,
        metrics: ProducerMetrics,
        hooks: Hooks,
        random: Random,
        failures: FailureReporter,
        outcomes: OutcomeReporter | None = None,
        transactions: TransactionManager | None = None,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._settings = settings
        self._log = settings.node.log
        self._accumulator = accumulator
        self._metadata = metadata
        self._producer_state = producer_state
        self._completion = completion
        self._acks = settings.acks
        self._request_timeout_ms = settings.request_timeout_ms
        self._metrics = metrics
        self._hooks = hooks
        self._on_batch_sent = hooks.batch_sent
        self._on_batch_acked = hooks.batch_acked
        self._failures = failures
        self._transactions = transactions
        self._outcomes = outcomes
        self._failed_records = failures.failed_records
        # Read in every pass, as the reporter is not compiled.
        self._unreported = failures.unreported
        self._compressor: Compressor | None = None
        codec = accumulator.settings.codec
        if codec is not None:
            from aioproducer.io.offload import Compressor

            self._compressor = Compressor(
                loop, codec, accumulator.settings.compression_level, self._compressed, self._log
            )
        # Of brokers that have rejected the client, until everything has failed that must.
        self._rejections: list[Rejection] = []
        # Passes run while the task does.
        self._sender_passes = sender_passes
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = _NEVER
        # Loop time since when expired waiting records stay, because records before them are admitted.
        self._expiry_postponed_at = _NEVER
        # A loop in debug mode logs slow callbacks: a slow task must not appear there as a callback of the sender.
        # Interceptors see an outcome before its awaiters resume, and they run in a callback of their own.
        self._resumed_at_once = 0 if loop.get_debug() or outcomes is not None else RESUMED_AT_ONCE
        # Awaiters of the response that is being read, which resume after it, and how many more may join them.
        self._resumed: list[Awaiting] = []
        self._resumable = self._resumed_at_once
        # The loop is about to resume coroutines that awaited records; the records that they send need not linger.
        self._awaiters_scheduled = False
        self._sends_at_once = accumulator.settings.linger <= 0
        self.cluster = Cluster(
            loop,
            metadata,
            accumulator,
            producer_state,
            self,
            connector,
            settings.node,
            settings.retry_backoff,
            metrics=metrics,
            hooks=hooks,
            random=random,
            wake=sender_passes.wake,
            transactions=transactions,
        )

    # The task

    def wake(self) -> None:
        """Request a pass in the next iteration of the loop."""
        self._sender_passes.wake()

    async def run(self) -> None:
        """Run until cancelled. Records without an outcome fail then, and nothing more can be sent."""
        self._sender_passes.begin(self._run_pass)
        try:
            self._run_pass()
            # Passes are callbacks: a task that resumed for each would need a future every time.
            await self._loop.create_future()
        except asyncio.CancelledError:
            error = ProducerClosedError("the producer's task was cancelled: no record can be sent any more")
            self._producer_state.fail(error)
            self.fail_everything(error, self._loop.time())
            raise
        finally:
            self._sender_passes.end()
            if self._timer is not None:
                self._timer.cancel()

    def _run_pass(self) -> None:
        self._sender_passes.next = None
        self._run_pass_at(self._loop.time())

    def _run_pass_at(self, now: float) -> None:
        try:
            deadline = self._run_once(now)
        except Exception:
            # Sending must not stop: log the error and try again soon.
            self._log.exception("Unexpected error in the sender; it continues")
            deadline = self._loop.time() + self._settings.retry_backoff.maximum
        # A timer that is too early stays: an occasional idle pass is cheaper than a new timer in every pass.
        if deadline < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = deadline
            self._timer = self._loop.call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._timer_due = float("inf")
        if self._sender_passes.next is None:
            self._run_pass()

    def _run_once(self, now: float) -> float:
        """Run one pass; return the loop time at which the next is due."""
        accumulator = self._accumulator
        fatal_error = self._producer_state.fatal_error
        is_due = accumulator.next_deadline() <= now
        more_fail = False
        drops_unsent = self._transactions is not None and self._transactions.drops_unsent
        if is_due:
            self._expire_batches(now)
        if fatal_error is not None:
            more_fail = self._fail_some(fatal_error, now)
            more_fail = accumulator.drain_waiters.resume_all(ADMITTED_PER_PASS) or more_fail
        elif self._rejections:
            more_fail = self._fail_at_rejection(now)
        elif self.cluster.rejected_topics:
            more_fail = self._fail_rejected(now)
        if is_due:
            accumulator.ready.process_deadlines(now)
        if drops_unsent and fatal_error is None:
            more_fail = self._fail_unsent(now) or more_fail
        served = fatal_error is None and not drops_unsent and accumulator.admit(now, ADMITTED_PER_PASS)
        if accumulator.drain_waiters.resume(ADMITTED_PER_PASS) or served:
            self.wake()
        if not is_due:
            self._expiry_postponed_at = _NEVER
        elif served and now <= self._expiry_postponed_at + LONGEST_POSTPONED_EXPIRY:
            # After a delay of the loop, the memory or metadata that a record waited for may be there by now: records
            # that can be admitted come first. This is bounded, as records behind them may wait for something else.
            self._expiry_postponed_at = min(self._expiry_postponed_at, now)
        else:
            if not served:
                self._expiry_postponed_at = _NEVER
            more_fail = self._expire_waiting(now) or more_fail
        if accumulator.refused:
            for pending, error in accumulator.take_refused():
                self._fail_waiting([pending], error, now)
        if self._unreported and (not more_fail or len(self._unreported) > MAX_UNREPORTED_FAILURES):
            more_fail = self._failures.report_failures(now, FAILURES_REPORTED_PER_PASS) or more_fail
        if more_fail:
            self.wake()
        if accumulator.compression is not None and accumulator.compression.waiting:
            self._compress()
        if accumulator.ready.leaderless:
            self._request_leaders(now)
        deadline = min(accumulator.next_deadline(), self.cluster.send_due(now))
        ready = accumulator.ready.ready_nodes
        # Usually no node is ready, and no list is created.
        for node_id in list(ready) if ready else ():
            node = self.cluster.pool.node(node_id)
            if node is None:
                continue
            self._drain(node, now)
            if node_id in ready:
                node.request_connection()
                if now < node.throttled_until:
                    deadline = min(deadline, node.throttled_until)
        return deadline

    def _request_leaders(self, now: float) -> None:
        for name in self._accumulator.ready.unknown_leader_topics():
            self._metadata.add_topic(name, now)
            self._metadata.request_update(now, f"topic {name} has records to send and no leader")

    # Notifications of the nodes; see ``NodeOwner``

    def node_ready(self, node: NodeConnection) -> None:
        self.cluster.node_ready(node)

    def node_changed(self, node: NodeConnection, now: float) -> None:
        """Resume the awaiters of its responses, and send at once the requests that wait for the node."""
        if self._resume_awaiters(node, now):
            return
        if node.can_send(now):
            self._drain(node, now)
            self._wake_after_awaiters()
            return
        if not node.connected:
            self.cluster.node_lost(node, now)
        self.wake()

    def authentication_failed(self, node: NodeConnection, error: AuthenticationError, now: float) -> None:
        """Fail what depends on the broker that has rejected this client; the next send authenticates again."""
        # Imported late: few clients are ever rejected.
        from aioproducer.io.rejection import Rejection

        is_alone = self.cluster.is_only_hope(node)
        if is_alone:
            self.cluster.pause(error)
            if self._transactions is not None:
                self._transactions.authentication_failed(error)
        # A second rejection by the same broker covers what the first has left.
        self._rejections = [each for each in self._rejections if each.node_id != node.id]
        self._rejections.append(Rejection(error, self._accumulator, node.id, is_alone, now))
        self.wake()

    def login_failed(self, node: NodeConnection) -> None:
        """Let internal requests wait for a record or a call, if no other broker serves them."""
        if self.cluster.is_only_hope(node):
            self.cluster.pause()

    def expected_cluster_id(self) -> str | None:
        return self._metadata.cluster_id

    def _resume_awaiters(self, node: NodeConnection, now: float) -> bool:
        """Resume the awaiting coroutines. Return True if that triggered a pass, which has then run.

        Records that they send to this node leave before the pass: usually there are no others, and a coroutine awaits
        them.
        """
        self._resumable = self._resumed_at_once
        resumed = self._resumed
        if not resumed:
            return False
        self._resumed = []
        if self.cluster.is_due(now):
            # Before the coroutines run: their next records would take every slot that the responses free.
            self.cluster.send_due(now)
        sender_passes = self._sender_passes
        sender_passes.hold()
        try:
            resume(self._loop, resumed)
            if node.can_send(now):
                self._drain(node, now)
        finally:
            requested = sender_passes.release()
            if requested:
                self._run_pass_at(now)
        if requested:
            self._wake_after_awaiters()
        return requested

    def _wake_after_awaiters(self) -> None:
        if self._awaiters_scheduled:
            # The pass runs right after all of them, in the same iteration of the loop. A pass that their own records
            # request would run in the next iteration.
            self._awaiters_scheduled = False
            self.wake()

    # Batches

    def _drain(self, node: NodeConnection, now: float) -> None:
        """Fill the node's free slots while requests wait for one; after many batches the next pass continues.

        ``RequestSlots`` decides which kind of request takes a slot.
        """
        accumulator = self._accumulator
        ready = accumulator.ready.ready_nodes
        cluster = self.cluster
        internal = True
        sent = 0
        while node.can_send(now):
            data_waits = node.id in ready
            if internal and cluster.is_due(now) and node.slots.is_for_internal(data_waits):
                internal = cluster.send_internal(now)
                continue
            if not data_waits:
                break
            if sent >= BATCHES_PER_PASS:
                self.wake()
                break
            batches = accumulator.drain(node.id, now)
            # There are none if all ready batches are held back; the node is no longer ready then.
            if batches:
                self._send_batches(node, batches, now)
                sent += len(batches)
        if accumulator.compression is not None and accumulator.compression.waiting:
            self._compress()

    def _send_batches(self, node: NodeConnection, batches: list[ProducerBatch], now: float) -> None:
        try:
            if self._transactions is None:
                request = produce_request(batches, self._metadata, self._acks, self._request_timeout_ms)
                version = choose_version(node, batches, request)
            else:
                request = produce_request(
                    batches,
                    self._metadata,
                    self._acks,
                    self._request_timeout_ms,
                    self._transactions.transactional_id,
                )
                highest = TOPIC_IDS_FROM if self._transactions.is_newer_generation else LAST_BEFORE_TV2
                version = choose_version(node, batches, request, highest)
            context = produce_in_flight(self, batches, request)
            written = node.send(request, context, now, version, self._acks != 0, None, decode_produced)
            node.slots.data_sent()
        except Exception as failure:
            error = failure
            if not isinstance(error, KafkaError):
                self._log.exception("Creating a produce request for broker %s failed", node.node)
                error = KafkaError(f"Creating the produce request for broker {node.node} failed: {failure!r}")
                for batch in batches:
                    # This is a bug of the client, and the transport may have sent some of the request.
                    batch.has_unknown_attempt = True
            for batch in batches:
                self._report_verdict(batch, self._completion.unsendable(batch, error, now), now)
            return
        for batch in batches:
            batch.attempts += 1
        self._record_sent(batches, now)
        if written and self._acks == 0:
            context.answered(node, None)

    def _record_sent(self, batches: list[ProducerBatch], now: float) -> None:
        """Record the batches of one request in the metrics, and call the hooks."""
        metrics = self._metrics
        records = 0
        for batch in batches:
            queue = batch.queue
            assert queue is not None
            record_count = batch.record_count
            size = batch.size()
            uncompressed_size = batch.uncompressed_size()
            # A coroutine that a response resumed may have created the batch after ``now``, the time of that response.
            queue_time_ms = max(now - batch.created_at, 0.0) * 1000
            records += record_count
            metrics.batch_sent(
                queue.topic,
                record_count,
                size,
                size / uncompressed_size,
                queue_time_ms,
                batch.max_record_size,
                batch.attempts,
                now,
            )
            for on_batch_sent in self._on_batch_sent:
                on_batch_sent(
                    queue.topic_partition, record_count, size, uncompressed_size, queue_time_ms, batch.attempts
                )
        metrics.request_filled(records, now)

    # Outcomes of produce requests; see ``ProduceOwner``

    def release(self, batch: ProducerBatch) -> None:
        self._accumulator.release(batch)

    def request_answered(self, node: NodeConnection, completed: Completed, throttle_time_ms: int) -> None:
        self._metrics.produce_response(node.sensors, completed.latency * 1000, throttle_time_ms, completed.received_at)

    def batch_written(self, batch: ProducerBatch) -> None:
        now = self._loop.time()
        self._report_verdict(batch, self._completion.written(batch, now), now)

    def batch_acknowledged(self, batch: ProducerBatch, base_offset: int, log_append_time: int, now: float) -> None:
        awaiting = batch.awaiting
        if awaiting is not None and len(awaiting) <= self._resumable:
            self._resumable -= len(awaiting)
            self._resumed.extend(awaiting)
            batch.awaiting = None
        elif awaiting is not None or batch.waiters is not None or batch.parent is not None:
            # The loop calls these awaiters back: awaiters of later records must not run before them.
            self._resumable = 0
            if self._sends_at_once and awaiting is not None:
                self._awaiters_scheduled = True
        self._report_verdict(batch, self._completion.acked(batch, base_offset, log_append_time, now), now)

    def batch_refused(
        self, batch: ProducerBatch, answer: PartitionProduceResponse, endpoints: list[Node], now: float
    ) -> None:
        self._resumable = 0
        record_messages = {each.batch_index: each.batch_index_error_message for each in answer.record_errors}
        verdict = self._completion.refused(
            batch, answer.error_code, now, answer.error_message, record_messages, answer.base_offset
        )
        if answer.error_code in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH):
            topic, partition = batch.topic_partition
            leader = answer.current_leader
            hints = self._metadata.apply_leader_hints(
                topic, partition, leader.leader_id, leader.leader_epoch, endpoints, now
            )
            self.cluster.apply(hints, now)
        self._report_verdict(batch, verdict, now)

    def batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        self._resumable = 0
        now = self._loop.time()
        self._report_verdict(batch, self._completion.disconnected(batch, error, now), now)

    def add_acknowledgement_hook(self, hook: OnBatchAcked) -> None:
        """Call a hook for each acknowledged batch from now on."""
        self._on_batch_acked = (*self._on_batch_acked, hook.on_batch_acked)

    def _report_verdict(self, batch: ProducerBatch, verdict: Verdict, now: float) -> None:
        """Report the outcome of a batch to metrics, hooks, log and metadata."""
        topic_partition = batch.topic_partition
        if verdict is ACKED:
            latency_ms = (now - batch.created_at) * 1000
            self._metrics.batch_acked(batch.record_count, latency_ms)
            if self._on_batch_acked:
                offset = batch.base_offset if batch.base_offset >= 0 else None
                for on_batch_acked in self._on_batch_acked:
                    on_batch_acked(topic_partition, batch.record_count, offset, latency_ms)
            return
        error = verdict.error
        if verdict.refresh_metadata:
            self._metadata.request_update(now, f"{topic_partition}: {error}")
            self.wake()
        if error is None:
            return
        if self._producer_state.fatal_error is not None:
            # The next pass fails all other records too.
            self.wake()
        if verdict.fate is Fate.RETRIED:
            self._log.debug("%s: attempt %d failed, retrying: %s", topic_partition, batch.attempts, error)
            self._metrics.records_retried(topic_partition.topic, batch.record_count, now)
            for on_batch_retried in self._hooks.batch_retried:
                on_batch_retried(topic_partition, batch.record_count, batch.attempts, error)
        elif verdict.fate is Fate.SPLIT:
            parts = len(batch.children or ())
            self._log.info(
                "%s: the broker rejected a batch as too large; sending it in %d parts", topic_partition, parts
            )
            self._metrics.batch_split.record(1, now)
            for on_batch_split in self._hooks.batch_split:
                on_batch_split(topic_partition, batch.record_count, parts)
        elif verdict.fate is Fate.FAILED:
            self._report_failed_batch(batch, error, now)

    def _report_failed_batch(self, batch: ProducerBatch, error: KafkaError, now: float) -> None:
        self._metrics.records_failed(batch.topic_partition.topic, batch.record_count, now)
        for on_batch_failed in self._hooks.batch_failed:
            on_batch_failed(batch.topic_partition, batch.record_count, error)
        self._failures.report(batch.topic_partition, batch.record_count, batch.unobserved, error)
        if self._failed_records is not None:
            self._failed_records.add(batch)

    # Deadlines and ends

    def _expire_batches(self, now: float) -> None:
        """Fail batches after their delivery deadline, as many as one pass may."""
        throttling = partial(self.cluster.throttling, now=now)
        for batch, error in self._completion.expire(now, BATCHES_FAILED_PER_PASS, throttling):
            self._report_failed_batch(batch, error, now)
            # The leader has not responded for long: another broker may be the leader by now.
            self._metadata.request_update(now, f"records for {batch.topic_partition} expired")

    def _expire_waiting(self, now: float) -> bool:
        """Fail waiting records after their deadline, as many as one pass may; return whether there may be more."""
        groups: dict[tuple[str, int | None, bool, bool], list[PendingRecord]] = {}
        chunks = RECORDS_FAILED_PER_PASS // RECORDS_PER_CHUNK
        while chunks and len(groups) < REASONS_PER_PASS:
            chunks -= 1
            expired = self._accumulator.expired_records(now, RECORDS_PER_CHUNK)
            for pending in expired:
                kind = (pending.topic, pending.partition, pending.awaits_memory, pending.serialized)
                groups.setdefault(kind, []).append(pending)
            if len(expired) < RECORDS_PER_CHUNK:
                break
        for records in groups.values():
            self._fail_waiting(records, self._expiry_error(records[0], now), now)
        return len(expired) == RECORDS_PER_CHUNK

    def _fail_rejected(self, now: float) -> bool:
        """Fail some of the records that wait for a topic that the cluster rejects; return whether there are more."""
        rejected = self.cluster.rejected_topics
        name, (error, last_number) = next(iter(rejected.items()))
        records = self._accumulator.records_of_topic(name, last_number, RECORDS_FAILED_PER_PASS)
        self._fail_waiting(records, error, now)
        if len(records) < RECORDS_FAILED_PER_PASS:
            del rejected[name]
        return bool(rejected)

    def _fail_at_rejection(self, now: float) -> bool:
        """Fail some of the records that depend on a broker that rejects the client; return whether there are more."""
        rejection = self._rejections[0]
        if rejection.has_batches:
            for batch in rejection.next_batches(BATCHES_FAILED_PER_PASS):
                self._completion.fail(batch, rejection.error, now)
                assert batch.stored_error is not None
                self._report_failed_batch(batch, batch.stored_error, now)
        else:
            records = rejection.next_records(RECORDS_FAILED_PER_PASS)
            self._fail_waiting(records, rejection.error, now)
            if not records:
                del self._rejections[0]
        return bool(self._rejections)

    def _expiry_error(self, pending: PendingRecord, now: float) -> KafkaError:
        """Return the error for a record that has waited for ``max_block_ms``: it names what the record waits for."""
        waited_ms = (now - pending.since) * 1000
        topic = self._metadata.topic(pending.topic)
        if pending.awaits_memory:
            pool = self._accumulator.pool
            waiting = self._accumulator.blocked_records.pending
            throttling = next(filter(None, map(partial(self.cluster.throttling, now=now), self.cluster.nodes)), "")
            return buffer_full(pending.charged, pool.total_memory, waited_ms, len(waiting.records) + 1, throttling)
        if not pending.serialized:
            return serializer_late(pending.topic, waited_ms)
        if topic is not None:
            if pending.partition is not None and pending.partition >= len(topic.partitions):
                return partition_unknown(pending.topic, pending.partition, len(topic.partitions), waited_ms)
            return held_up(pending.topic, waited_ms)
        return self.cluster.unknown_topic_error(pending.topic, waited_ms)

    def _fail_waiting(self, records: list[PendingRecord], error: KafkaError, now: float) -> None:
        """Fail waiting records with one error; they leave their queues."""
        blocked_records = self._accumulator.blocked_records
        for pending in records:
            blocked_records.remove(pending)
            pending.fail(error)
        self._failures.record_waiting(records, error, now)

    def _fail_some(self, error: KafkaError, now: float) -> bool:
        """Fail the oldest records without an outcome, as many as one pass may; return whether there are more."""
        batches = self._completion.fail_all(error, now, BATCHES_FAILED_PER_PASS)
        for batch in batches:
            assert batch.stored_error is not None
            self._report_failed_batch(batch, batch.stored_error, now)
        if batches:
            return self._accumulator.has_undelivered()
        waiting = list(islice(self._accumulator.blocked_records.pending.records, RECORDS_FAILED_PER_PASS))
        self._fail_waiting(waiting, error, now)
        return bool(waiting) and self._accumulator.has_undelivered()

    def _fail_unsent(self, now: float) -> bool:
        """Fail some records that were never sent, for a transaction to abort; return whether there are more."""
        assert self._transactions is not None
        error = self._transactions.unsent_error()
        batches = self._accumulator.incomplete.unsent(BATCHES_FAILED_PER_PASS)
        for batch in batches:
            self._completion.fail(batch, error, now)
            assert batch.stored_error is not None
            self._report_failed_batch(batch, batch.stored_error, now)
        if len(batches) == BATCHES_FAILED_PER_PASS:
            return True
        waiting = list(islice(self._accumulator.blocked_records.pending.records, RECORDS_FAILED_PER_PASS))
        self._fail_waiting(waiting, error, now)
        return len(waiting) == RECORDS_FAILED_PER_PASS

    def fail_everything(self, error: KafkaError, now: float) -> None:
        """Fail every record that has no outcome yet, and report all failures at once."""
        while self._fail_some(error, now):
            continue
        while self._accumulator.drain_waiters.resume_all(ADMITTED_PER_PASS):
            continue
        self._failures.report_failures(now)
        if self._failed_records is not None:
            self._failed_records.report_all()
        if self._outcomes is not None:
            self._outcomes.report_all()

    async def fail_rest(self, error: KafkaError) -> None:
        """Fail every record without an outcome, some in each iteration of the loop.

        A cancelled call fails the rest at once. Nothing is sent any more.
        """
        self._producer_state.fail(error)
        try:
            more = True
            while more:
                more = self._fail_some(error, self._loop.time())
                await asyncio.sleep(0)
            await self.report_rest()
        finally:
            self.fail_everything(error, self._loop.time())

    async def report_rest(self) -> None:
        """Report all records that have failed, and all outcomes, some in each iteration of the loop."""
        more = True
        while more:
            more = self._failures.report_failures(self._loop.time(), FAILURES_REPORTED_PER_PASS)
            await asyncio.sleep(0)
        if self._failed_records is not None:
            await self._failed_records.wait_reported()
        await self.outcomes_reported()

    async def outcomes_reported(self) -> None:
        """Wait until the interceptors have seen all outcomes that are known now."""
        if self._outcomes is not None:
            await self._outcomes.wait_reported()

    # Compression

    def _compress(self) -> None:
        compression = self._accumulator.compression
        assert compression is not None
        assert self._compressor is not None
        for batch in compression.take_waiting():
            self._compressor.submit(batch)

    def _compressed(self, batch: ProducerBatch, result: bytes | BaseException) -> None:
        now = self._loop.time()
        if isinstance(result, bytes):
            self._accumulator.compressed(batch, result, now)
            queue = batch.queue
            node = None if queue is None or queue.node is None else self.cluster.nodes.get(queue.node.node_id)
            if node is not None and node.can_send(now):
                self.node_changed(node, now)
            return
        self._accumulator.compressed(batch, None, now)
        if not batch.is_finished():
            error = result if isinstance(result, KafkaError) else KafkaError(f"Compression failed: {result!r}")
            self._completion.fail(batch, error, now)
            assert batch.stored_error is not None
            self._report_failed_batch(batch, batch.stored_error, now)

    # The end

    async def close(self) -> None:
        """End every thread and connection; every record must have an outcome before."""
        try:
            if self._compressor is not None:
                await self._compressor.close()
        finally:
            await self.cluster.close()
