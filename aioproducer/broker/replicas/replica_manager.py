"""All replicas of one node: leaders, followers, and appends with acknowledgements (Kafka's ReplicaManager)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from aioproducer.broker.image import GROUP_METADATA_TOPIC, NO_LEADER, TRANSACTION_STATE_TOPIC, PartitionState
from aioproducer.broker.replicas.host import PartitionKey, ReplicaHost
from aioproducer.broker.replicas.log_cleaner import LogCleaner
from aioproducer.broker.replicas.partition import Origin, Partition, Watcher
from aioproducer.broker.replicas.replica_fetcher import ReplicaFetcher
from aioproducer.broker.replicas.replica_upkeep import NEVER_MS, ReplicaUpkeep
from aioproducer.errors import (
    InvalidRequiredAcksError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownServerError,
)

if TYPE_CHECKING:
    from aioproducer.broker.log import AppendInfo, VerificationGuard
    from aioproducer.protocol import Buffer

logger = logging.getLogger(__name__)

LONGEST_TURN = 0.002
"""Seconds of small steps after which other callbacks get a turn."""

FREED_PER_TURN = 1024 * 1024
"""Bytes of deleted logs in memory that are freed before other callbacks get a turn."""

LOGS_OPENED_AT_ONCE = 8
"""Maximum number of new logs that a controller's event opens at once; later passes of the loop open the others."""


class Outcomes(dict[PartitionKey, "AppendInfo | KafkaError"]):
    """The outcome of each partition's batch."""

    def __init__(self) -> None:
        super().__init__()
        self.unacknowledged: dict[PartitionKey, AppendInfo] = {}
        """The batches that were written although their outcome is an error."""


