"""``Fetcher``: which partitions to request from which node, and what their responses change."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from aioproducer.core.fetching.buffer import FetchedBatches, last_position
from aioproducer.core.fetching.memory import FetchBuffer, FetchedResponse
from aioproducer.core.fetching.partition import AssignedPartition, FetchPosition, FetchState
from aioproducer.core.fetching.reset import EARLIEST, OffsetReset, ResetKind
from aioproducer.core.fetching.session import NO_TOPIC_ID, FetchSession, SessionPartition
from aioproducer.core.fetching.turns import RecordTurns
from aioproducer.core.metadata.cluster import NO_LEADER, MetadataChange
from aioproducer.core.metadata.cluster_metadata import REFUSED_TOPIC_CODES, ClusterMetadata
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff
from aioproducer.errors import (
    CorruptBatchError,
    KafkaError,
    LeaderNotAvailableError,
    NoOffsetForPartitionError,
    ProtocolError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    broker_error,
    error_class,
)
from aioproducer.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from aioproducer.record import Node, TopicPartition

if TYPE_CHECKING:
    from random import Random

    from aioproducer._common.client_log import Log
    from aioproducer.protocol.messages.leaders import NodeEndpoint

TOPIC_IDS_FROM = 13
"""From this version on a Fetch names topics by their ids (KIP-516)."""

OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74
OFFSET_NOT_AVAILABLE = 78

_LEADER_MOVED = frozenset((NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH))

LEAST_REQUEST_BYTES = 1
"""A request is not sent with less room than this, however small the buffer is."""


class FetcherSettings(NamedTuple):
    """The settings of a ``Fetcher``: Kafka's keys, with times in seconds unless the name ends in ``_ms``."""

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int
    buffer_bytes: int
    isolation_level: int
    check_crcs: bool
    reset: OffsetReset
    rack: str
    retry_backoff: ExponentialBackoff
    metadata_max_age: float

    @property
    def is_committed(self) -> bool:
        """Whether only records of committed transactions are read."""
        return self.isolation_level == 1


class PlannedFetch(NamedTuple):
    """A Fetch request to send to a node; ``highest`` is the highest version it may be sent in."""

    node_id: int
    request: FetchRequest
    highest: int
    revisions: Mapping[TopicPartition, int]
    offsets: Mapping[TopicPartition, int]
    reserved: int


