"""The accumulator task: drains ready batches into the nodes, and ends what they answer.

It takes the place of Kafka's Sender thread. When something is ready or due it takes a turn, a callback of the loop that
does what ``_run_once`` lists, in that order; however many records were sent since the last, one turn serves them all. A
node that has room again is drained at once, in the turn in which its response came. Where a few coroutines wait for
that response they run in between, and what they send next leaves with no turn of the loop lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
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
from aioproducer.errors import BufferExhaustedError, KafkaError, ProducerClosedError
from aioproducer.hooks import Hooks
from aioproducer.io.cluster import Cluster
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.failure_reporter import FailureReporter
from aioproducer.io.node import NodeConnection
from aioproducer.io.produce import ProduceOwner, choose_version, produce_in_flight, produce_request
from aioproducer.metrics import Metrics
from aioproducer.protocol import decode_produced
from aioproducer.protocol.messages.produce import PartitionProduceResponse
from aioproducer.record import Node, TopicPartition
from aioproducer.transport.base import Connector

if TYPE_CHECKING:
    from contextvars import Context
    from random import Random

    from aioproducer.io.offload import Compressor

# How many waiting records are served in one turn, so that no turn takes long.
ADMITTED_PER_PASS = 100

# After so many batches the rest waits for the next turn, for the same reason.
BATCHES_PER_PASS = 16
# And so many are failed in one, and so many records in line.
BATCHES_FAILED_PER_PASS = 32
RECORDS_FAILED_PER_PASS = 100
# Of records in line that fail for reasons of their own so many reasons, and so many records between two looks at that.
REASONS_PER_PASS = 20
RECORDS_PER_CHUNK = 20
# So many failures in line are told of in one turn, each of all records for a partition that fail alike; as long as
# others fail that may be among them, no more than so many wait to be told.
FAILURES_REPORTED_PER_PASS = 16
MAX_UNREPORTED_FAILURES = 1000
# Seconds that records in line may outlive their time while records before them are served.
LONGEST_POSTPONED_EXPIRY = 0.5

# Up to this many coroutines resume in the callback that reads the responses they await. If there are more, the loop
# calls them back in its next pass, as usual.
RESUMED_AT_ONCE = 8

_NEVER = float("inf")

NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74


class SenderSettings(NamedTuple):
    """What the sender keeps to, besides what its parts know. Times are in seconds."""

    acks: int
    request_timeout_ms: int
    retry_backoff: ExponentialBackoff
    node: NodeSettings


class SenderPasses:
    """Asks the loop for the sender's next turn; however many ask for one before it is taken, it is the same.

    Made before the sender, for the parts that it is made of.
    """

    __slots__ = ("_requested", "_context", "_held", "_loop", "_run_pass", "next")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._run_pass: Callable[[], None] | None = None
        self._context: Context | None = None
        self._held = False
        self._requested = False
        self.next: asyncio.Handle | None = None

    def begin(self, run_pass: Callable[[], None]) -> None:
        """Call ``take`` for every turn, in this context and not in that of the caller that happens to send."""
        self._run_pass = run_pass
        self._context = copy_context()

    def wake(self) -> None:
        """Let a turn be taken as soon as the loop comes to it."""
        if self.next is None and self._run_pass is not None:
            if self._held:
                self._requested = True
            else:
                self.next = self._loop.call_soon(self._run_pass, context=self._context)

    def hold(self) -> None:
        """Ask the loop for nothing until ``release``."""
        self._held = True

    def release(self) -> bool:
        """Return whether a turn was requested meanwhile; the caller has to take it."""
        self._held = False
        asked, self._requested = self._requested, False
        return asked

    def end(self) -> None:
        self._run_pass = None
        self._requested = False
        if self.next is not None:
            self.next.cancel()


class Sender(ProduceOwner):
    """Moves what is ready to the nodes of the cluster.

    Args:
        failures: receives every batch, and every run of waiting records, that has failed.
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
        metrics: Metrics,
        hooks: Hooks,
        random: Random,
        failures: FailureReporter,
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
        self._failed_records = failures.failed_records
        # Records in line that have failed, to be told when those are through that fail with them: error, count, and how
        # many of these were unobserved.
        self._lost: OrderedDict[tuple[TopicPartition, type[KafkaError]], tuple[KafkaError, int, int]] = OrderedDict()
        self._compressor: Compressor | None = None
        codec = accumulator.settings.codec
        if codec is not None:
            from aioproducer.io.offload import Compressor

            self._compressor = Compressor(
                loop, codec, accumulator.settings.compression_level, self._compressed, self._log
            )
        # Turns are taken while the task runs.
        self._sender_passes = sender_passes
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = _NEVER
        # Since when records in line that are over their time have waited for others to be served.
        self._expiry_postponed_at = _NEVER
        # A loop in debug mode tells which task was slow: none is to be taken for a callback of ours.
        self._resumed_at_once = 0 if loop.get_debug() else RESUMED_AT_ONCE
        # Awaiters of the response that is being read, to be resumed after it, and how many more may join them.
        self._resumed: list[Awaiting] = []
        self._resumable = self._resumed_at_once
        # A coroutine that awaited records is about to run; what it sends then does not have to linger.
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
        )

    # The task

    def wake(self) -> None:
        """Let a turn be taken as soon as the loop comes to it."""
        self._sender_passes.wake()

    async def run(self) -> None:
        """Run until cancelled. What has no outcome then has failed, and nothing more can be sent."""
        self._sender_passes.begin(self._run_pass)
        try:
            self._run_pass()
            # Turns are callbacks: a task that woke up for each would cost a future every time.
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
            self._log.exception("The sender met an error that it should not")
            deadline = self._loop.time() + self._settings.retry_backoff.maximum
        # A timer that is too early stays: a turn for nothing now and then is cheaper than a new timer every turn.
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
        """One turn; returns when the next is due."""
        accumulator = self._accumulator
        fatal_error = self._producer_state.fatal_error
        is_due = accumulator.next_deadline() <= now
        more_fail = False
        if is_due:
            self._expire_batches(now)
        if fatal_error is not None:
            more_fail = self._fail_some(fatal_error, now)
            more_fail = accumulator.drain_waiters.resume_all(ADMITTED_PER_PASS) or more_fail
        elif self.cluster.rejected_topics:
            more_fail = self._fail_rejected()
        if is_due:
            accumulator.ready.process_deadlines(now)
        served = fatal_error is None and accumulator.admit(now, ADMITTED_PER_PASS)
        if accumulator.drain_waiters.resume(ADMITTED_PER_PASS) or served:
            self.wake()
        if not is_due:
            self._expiry_postponed_at = _NEVER
        elif served and now <= self._expiry_postponed_at + LONGEST_POSTPONED_EXPIRY:
            # Where a loop was held up, what a record waited for may be here all the same: those that can be served
            # come first. Not for ever: records behind them may wait for something else.
            self._expiry_postponed_at = min(self._expiry_postponed_at, now)
        else:
            if not served:
                self._expiry_postponed_at = _NEVER
            more_fail = self._expire_waiting(now) or more_fail
        if accumulator.refused:
            for pending, error in accumulator.take_refused():
                if isinstance(error, BufferExhaustedError):
                    self._metrics.buffer_exhausted.record(1, now)
                self._fail_waiting([pending], error)
        if self._lost and (not more_fail or len(self._lost) > MAX_UNREPORTED_FAILURES):
            more_fail = self._report_failures(now, FAILURES_REPORTED_PER_PASS) or more_fail
        if more_fail:
            self.wake()
        if accumulator.compression is not None and accumulator.compression.waiting:
            self._compress()
        if accumulator.ready.leaderless:
            self._request_leaders(now)
        deadline = min(accumulator.next_deadline(), self.cluster.send_due(now))
        ready = accumulator.ready.ready_nodes
        # As a rule there is nothing, and then no list is made.
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

    # What the nodes come to; see ``NodeOwner``

    def node_ready(self, node: NodeConnection) -> None:
        self.cluster.pool.node_ready(node)

    def node_changed(self, node: NodeConnection, now: float) -> None:
        """Send at once what waits for this."""
        if self._resume_awaiters(node, now):
            return
        if node.can_send(now):
            self._drain(node, now)
            self._wake_after_awaiters()
            return
        if not node.connected:
            self.cluster.node_lost(node, now)
        self.wake()

    def expected_cluster_id(self) -> str | None:
        return self._metadata.cluster_id

    def _resume_awaiters(self, node: NodeConnection, now: float) -> bool:
        """Resume the awaiting coroutines. Return True if that triggered a turn, which has then been taken.

        Records that they send to this node leave first: mostly these are all there are, and a coroutine awaits them.
        """
        self._resumable = self._resumed_at_once
        resumed = self._resumed
        if not resumed:
            return False
        self._resumed = []
        if self.cluster.is_due(now):
            # In front of the coroutines: what they send would take each slot that their answers free.
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
            # Right behind them all, in the same pass of the loop; the turn that their records ask for is in the next.
            self._awaiters_scheduled = False
            self.wake()

    # Batches

    def _drain(self, node: NodeConnection, now: float) -> None:
        """Fill the node's free slots while something waits for one; after many batches the next turn goes on.

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
            # None where all that is ready is held back; then it is no longer ready.
            if batches:
                self._send_batches(node, batches, now)
                sent += len(batches)
        if accumulator.compression is not None and accumulator.compression.waiting:
            self._compress()

    def _send_batches(self, node: NodeConnection, batches: list[ProducerBatch], now: float) -> None:
        try:
            request = produce_request(batches, self._metadata, self._acks, self._request_timeout_ms)
            version = choose_version(node, batches, request)
            context = produce_in_flight(self, batches, request)
            written = node.send(request, context, now, version, self._acks != 0, None, decode_produced)
            node.slots.data_sent()
        except Exception as failure:
            error = failure
            if not isinstance(error, KafkaError):
                self._log.exception("A produce request for broker %s could not be made", node.node)
                error = KafkaError(f"The request for broker {node.node} could not be made: {failure!r}")
                for batch in batches:
                    # A fault of ours, and how far the transport got is not known.
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
        metrics = self._metrics
        records = 0
        for batch in batches:
            queue = batch.queue
            assert queue is not None
            record_count = batch.record_count
            size = batch.size()
            uncompressed_size = batch.uncompressed_size()
            # What a coroutine has sent that was resumed just now is newer than the answer it was resumed by.
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

    # What a produce request comes to; see ``ProduceOwner``

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
            # The loop calls these back: awaiters of later records must not run before them.
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

    def _report_verdict(self, batch: ProducerBatch, verdict: Verdict, now: float) -> None:
        """Report what became of a batch to metrics, hooks, log and metadata."""
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
            # It fails all the others too, in the next turn.
            self.wake()
        if verdict.fate is Fate.RETRIED:
            self._log.debug("%s: attempt %d failed, trying again: %s", topic_partition, batch.attempts, error)
            self._metrics.records_retried(topic_partition.topic, batch.record_count, now)
            for on_batch_retried in self._hooks.batch_retried:
                on_batch_retried(topic_partition, batch.record_count, batch.attempts, error)
        elif verdict.fate is Fate.SPLIT:
            parts = len(batch.children or ())
            self._log.info("%s: the broker calls a batch too large; sending it in %d parts", topic_partition, parts)
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
        """Fail batches that are over their time, as many as one turn may."""
        throttling = partial(self.cluster.throttling, now=now)
        for batch, error in self._completion.expire(now, BATCHES_FAILED_PER_PASS, throttling):
            self._report_failed_batch(batch, error, now)
            # The leader did not answer for long: maybe there is another one by now.
            self._metadata.request_update(now, f"records for {batch.topic_partition} expired")

    def _expire_waiting(self, now: float) -> bool:
        """Fail records in line that are over their time, as many as one turn may; whether more may be."""
        groups: dict[tuple[str, int | None, bool, bool], list[PendingRecord]] = {}
        looks = RECORDS_FAILED_PER_PASS // RECORDS_PER_CHUNK
        while looks and len(groups) < REASONS_PER_PASS:
            looks -= 1
            expired = self._accumulator.expired_records(now, RECORDS_PER_CHUNK)
            for pending in expired:
                kind = (pending.topic, pending.partition, pending.awaits_memory, pending.serialized)
                groups.setdefault(kind, []).append(pending)
            if len(expired) < RECORDS_PER_CHUNK:
                break
        for records in groups.values():
            for _ in records if records[0].awaits_memory else ():
                self._metrics.buffer_exhausted.record(1, now)
            self._fail_waiting(records, self._why_waiting(records[0], now))
        return len(expired) == RECORDS_PER_CHUNK

    def _fail_rejected(self) -> bool:
        """Fail some of the records that wait for a topic that the cluster rejects; return whether there are more."""
        rejected = self.cluster.rejected_topics
        name, (error, last_number) = next(iter(rejected.items()))
        records = self._accumulator.records_of_topic(name, last_number, RECORDS_FAILED_PER_PASS)
        self._fail_waiting(records, error)
        if len(records) < RECORDS_FAILED_PER_PASS:
            del rejected[name]
        return bool(rejected)

    def _why_waiting(self, pending: PendingRecord, now: float) -> KafkaError:
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
        return self.cluster.why_unknown(pending.topic, waited_ms)

    def _fail_waiting(self, records: list[PendingRecord], error: KafkaError) -> None:
        """Fail records in line, all for one reason; they leave their lines."""
        blocked_records = self._accumulator.blocked_records
        counts: dict[tuple[str, int | None], tuple[int, int]] = {}
        for pending in records:
            blocked_records.remove(pending)
            pending.fail(error)
            place = pending.topic, pending.partition
            count, unobserved = counts.get(place, (0, 0))
            counts[place] = count + 1, unobserved + (not pending.observed)
        for (topic, partition), (count, unobserved) in counts.items():
            kind = TopicPartition(topic, -1 if partition is None else partition), type(error)
            first, count_before, unobserved_before = self._lost.get(kind, (error, 0, 0))
            self._lost[kind] = first, count_before + count, unobserved_before + unobserved
        if self._failed_records is not None:
            for pending in records:
                self._failed_records.add(pending)

    def _report_failures(self, now: float, most: int | None = None) -> bool:
        """Tell of records in line that have failed, of ``most`` failures at most; whether there are others."""
        lost = self._lost
        left = len(lost) if most is None else most
        while lost and left:
            left -= 1
            (where, _), (error, count, unobserved) = lost.popitem(last=False)
            self._metrics.records_failed(where.topic, count, now)
            self._failures.report(where, count, unobserved, error)
        return bool(lost)

    def _fail_some(self, error: KafkaError, now: float) -> bool:
        """Fail the oldest records that have no outcome yet, as many as one turn may; whether there are others."""
        batches = self._completion.fail_all(error, now, BATCHES_FAILED_PER_PASS)
        for batch in batches:
            assert batch.stored_error is not None
            self._report_failed_batch(batch, batch.stored_error, now)
        if batches:
            return self._accumulator.has_undelivered()
        waiting = list(islice(self._accumulator.blocked_records.pending.records, RECORDS_FAILED_PER_PASS))
        self._fail_waiting(waiting, error)
        return bool(waiting) and self._accumulator.has_undelivered()

    def fail_everything(self, error: KafkaError, now: float) -> None:
        """Fail every record that has no outcome yet, and have all told at once."""
        while self._fail_some(error, now):
            continue
        while self._accumulator.drain_waiters.resume_all(ADMITTED_PER_PASS):
            continue
        self._report_failures(now)
        if self._failed_records is not None:
            self._failed_records.report_all()

    async def fail_rest(self, error: KafkaError) -> None:
        """Fail every record that has no outcome yet, some in each turn; a cancelled call fails the rest at once.

        Nothing is sent any more.
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
        """Tell of all records that have failed, some in each turn."""
        more = True
        while more:
            more = self._report_failures(self._loop.time(), FAILURES_REPORTED_PER_PASS)
            await asyncio.sleep(0)
        if self._failed_records is not None:
            await self._failed_records.wait_reported()

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
        """End every thread and connection; whatever has no outcome must have been failed before."""
        try:
            if self._compressor is not None:
                await self._compressor.close()
        finally:
            await self.cluster.close()