class ReplicaManager:
    """The partitions that have a replica on this node.

    ``apply`` follows the controller and may be called before ``start``. Background work runs from ``start`` to
    ``close``.
    """

    def __init__(self, broker: ReplicaHost) -> None:
        self.broker = broker
        self.partitions: dict[PartitionKey, Partition] = {}
        self.fetchers: dict[int, ReplicaFetcher] = {}
        """By the node id of the leader."""
        self._unopened: dict[PartitionKey, PartitionState] = {}
        """New partitions; their logs are opened soon, or at the first request."""
        self._opening: asyncio.Handle | None = None
        self._is_giving_back = False
        self._offline: dict[PartitionKey, KafkaError] = {}
        self._following: dict[PartitionKey, int] = {}
        self._flushing: dict[Partition, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.flushed_by_time: dict[PartitionKey, Partition] = {}
        """The partitions of topics that set flush.ms."""
        self._upkeep = ReplicaUpkeep(self)
        self.cleaner = LogCleaner(self)
        self._is_running = False
        self._is_closed = False

    def start(self) -> None:
        """Start the background work: fetching from leaders, ISRs, retention, compaction, checkpoints."""
        self._is_running = True
        self._remove_strays()
        self._upkeep.start()
        self.cleaner.start()
        for fetcher in self.fetchers.values():
            fetcher.start()

    async def close(self) -> None:
        """Stop the background work and notify all watchers. The logs stay open, as the broker owns them."""
        self._is_closed = True
        self._is_running = False
        self._unopened.clear()
        if self._opening is not None:
            self._opening.cancel()
        fetchers, self.fetchers = list(self.fetchers.values()), {}
        for partition in self.partitions.values():
            partition.remove()
        tasks = [self._upkeep.close(), self.cleaner.close(), *(fetcher.close() for fetcher in fetchers)]
        await asyncio.gather(*tasks, *self._flushing.values(), *self._closing)

    def high_watermarks(self) -> dict[PartitionKey, int]:
        """Return the high watermarks for ``LogManager.checkpoint`` and ``LogManager.close``."""
        return {key: partition.high_watermark for key, partition in self.partitions.items()}

    def partition(self, topic: str, index: int) -> Partition:
        """Return the replica of a partition on this node.

        Raises:
            NotLeaderOrFollowerError: the partition is on other nodes.
            UnknownTopicOrPartitionError: there is no such partition.
            KafkaStorageError: its log could not be opened.
        """
        key = (topic, index)
        if key in self._unopened:
            self._open_now(key)
        partition = self.partitions.get(key)
        if partition is None:
            self._raise_absent(topic, index)
            raise AssertionError
        return partition

    def _raise_absent(self, topic: str, index: int) -> None:
        failure = self._offline.get((topic, index))
        if failure is not None:
            raise failure.fresh()
        self.broker.image.partition(topic, index)
        raise NotLeaderOrFollowerError(
            f"Partition {topic}-{index} is not on broker {self.broker.node_id}: it was moved away, or is not here yet."
        )

    def leader(self, topic: str, index: int, current_leader_epoch: int = -1) -> Partition:
        """Return a partition that this node leads.

        Raises:
            FencedLeaderEpochError, UnknownLeaderEpochError: ``current_leader_epoch`` is neither -1 nor the current one.
            KafkaError: as ``partition``; ``NotLeaderOrFollowerError`` also if this node is a follower.
        """
        partition = self.partition(topic, index)
        partition.check_leader_epoch(current_leader_epoch)
        if not partition.is_leader:
            raise NotLeaderOrFollowerError(
                f"Leader not local for partition {topic}-{index} on broker {self.broker.node_id}"
            )
        return partition

    # The host of partitions

    @property
    def node_id(self) -> int:
        return self.broker.node_id

    @property
    def lag_time_max(self) -> float:
        return self.broker.config.replica_lag_time_max_ms / 1000

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def eligible_epoch(self, node_id: int) -> int | None:
        node = self.broker.image.nodes.get(node_id)
        return node.epoch if node is not None and node.is_eligible else None

    def alter_isr(self, state: PartitionState, isr: list[int]) -> PartitionState:
        return self.broker.controller.alter_partition(
            self.node_id, state.topic, state.index, state.leader_epoch, state.partition_epoch, isr
        )

    def flush_soon(self, partition: Partition) -> None:
        if partition not in self._flushing:
            self._flushing[partition] = asyncio.get_running_loop().create_task(self._flush(partition))

    async def _flush(self, partition: Partition) -> None:
        """Flush a log until nothing is due; the next pass covers records appended in the meantime."""
        failure: KafkaError | None = None
        log = partition.log
        try:
            while not partition.is_removed and ((is_due := log.flush_due) or log.rolled_segments_unflushed):
                try:
                    await self.flush_log(partition, None if is_due else log.active_base_offset)
                except KafkaError as error:
                    logger.error("%r: the log cannot be flushed to disk: %s", partition, error)
                    failure = error if is_due else None
                    break
                if is_due:
                    partition.flushed()
        finally:
            # Before watchers are notified: the next append must be able to start a flush.
            del self._flushing[partition]
        if failure is not None:
            partition.flush_failed(failure)

    async def flush_log(self, partition: Partition, up_to: int | None = None) -> None:
        """Flush a partition's log in another thread, below the offset ``up_to`` or completely.

        Raises:
            KafkaStorageError: the flush failed.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(None, partition.log.flush, up_to)
        except OSError as error:
            raise KafkaStorageError(f"{partition.topic}-{partition.index}: {error}") from error

    # The controller's events

    def apply(self, changed: Iterable[PartitionState], removed: Iterable[PartitionState]) -> None:
        """Become leader or follower of partitions as the controller decided, or close them.

        The log of a new partition is created, and that of a removed or moved one deleted. Of many new logs some are
        opened later; a request for such a partition opens its log at once.
        """
        if self._is_closed:
            return
        opened = 0
        for state in removed:
            key = (state.topic, state.index)
            if self._topic_id(key) == state.topic_id:
                self._remove(key)
        for state in changed:
            if self._is_new(state):
                opened += 1
                if opened > LOGS_OPENED_AT_ONCE:
                    self._unopened[state.topic, state.index] = state
                    continue
            self._apply(state)
        if self._unopened and self._opening is None:
            self._opening = asyncio.get_running_loop().call_soon(self._open_some)

    def _is_new(self, state: PartitionState) -> bool:
        """Return whether a log must be created and may be opened later, unlike the logs of coordinators."""
        key = (state.topic, state.index)
        return (
            self.node_id in state.replicas
            and key not in self.partitions
            and key not in self.broker.logs.logs
            and state.topic not in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
        )

    def _open_some(self) -> None:
        """Open logs for a while, and continue in the next pass of the loop."""
        self._opening = None
        ends = self.now() + LONGEST_TURN
        while self._unopened and self.now() < ends:
            self._open_now(next(iter(self._unopened)))
        if self._unopened:
            self._opening = asyncio.get_running_loop().call_soon(self._open_some)

    def _open_now(self, key: PartitionKey) -> None:
        self._apply(self._unopened.pop(key))

    def _topic_id(self, key: PartitionKey) -> bytes | None:
        """Return the id of the topic that this node has under a name, ``None`` if it has none."""
        unopened = self._unopened.get(key)
        if unopened is not None:
            return unopened.topic_id
        partition = self.partitions.get(key)
        return self.broker.logs.topic_id_of(*key) if partition is None else partition.topic_id

    def _apply(self, state: PartitionState) -> None:
        key = (state.topic, state.index)
        if key in self._unopened and self._topic_id(key) == state.topic_id:
            del self._unopened[key]
        if self._topic_id(key) not in (None, state.topic_id) or self.node_id not in state.replicas:
            # The topic was created again, perhaps while this node was down, or the replica moved to another node.
            self._remove(key)
        if self.node_id not in state.replicas:
            return
        try:
            partition = self.partitions.get(key) or self._open(state)
            is_new_epoch = partition.apply(state)
            leader = partition.state.leader
            self._follow(partition, NO_LEADER if leader == self.node_id else leader, is_new_epoch)
        except (KafkaError, OSError) as error:
            # The other partitions of the event must be followed. The next event tries this one again.
            logger.error("%s-%d: the log cannot be used: %s", *key, error)
            self._let_go(key)
            self._offline[key] = KafkaStorageError(f"The log of {key[0]}-{key[1]} cannot be used: {error}")

    def _open(self, state: PartitionState) -> Partition:
        key = (state.topic, state.index)
        log = self.broker.logs.get_or_create(state.topic, state.index, state.topic_id)
        partition = self.partitions[key] = Partition(self, state, log, self.broker.logs.high_watermark(*key))
        self._offline.pop(key, None)
        self._configured(key, partition)
        return partition

    def _configured(self, key: PartitionKey, partition: Partition) -> None:
        if partition.log.config.flush_ms < NEVER_MS:
            self.flushed_by_time[key] = partition
        else:
            self.flushed_by_time.pop(key, None)

    def _let_go(self, key: PartitionKey) -> None:
        self._unopened.pop(key, None)
        partition = self.partitions.pop(key, None)
        self.flushed_by_time.pop(key, None)
        if partition is not None:
            self._follow(partition, NO_LEADER, False)
            partition.remove()

    def _remove(self, key: PartitionKey) -> None:
        self._let_go(key)
        self._offline.pop(key, None)
        if key in self.broker.logs.logs:
            self._delete_log(key)

    def _delete_log(self, key: PartitionKey) -> None:
        try:
            self.broker.logs.delete(*key)
        except (KafkaError, OSError) as error:
            logger.error("%s-%d: the log cannot be deleted: %s", *key, error)
        self.give_back()

    def give_back(self) -> None:
        """Free folders and memory of deleted logs and segments, a piece in each pass of the loop."""
        if not self._is_giving_back:
            self._is_giving_back = True
            asyncio.get_running_loop().call_soon(self._give_back)

    def _give_back(self) -> None:
        try:
            self._is_giving_back = self.broker.logs.give_back(FREED_PER_TURN)
        except KafkaError as error:
            logger.error("%s", error)
        if self._is_giving_back:
            asyncio.get_running_loop().call_soon(self._give_back)

    def _remove_strays(self) -> None:
        """Delete the logs of partitions that were removed while this node was down."""
        for key in self.broker.logs.logs.keys() - self.partitions.keys() - self._offline.keys():
            logger.info("%s-%d: no longer has a replica on this node; its log is deleted", *key)
            self._delete_log(key)

    def _follow(self, partition: Partition, leader: int, is_new_epoch: bool) -> None:
        """Fetch the partition from ``leader`` only; from no node for ``NO_LEADER``."""
        key = (partition.topic, partition.index)
        followed = self._following.pop(key, NO_LEADER)
        if followed not in (leader, NO_LEADER):
            fetcher = self.fetchers[followed]
            fetcher.remove(key)
            if not fetcher.partitions:
                del self.fetchers[followed]
                task = asyncio.get_running_loop().create_task(fetcher.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        if leader == NO_LEADER:
            return
        self._following[key] = leader
        if leader in self.fetchers:
            fetcher = self.fetchers[leader]
        else:
            fetcher = self.fetchers[leader] = ReplicaFetcher(self, leader)
            if self._is_running:
                fetcher.start()
        if is_new_epoch or followed != leader:
            fetcher.add(partition)

    def log_start_moved(self, partition: Partition) -> None:
        """Announce a log start that retention has moved."""
        key = (partition.topic, partition.index)
        if key in self._following:
            self.fetchers[self._following[key]].touch(key)
        partition.wake()

    def reconfigure(self, topics: Iterable[str] | None = None) -> None:
        """Apply the changed configurations of ``topics``, or of all topics."""
        names = None if topics is None else set(topics)
        configs = {}
        for key, partition in self.partitions.items():
            topic = key[0]
            if names is not None and topic not in names:
                continue
            if topic not in configs:
                configs[topic] = self.broker.log_config(topic)
            partition.log.config = configs[topic]
            self._configured(key, partition)
            # The configuration may change what readers receive.
            partition.wake()

    # Appending

    async def append(
        self,
        records_by_partition: Mapping[PartitionKey, Buffer],
        *,
        acks: int,
        timeout_ms: int,
        origin: Origin = "client",
        guards: Mapping[PartitionKey, VerificationGuard] | None = None,
    ) -> Outcomes:
        """Append batches to partitions that this node leads, and wait for acknowledgement according to ``acks``.

        With -1 a batch is acknowledged when it is committed. After ``timeout_ms`` its outcome is
        ``RequestTimedOutError``, and the batch may be committed later. If the topic requires it (flush.messages), a
        batch is on disk before it is acknowledged with 1 or -1. Each partition has its own outcome, and an error of one
        does not affect the others. Without a reason to wait, the call does not yield to the loop. ``guards`` are those
        of verified transactions (``verify``).

        Raises:
            InvalidRequiredAcksError: ``acks`` is none of -1, 0 and 1.
        """
        if acks not in (-1, 0, 1):
            raise InvalidRequiredAcksError(f"acks is {acks}: it must be -1 (all in-sync replicas), 0 or 1.")
        outcomes = Outcomes()
        waiting: _Acknowledgements | None = None
        turn_ends = self.now() + LONGEST_TURN if len(records_by_partition) > 1 else None
        try:
            for key, records in records_by_partition.items():
                try:
                    partition = self.leader(*key)
                    guard = None if guards is None else guards.get(key)
                    outcomes[key] = info = partition.append(records, acks=acks, origin=origin, guard=guard)
                    if acks:
                        waiting = waiting or _Acknowledgements(self, acks, outcomes)
                        waiting.expect(key, partition, info)
                except KafkaError as error:
                    outcomes[key] = error
                except Exception:
                    logger.exception("%s-%d: append failed", *key)
                    outcomes[key] = UnknownServerError()
                if turn_ends is not None and self.now() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = self.now() + LONGEST_TURN
            if waiting is not None:
                await waiting.wait(timeout_ms)
        finally:
            if waiting is not None:
                waiting.close()
        return outcomes


class _Acknowledgements:
    """The batches that a request waits for. A partition is watched from its append on, so no change is missed."""

    def __init__(self, manager: ReplicaManager, acks: int, outcomes: Outcomes) -> None:
        self._manager = manager
        self._acks = acks
        self._outcomes = outcomes
        self._watchers: dict[PartitionKey, tuple[Partition, Watcher, AppendInfo]] = {}
        self._done: asyncio.Future[None] | None = None

    def expect(self, key: PartitionKey, partition: Partition, info: AppendInfo) -> None:
        """Watch ``partition`` until its batch is acknowledged or has failed, unless that is the case already."""
        if self._is_decided(key, partition, info):
            return

        def moved() -> None:
            if self._is_decided(key, partition, info):
                partition.remove_watcher(moved)
                del self._watchers[key]
                if not self._watchers:
                    self._finish()

        self._watchers[key] = partition, moved, info
        partition.add_watcher(moved)

    def _is_decided(self, key: PartitionKey, partition: Partition, info: AppendInfo) -> bool:
        """Return whether the batch is acknowledged or has failed; a failure is recorded as its outcome."""
        end_offset = info.last_offset + 1
        try:
            if partition.is_removed:
                # Raises for a deleted topic. A replica that exists here now does not contain the batch.
                self._manager.partition(*key)
            return partition.replicated(end_offset) if self._acks == -1 else partition.durable(end_offset)
        except KafkaError as error:
            self._fail(key, info, error)
            return True

    def _fail(self, key: PartitionKey, info: AppendInfo, error: KafkaError) -> None:
        self._outcomes[key] = error
        if not isinstance(error, KafkaStorageError):
            # Kafka flushes within the append, so a failed flush counts as not written.
            self._outcomes.unacknowledged[key] = info

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def wait(self, timeout_ms: int) -> None:
        """Wait for all expected batches; those that take longer than ``timeout_ms`` fail."""
        if not self._watchers:
            return
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        timer = loop.call_later(max(timeout_ms, 0) / 1000, self._finish)
        try:
            await self._done
        finally:
            timer.cancel()
        for key, (_, _, info) in self._watchers.items():
            self._fail(key, info, RequestTimedOutError())

    def close(self) -> None:
        """Stop watching."""
        for partition, watcher, _ in self._watchers.values():
            partition.remove_watcher(watcher)
        self._watchers.clear()