class Fetcher:
    """The partitions of a consumer. The package docstring has the rules.

    Args:
        metadata: shared with the driver, which requests its updates.
    """

    def __init__(self, settings: FetcherSettings, metadata: ClusterMetadata, random: Random, log: Log) -> None:
        self.settings: Final = settings
        self.metadata: Final = metadata
        self.partitions: Final[dict[TopicPartition, AssignedPartition]] = {}
        self.buffer: Final = FetchBuffer(settings.buffer_bytes)
        self._random = random
        self.log = log
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: set[int] = set()
        self._node_attempts: dict[int, Attempts] = {}
        # Partitions in the order of the next requests: one with data goes to the end.
        self._order: dict[TopicPartition, None] = {}
        self.records: Final = RecordTurns(self.buffer)
        self.received_bytes = 0
        """Bytes of record batches in all responses."""
        self._applied_version = -1
        # Of a partition that is assigned: above those of all before, so that late responses are ignored.
        self._next_revision = 0

    # Assignment

    def assign(self, wanted: Collection[TopicPartition], now: float) -> None:
        """Replace the assignment; partitions that stay keep their state."""
        kept = set(wanted)
        for name in [name for name in self.partitions if name not in kept]:
            partition = self.partitions.pop(name)
            self._next_revision = max(self._next_revision, partition.revision + 1)
            self.records.forget(partition)
            partition.unassign()
            del self._order[name]
        for name in wanted:
            if name not in self.partitions:
                attempts = Attempts(self.settings.retry_backoff, self._random)
                self.partitions[name] = AssignedPartition(name, attempts, self.buffer, self._next_revision)
                self._order[name] = None
        share = self.buffer.response_capacity // max(len(self.partitions), 1)
        self.buffer.share = max(min(self.settings.max_partition_bytes, share), 1)
        self.refresh_leaders(now)

    def uninitialized(self) -> list[TopicPartition]:
        """Return the partitions without a position, for which the driver passes an offset to ``initialize``."""
        return [name for name, each in self.partitions.items() if each.state is FetchState.INITIALIZING]

    def initialize(self, name: TopicPartition, committed: FetchPosition | None) -> None:
        """Begin at the group's committed offset, or without one as ``auto_offset_reset`` says."""
        partition = self.partitions.get(name)
        if partition is None or partition.state is not FetchState.INITIALIZING:
            return
        if committed is not None:
            partition.seek(committed)
        else:
            self._reset_by_policy(
                partition,
                NoOffsetForPartitionError(
                    f"Partition {name} has no committed offset, and auto_offset_reset is none: seek to a position."
                ),
            )

    def seek(self, name: TopicPartition, position: FetchPosition) -> None:
        """Continue at ``position``. Prefetched records are dropped."""
        partition = self.partitions[name]
        self.records.hold_back(partition)
        partition.seek(position, in_progress=self.records.in_progress(partition))

    def request_reset(self, name: TopicPartition, reset: OffsetReset) -> None:
        """Continue where ``reset`` says once a leader has answered."""
        partition = self.partitions[name]
        self.records.hold_back(partition)
        partition.request_reset(reset)

    def pause(self, name: TopicPartition) -> None:
        """Neither request nor return records of the partition."""
        partition = self.partitions[name]
        partition.is_paused_by_caller = True
        self._pause_changed(partition)

    def resume(self, name: TopicPartition) -> None:
        """Undo ``pause``; a partition that is held stays so."""
        partition = self.partitions[name]
        partition.is_paused_by_caller = False
        self._pause_changed(partition)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that the caller has paused."""
        return frozenset(name for name, each in self.partitions.items() if each.is_paused_by_caller)

    def hold(self, held: Container[TopicPartition]) -> None:
        """Neither request nor return records of partitions in ``held``, whatever the caller pauses and resumes."""
        for name, partition in self.partitions.items():
            if partition.is_held != (name in held):
                partition.is_held = not partition.is_held
                self._pause_changed(partition)

    def _pause_changed(self, partition: AssignedPartition) -> None:
        if partition.is_paused:
            self.records.hold_back(partition)
        else:
            self.records.offer(partition)

    def _reset_by_policy(self, partition: AssignedPartition, error: KafkaError) -> None:
        """Reset the position by ``auto_offset_reset``; with ``none`` raise ``error``."""
        if self.settings.reset.kind is ResetKind.NONE:
            partition.fail(error, is_final=True)
        else:
            self.request_reset(partition.name, self.settings.reset)

    # Metadata

    def refresh_leaders(self, now: float) -> None:
        """Apply the latest metadata to the assigned partitions; topics without metadata are requested."""
        self._applied_version = self.metadata.version
        for partition in self.partitions.values():
            self._refresh(partition, now)

    def metadata_applied(self, now: float) -> None:
        """As ``refresh_leaders``, if there is newer metadata."""
        if self.metadata.version != self._applied_version:
            self.refresh_leaders(now)

    def _refresh(self, partition: AssignedPartition, now: float) -> None:
        topic, index = partition.name
        known = self.metadata.add_topic(topic, now)
        if known is None:
            code = self.metadata.topic_error(topic)
            if code == UnknownTopicOrPartitionError.code:
                partition.is_missing = True
            self._check_topic_error(partition, code)
            partition.leader = NO_LEADER
            return
        partition.is_missing = False
        if known.topic_id is not None and known.topic_id != partition.topic_id:
            if partition.topic_id is not None:
                self._begin_recreated(partition, known.topic_id)
            partition.topic_id = known.topic_id
        if not 0 <= index < len(known.partitions):
            partition.leader = NO_LEADER
            self.metadata.request_update(now, f"topic {topic} has no partition {index}")
            return
        described = known.partitions[index]
        partition.leader_changed(described.leader, described.leader_epoch)
        if partition.state is FetchState.VALIDATING:
            self.records.hold_back(partition)

    def _check_topic_error(self, partition: AssignedPartition, code: int) -> None:
        if code in REFUSED_TOPIC_CODES and partition.state is not FetchState.FAILED:
            is_final = code != TopicAuthorizationError.code
            partition.fail(_with_topic(broker_error(code), partition.name), is_final=is_final)

    def _begin_recreated(self, partition: AssignedPartition, topic_id: bytes) -> None:
        before = partition.position
        self.records.forget(partition)
        partition.recreated(topic_id)
        if partition.state in (FetchState.INITIALIZING, FetchState.RESETTING):
            return
        if self.settings.reset.kind is ResetKind.NONE:
            partition.fail(
                NoOffsetForPartitionError(
                    f"The topic of {partition.name} was deleted and created again. The position "
                    f"{'' if before is None else before.offset} was in the old topic, and auto_offset_reset is none: "
                    "seek to a position in the new topic."
                ),
                is_final=True,
            )
            return
        self.log.warning(
            "%s: the topic was deleted and created again; reading continues at its beginning (the old position was %s)",
            partition.name,
            "unknown" if before is None else before.offset,
        )
        partition.request_reset(EARLIEST)

    # Requests

    def _is_fetchable(self, partition: AssignedPartition, now: float) -> bool:
        return (
            partition.state is FetchState.FETCHING
            and not partition.is_paused
            and not partition.is_fetched
            and partition.in_flight == NO_LEADER
            and partition.attempts.retry_at <= now
        )

    def nodes_to_fetch(self, now: float) -> list[int]:
        """Return the nodes that a Fetch request can be sent to now."""
        fetchable: dict[int, bool] = {}
        for partition in self.partitions.values():
            if not self._is_fetchable(partition, now):
                continue
            node_id = partition.fetch_node(now)
            if node_id == NO_LEADER:
                self.without_leader(partition, now)
                continue
            fetchable[node_id] = fetchable.get(node_id, True) and not partition.is_full()
        nodes = [
            node_id
            for node_id, may_fetch in fetchable.items()
            if may_fetch and node_id not in self._in_flight and self._delay(node_id, now) == 0
        ]
        return nodes if nodes and self._request_bytes(now) > 0 else []

    def without_leader(self, partition: AssignedPartition, now: float) -> None:
        """Request metadata for a partition whose leader is unknown."""
        partition.failed(LeaderNotAvailableError(f"Partition {partition.name} has no leader at present."), now)
        self.metadata.request_update(now, f"{partition.name} has no leader")

    def _request_bytes(self, now: float) -> int:
        """Return the ``max_bytes`` of the next request, 0 if it must wait for room in the buffer.

        The buffer is divided among the nodes that have unpaused partitions.
        """
        nodes = {each.fetch_node(now) for each in self.partitions.values() if not each.is_paused}
        most = max(
            min(self.settings.max_bytes, self.buffer.response_capacity // max(len(nodes), 1)), LEAST_REQUEST_BYTES
        )
        least = min(most, self.buffer.share)
        if self.buffer.free < least:
            self._drop_paused()
        return min(most, self.buffer.free) if self.buffer.free >= least else 0

    def _drop_paused(self) -> None:
        """Make room: data of paused partitions are fetched again after ``resume``."""
        for partition in self.partitions.values():
            if partition.is_paused and (partition.buffered or partition.ready):
                partition.drop_buffered()

    def _delay(self, node_id: int, now: float) -> float:
        attempts = self._node_attempts.get(node_id)
        return 0.0 if attempts is None else attempts.delay(now)

    def build_fetch(self, node_id: int, now: float) -> PlannedFetch | None:
        """Return the request to send to a node of ``nodes_to_fetch``; None if there is no longer room for it."""
        reserved = self._request_bytes(now)
        if not reserved:
            return None
        settings = self.settings
        wanted: dict[TopicPartition, SessionPartition] = {}
        for name in self._order:
            partition = self.partitions[name]
            if self._is_fetchable(partition, now) and partition.fetch_node(now) == node_id:
                assert partition.fetch_position is not None
                wanted[name] = SessionPartition(
                    partition.topic_id or NO_TOPIC_ID,
                    partition.fetch_position.offset,
                    settings.max_partition_bytes,
                    partition.leader_epoch,
                )
                partition.in_flight = node_id
        session = self._sessions.setdefault(node_id, FetchSession())
        part = session.build(wanted)
        request = self._request(part.session_id, part.epoch, reserved)
        request.topics = part.topics
        request.forgotten_topics_data = part.forgotten
        self._in_flight.add(node_id)
        self.buffer.reserved += reserved
        uses_ids = all(each.topic_id != NO_TOPIC_ID for each in wanted.values())
        return PlannedFetch(
            node_id,
            request,
            FetchRequest.schema.versions[-1] if uses_ids else TOPIC_IDS_FROM - 1,
            {name: self.partitions[name].revision for name in wanted},
            {name: each.offset for name, each in wanted.items()},
            reserved,
        )

    def _request(self, session_id: int, epoch: int, max_bytes: int) -> FetchRequest:
        settings = self.settings
        return FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=max_bytes,
            isolation_level=settings.isolation_level,
            session_id=session_id,
            session_epoch=epoch,
            rack_id=settings.rack,
        )

    def busy_nodes(self) -> set[int]:
        """Return the nodes with a Fetch request in flight."""
        return set(self._in_flight)

    def build_session_ends(self) -> list[tuple[int, FetchRequest]]:
        """Return for each node with a session the request that ends it."""
        ends: list[tuple[int, FetchRequest]] = []
        for node_id, session in self._sessions.items():
            part = session.end()
            if part is not None:
                request = self._request(part.session_id, part.epoch, 0)
                request.max_wait_ms = 0
                ends.append((node_id, request))
        return ends

    def next_retry(self, now: float) -> float:
        """Return when a backoff ends, infinity without any."""
        times = [each.attempts.retry_at for each in self.partitions.values()]
        times += [each.retry_at for each in self._node_attempts.values()]
        times += [each.read_replica_until for each in self.partitions.values()]
        return min((time for time in times if time > now), default=math.inf)

    # Responses

    def _end_flight(self, plan: PlannedFetch) -> None:
        self._in_flight.discard(plan.node_id)
        self.buffer.reserved -= plan.reserved
        for name in plan.revisions:
            partition = self.partitions.get(name)
            if partition is not None and partition.in_flight == plan.node_id:
                partition.in_flight = NO_LEADER

    def fetch_failed(self, plan: PlannedFetch, error: KafkaError, now: float) -> None:
        """Apply the failure of a request: the node backs off, and metadata is requested."""
        self._end_flight(plan)
        self._sessions[plan.node_id].failed()
        attempts = self._node_attempts.setdefault(plan.node_id, Attempts(self.settings.retry_backoff, self._random))
        attempts.failed(now)
        if not error.retriable:
            self._fail_all(plan, error)
        for name in plan.revisions:
            partition = self.partitions.get(name)
            if partition is not None:
                partition.failed(error, now)
                partition.forget_read_replica()
        self.metadata.request_update(now, f"a fetch from broker {plan.node_id} failed: {error}")

    def fetch_answered(self, plan: PlannedFetch, response: FetchResponse, now: float) -> MetadataChange:
        """Apply a response; return the changes of metadata by the leaders that it names (KIP-951)."""
        self._end_flight(plan)
        change = MetadataChange()
        session = self._sessions[plan.node_id]
        names = session.names(response)
        session.answered(response)
        if response.error_code:
            error = broker_error(response.error_code)
            self.log.info("Fetch from broker %d: %s", plan.node_id, error)
            for each in self._answered(plan):
                each.failed(error, now)
            if not error.retriable and not error.refresh_metadata:
                self._fail_all(plan, error)
            elif error.refresh_metadata:
                self.metadata.request_update(now, f"a fetch from broker {plan.node_id} failed: {error}")
            self._node_attempts.setdefault(plan.node_id, Attempts(self.settings.retry_backoff, self._random)).failed(
                now
            )
            return change
        self._node_attempts.pop(plan.node_id, None)
        size = _size(response)
        self.received_bytes += size
        memory = FetchedResponse(self.buffer, size)
        refused: set[TopicPartition] = set()
        for topic, name in zip(response.responses, names, strict=True):
            for data in topic.partitions:
                key = None if name is None else TopicPartition(name, data.partition_index)
                revision = None if key is None else plan.revisions.get(key)
                partition = None if key is None else self.partitions.get(key)
                if key is None or revision is None:
                    self.metadata.request_update(now, f"broker {plan.node_id} answered for an unknown partition")
                elif (
                    partition is not None and partition.revision == revision and _expects(partition, plan.offsets[key])
                ):
                    self._take(partition, data, plan, memory, now)
                    if data.error_code:
                        refused.add(key)
                    if data.error_code in _LEADER_MOVED:
                        change.add(self._apply_hint(key, data, response.node_endpoints, now))
        # An incremental session leaves out the partitions that have no news.
        served = [partition for partition in self._answered(plan) if partition.name not in refused]
        for partition in served:
            if partition.failure is not None:
                partition.succeeded()
        if not size and not response.throttle_time_ms:
            self._nothing_fetched(plan, served, now)
        if change:
            self.refresh_leaders(now)
        return change

    def _answered(self, plan: PlannedFetch) -> list[AssignedPartition]:
        """Return the partitions of a request whose response counts."""
        return [
            partition
            for name, revision in plan.revisions.items()
            if (partition := self.partitions.get(name)) is not None and partition.revision == revision
        ]

    def _nothing_fetched(self, plan: PlannedFetch, served: Iterable[AssignedPartition], now: float) -> None:
        """Pass over the offsets before ``stop`` that the node has, and that contain nothing to read.

        Compaction may have removed every batch between the position and an open transaction, behind which
        ``read_committed`` returns nothing. A response without any batch was not cut off by its limits.
        """
        for partition in served:
            if partition.stop is None or partition.fetch_node(now) != plan.node_id:
                continue
            end = partition.last_stable_offset if self.settings.is_committed else partition.high_watermark
            if end >= partition.stop and _expects(partition, plan.offsets[partition.name]):
                partition.fetch_position = FetchPosition(partition.stop)

    def _fail_all(self, plan: PlannedFetch, error: KafkaError) -> None:
        """Raise an error of a whole request to the caller."""
        for name in plan.revisions:
            partition = self.partitions.get(name)
            if partition is not None and partition.state is FetchState.FETCHING:
                partition.fail(error, is_final=False)

    def _apply_hint(
        self, name: TopicPartition, data: PartitionData, endpoints: Iterable[NodeEndpoint], now: float
    ) -> MetadataChange:
        nodes = [Node(each.node_id, each.host, each.port, each.rack) for each in endpoints]
        leader = data.current_leader
        return self.metadata.apply_leader_hints(*name, leader.leader_id, leader.leader_epoch, nodes, now)

    def _take(
        self, partition: AssignedPartition, data: PartitionData, plan: PlannedFetch, memory: FetchedResponse, now: float
    ) -> None:
        if data.error_code:
            self._refused(partition, data.error_code, plan, now)
            self._move_to_end(partition.name)
            return
        partition.attempts.succeeded()
        partition.high_watermark = data.high_watermark
        partition.last_stable_offset = data.last_stable_offset
        partition.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0 and data.preferred_read_replica != plan.node_id:
            partition.read_replica = data.preferred_read_replica
            partition.read_replica_until = now + self.settings.metadata_max_age
        records = data.records
        if records is None or not len(records):
            return
        offset = plan.offsets[partition.name]
        try:
            if not isinstance(records, bytes | bytearray | memoryview):
                raise ProtocolError("records were read in parts")
            behind = last_position(records, offset)
            if behind is None:
                raise ProtocolError(f"{len(records)} bytes contain no whole batch that reaches the offset")
        except ProtocolError as error:
            partition.fail(_unreadable(partition.name, offset, error), is_final=True)
            return
        aborted = data.aborted_transactions or () if self.settings.is_committed else ()
        partition.buffered.append(
            FetchedBatches(
                partition,
                memory,
                records,
                offset,
                [(each.first_offset, each.producer_id) for each in aborted],
                check_crcs=self.settings.check_crcs,
            )
        )
        partition.fetch_position = behind
        self._move_to_end(partition.name)
        self.records.offer(partition)

    def _move_to_end(self, name: TopicPartition) -> None:
        del self._order[name]
        self._order[name] = None

    def _refused(self, partition: AssignedPartition, code: int, plan: PlannedFetch, now: float) -> None:
        error = _with_topic(broker_error(code), partition.name)
        was_replica = partition.forget_read_replica()
        if code == OFFSET_OUT_OF_RANGE:
            if not was_replica:
                self._out_of_range(partition, plan.offsets[partition.name], now)
            return
        partition.attempts.failed(now)
        partition.failed(error, now)
        if error.refresh_metadata or code in (UnknownTopicOrPartitionError.code, OFFSET_NOT_AVAILABLE):
            self.log.info("%s", error)
            self.metadata.request_update(now, str(error))
        elif isinstance(error, TopicAuthorizationError) or code == CORRUPT_MESSAGE:
            partition.fail(error, is_final=False)
        elif error.retriable or code == -1:
            self.log.info("%s", error)
        else:
            partition.fail(error, is_final=True)

    def _out_of_range(self, partition: AssignedPartition, offset: int, now: float) -> None:
        text = f"Partition {partition.name} has no offset {offset}"
        if partition.log_start_offset >= 0:
            # The response has no offsets. The log may begin later by now, if that is why the offset is missing.
            text += f" (it began at {partition.log_start_offset} when records were last read)"
        error = error_class(OFFSET_OUT_OF_RANGE)(f"{text}, and auto_offset_reset is none: seek to another position.")
        if self.settings.reset.kind is ResetKind.NONE:
            partition.fail(error, is_final=True)
            return
        if partition.buffered or partition.ready:
            # The caller first gets the records before the offset: a reset would drop them.
            partition.attempts.failed(now)
            return
        self.log.warning("%s; the position is reset to %s", text, self.settings.reset.kind.value)
        partition.request_reset(self.settings.reset)

    # Errors

    def corrupt(self, batches: FetchedBatches, error: KafkaError) -> None:
        """Raise to the caller, after the ready records, that a batch cannot be read; it is not passed over."""
        if batches.is_dropped:
            return
        partition = batches.partition
        behind = partition.ready_position
        offset = batches.first if behind is None else behind.offset
        next_offset = batches.offset_behind_unreadable()
        if next_offset is not None and next_offset <= offset:
            next_offset = None
        while partition.buffered:
            partition.buffered.pop().drop()
        self.records.hold_back(partition)
        self.records.offer(partition)
        partition.fetch_position = behind
        partition.fail(_unreadable(partition.name, offset, error, next_offset), is_final=True)

    def next_error(self, now: float) -> KafkaError | None:
        """Return an error to raise: that of a partition whose records before it were all returned."""
        failed = self.first_failed()
        return None if failed is None else self.take_error(failed, now)

    def first_failed(self) -> AssignedPartition | None:
        """Return a failed partition whose records before the error were all returned."""
        for partition in self.partitions.values():
            if partition.state is not FetchState.FAILED or partition.buffered or partition.ready or partition.is_paused:
                continue
            return partition
        return None

    def take_error(self, partition: AssignedPartition, now: float) -> KafkaError:
        """Return the error of a failed partition to raise; one that may pass ends the state, after a backoff."""
        error = partition.error
        assert error is not None
        if not partition.is_error_final:
            partition.resume_after_error()
            partition.attempts.failed(now)
        return error.fresh()


def _expects(partition: AssignedPartition, offset: int) -> bool:
    """Return whether data from ``offset`` on are next: prefetched data before them may have been dropped meanwhile."""
    return partition.fetch_position is not None and partition.fetch_position.offset == offset


def _size(response: FetchResponse) -> int:
    return sum(
        [len(data.records) for topic in response.responses for data in topic.partitions if data.records is not None]
    )


def _with_topic(error: KafkaError, name: TopicPartition) -> KafkaError:
    error.args = (f"Partition {name}: {error}",)
    return error


def _unreadable(
    name: TopicPartition, offset: int, error: KafkaError, next_offset: int | None = None
) -> CorruptBatchError:
    remedy = "Seek behind the batch" if next_offset is None else f"Seek to offset {next_offset}, behind the batch,"
    unreadable = CorruptBatchError(f"Partition {name} cannot be read at offset {offset}: {error} {remedy} to go on.")
    unreadable.topic_partition = name
    unreadable.offset = offset
    unreadable.next_offset = next_offset
    unreadable.__cause__ = error
    return unreadable
