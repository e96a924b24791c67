"""All replicas of one node: who leads, who follows whom, and writing with acknowledgements (Kafka's ReplicaManager)."""

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
"""For how many seconds the loop is held by many small steps before others get a turn."""

FREED_PER_TURN = 1024 * 1024
"""How many bytes of deleted logs in memory are given back before others get a turn."""

LOGS_OPENED_AT_ONCE = 8
"""How many new logs an event of the controller opens; of more, the others follow in the next turns of the loop."""


class Outcomes(dict[PartitionKey, "AppendInfo | KafkaError"]):
    """What became of each partition's batch."""

    def __init__(self) -> None:
        super().__init__()
        self.unacknowledged: dict[PartitionKey, AppendInfo] = {}
        """Where those batches are whose outcome is an error although they were written."""


class ReplicaManager:
    """The partitions that this node has replicas of.

    ``apply`` follows the controller and may be called before ``start``; what works in the background does so from
    ``start`` to ``close``.
    """

    def __init__(self, broker: ReplicaHost) -> None:
        self.broker = broker
        self.partitions: dict[PartitionKey, Partition] = {}
        self.fetchers: dict[int, ReplicaFetcher] = {}
        """By the node id of the leader."""
        self._unopened: dict[PartitionKey, PartitionState] = {}
        """New partitions whose logs are opened soon, or when somebody asks for them."""
        self._opening: asyncio.Handle | None = None
        self._is_giving_back = False
        self._offline: dict[PartitionKey, KafkaError] = {}
        self._following: dict[PartitionKey, int] = {}
        self._flushing: dict[Partition, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.flushed_by_time: dict[PartitionKey, Partition] = {}
        """The partitions of topics with flush.ms."""
        self._upkeep = ReplicaUpkeep(self)
        self.cleaner = LogCleaner(self)
        self._is_running = False
        self._is_closed = False

    def start(self) -> None:
        """Begin what works in the background: fetching from leaders, shrinking of ISRs, retention, checkpoints."""
        self._is_running = True
        self._remove_strays()
        self._upkeep.start()
        self.cleaner.start()
        for fetcher in self.fetchers.values():
            fetcher.start()

    async def close(self) -> None:
        """Stop everything in the background and wake whoever waits. The logs stay open: they are the broker's."""
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
        """What ``LogManager.checkpoint`` and ``LogManager.close`` write down."""
        return {key: partition.high_watermark for key, partition in self.partitions.items()}

    def partition(self, topic: str, index: int) -> Partition:
        """The replica of a partition on this node.

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
            f"Partition {topic}-{index} is not on broker {self.broker.node_id}: it was moved, or is on its way here."
        )

    def leader(self, topic: str, index: int, current_leader_epoch: int = -1) -> Partition:
        """The partition, which this node leads.

        Raises:
            FencedLeaderEpochError, UnknownLeaderEpochError: ``current_leader_epoch`` is not -1 and another one.
            KafkaError: as ``partition``; ``NotLeaderOrFollowerError`` also where this node follows.
        """
        partition = self.partition(topic, index)
        partition.check_leader_epoch(current_leader_epoch)
        if not partition.is_leader:
            raise NotLeaderOrFollowerError(
                f"Leader not local for partition {topic}-{index} on broker {self.broker.node_id}"
            )
        return partition

    # What a Partition asks of its node.

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
        """Bring a log to disk until it needs it no more; what is appended meanwhile goes along with the next turn."""
        failure: KafkaError | None = None
        log = partition.log
        try:
            while not partition.is_removed and ((is_due := log.flush_due) or log.rolled_segments_unflushed):
                try:
                    await self.flush_log(partition, None if is_due else log.active_base_offset)
                except KafkaError as error:
                    logger.error("%r: cannot be brought to disk: %s", partition, error)
                    failure = error if is_due else None
                    break
                if is_due:
                    partition.flushed()
        finally:
            # Before anybody is woken: the next append is to try again.
            del self._flushing[partition]
        if failure is not None:
            partition.flush_failed(failure)

    async def flush_log(self, partition: Partition, up_to: int | None = None) -> None:
        """Bring what is in a partition's log below the offset ``up_to``, or all of it, to disk, in another thread.

        Raises:
            KafkaStorageError: that did not work.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(None, partition.log.flush, up_to)
        except OSError as error:
            raise KafkaStorageError(f"{partition.topic}-{partition.index}: {error}") from error

    # What the controller says.

    def apply(self, changed: Iterable[PartitionState], removed: Iterable[PartitionState]) -> None:
        """Become leader or follower of partitions as the controller decided, or let go of them.

        A partition's log is created when it comes here and deleted when it was removed, or moved elsewhere. Of many new
        logs some are opened later; who asks for such a partition finds it all the same.
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
        """Whether a log is to be made that may be left for later, as those of coordinators may not."""
        key = (state.topic, state.index)
        return (
            self.node_id in state.replicas
            and key not in self.partitions
            and key not in self.broker.logs.logs
            and state.topic not in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
        )

    def _open_some(self) -> None:
        """Open logs for a while, and go on in the next turn."""
        self._opening = None
        ends = self.now() + LONGEST_TURN
        while self._unopened and self.now() < ends:
            self._open_now(next(iter(self._unopened)))
        if self._unopened:
            self._opening = asyncio.get_running_loop().call_soon(self._open_some)

    def _open_now(self, key: PartitionKey) -> None:
        self._apply(self._unopened.pop(key))

    def _topic_id(self, key: PartitionKey) -> bytes | None:
        """Which topic of that name this node has a replica of."""
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
            # The topic was deleted and created again, perhaps while this node was away, or the replica is elsewhere.
            self._remove(key)
        if self.node_id not in state.replicas:
            return
        try:
            partition = self.partitions.get(key) or self._open(state)
            is_new_epoch = partition.apply(state)
            leader = partition.state.leader
            self._follow(partition, NO_LEADER if leader == self.node_id else leader, is_new_epoch)
        except (KafkaError, OSError) as error:
            # The others of the event are to be followed all the same. The next event tries again.
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
        """Have folders and memory of deleted logs and segments freed, a piece in each turn of the loop."""
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
        """Delete the logs of partitions that went away while this node was down."""
        for key in self.broker.logs.logs.keys() - self.partitions.keys() - self._offline.keys():
            logger.info("%s-%d: is not on this node any more", *key)
            self._delete_log(key)

    def _follow(self, partition: Partition, leader: int, is_new_epoch: bool) -> None:
        """Have the partition fetched from ``leader`` and nobody else; from nobody for ``NO_LEADER``."""
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
        """Retention has moved a partition's log start."""
        key = (partition.topic, partition.index)
        if key in self._following:
            self.fetchers[self._following[key]].touch(key)
        partition.wake()

    def reconfigure(self, topics: Iterable[str] | None = None) -> None:
        """Take over changed configurations of ``topics``, or of all of them."""
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
            # What a reader gets may depend on it.
            partition.wake()

    # Writing.

    async def append(
        self,
        records_by_partition: Mapping[PartitionKey, Buffer],
        *,
        acks: int,
        timeout_ms: int,
        origin: Origin = "client",
        guards: Mapping[PartitionKey, VerificationGuard] | None = None,
    ) -> Outcomes:
        """Write batches to partitions led here, and wait until they are acknowledged as ``acks`` says.

        With -1 a partition's outcome is there when its batch is committed, at the latest after ``timeout_ms``: then
        the outcome is ``RequestTimedOutError`` and the batch may be committed later. A topic that wants so
        (flush.messages) is on disk before it is acknowledged with 1 or -1. Each partition has its own outcome; an error
        of one stops none of the others. Where nothing has to be waited for, nothing is. ``guards`` are those of the
        transactions that were verified (``verify``).

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
    """What a request waits for. Each partition is watched from its append on, so that no change is missed."""

    def __init__(self, manager: ReplicaManager, acks: int, outcomes: Outcomes) -> None:
        self._manager = manager
        self._acks = acks
        self._outcomes = outcomes
        self._watchers: dict[PartitionKey, tuple[Partition, Watcher, AppendInfo]] = {}
        self._done: asyncio.Future[None] | None = None

    def expect(self, key: PartitionKey, partition: Partition, info: AppendInfo) -> None:
        """Watch ``partition`` until its batch is acknowledged or has failed; not at all where it is so already."""
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
        """Whether the batch is acknowledged, or will never be: then its outcome says so."""
        end_offset = info.last_offset + 1
        try:
            if partition.is_removed:
                # A topic that was deleted is unknown; whatever else is here now, it is not what the batch is in.
                self._manager.partition(*key)
            return partition.replicated(end_offset) if self._acks == -1 else partition.durable(end_offset)
        except KafkaError as error:
            self._fail(key, info, error)
            return True

    def _fail(self, key: PartitionKey, info: AppendInfo, error: KafkaError) -> None:
        self._outcomes[key] = error
        if not isinstance(error, KafkaStorageError):
            # Kafka flushes within the append, so there what could not be flushed was not written.
            self._outcomes.unacknowledged[key] = info

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def wait(self, timeout_ms: int) -> None:
        """Wait for all that is expected; what takes longer than ``timeout_ms`` has timed out."""
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
        """Watch nothing any more."""
        for partition, watcher, _ in self._watchers.values():
            partition.remove_watcher(watcher)
        self._watchers.clear()
