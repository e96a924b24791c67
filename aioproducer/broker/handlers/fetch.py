"""Fetch, versions 4-18: read batches of partitions, and wait for them up to a limit.

* 4: isolation level. 5: log start offset. 7: fetch sessions (KIP-227). 9: the reader's leader epoch (KIP-320).
* 10: zstd; older versions cannot read topics that the broker compresses by it. 11: readers may read from followers.
  12: flexible; divergence of logs is returned here (KIP-595). 13: topics by id (KIP-516).
* 15: the follower's id and epoch (KIP-903). 16: the current leader (KIP-951). 17, 18: fields for controllers.

Batches are sent whole, as stored in the log; unlike Kafka this broker does not cut the last one off. One read of a
partition returns at most ``LONGEST_READ`` bytes (or one batch), whatever the request allows, so that no reader blocks
the loop for long. The reader's next request returns the rest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aioproducer.broker.handlers.error_responses import error_code
from aioproducer.broker.handlers.fetch_session import FIRST_VERSION_WITH_IDS, WantedPartition
from aioproducer.broker.handlers.leaders import LEADER_MOVED, LeaderFinder
from aioproducer.broker.yielding import LoopYielder
from aioproducer.errors import (
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InconsistentTopicIdError,
    InvalidFetchSessionEpochError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from aioproducer.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioproducer.broker.handlers.context import BrokerNode, RequestContext
    from aioproducer.broker.handlers.fetch_moves import Key
    from aioproducer.broker.handlers.fetch_session import FetchContext
    from aioproducer.broker.log import AbortedTransaction as StoredAbort
    from aioproducer.broker.replicas.partition import Partition
    from aioproducer.protocol import Buffer

VERSIONS = range(4, 19)

LONGEST_READ: Final = 2 * 1024 * 1024
"""Bytes read of one partition for one response, which may have many partitions."""

_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
# Errors of a session, as opposed to those of a partition.
_SESSION_ERRORS: Final = frozenset(
    (FetchSessionIdNotFoundError.code, InvalidFetchSessionEpochError.code, FetchSessionTopicIdError.code)
)


@dataclass(slots=True)
class _Reading:
    """How the partitions of one request are read."""

    context: RequestContext
    version: int
    replica_id: int
    replica_epoch: int
    is_read_committed: bool
    max_bytes: int
    min_bytes: int

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0

    @property
    def from_leader_only(self) -> bool:
        return self.is_follower or self.version < 11

    def partition(self, wanted: WantedPartition) -> Partition:
        """Return the replica to read; raises ``KafkaError``."""
        assert wanted.topic is not None
        fault = self.context.error_for(wanted.topic, wanted.request.partition)
        if fault is not None:
            raise fault
        replicas = self.context.broker.replicas
        if self.from_leader_only:
            partition = replicas.leader(wanted.topic, wanted.request.partition, wanted.request.current_leader_epoch)
        else:
            partition = replicas.partition(wanted.topic, wanted.request.partition)
            partition.check_leader_epoch(wanted.request.current_leader_epoch)
        if self.version >= FIRST_VERSION_WITH_IDS and partition.topic_id != wanted.topic_id:
            raise InconsistentTopicIdError("Topic ID in the fetch session did not match the topic ID in the log.")
        return partition

    def end_offset(self, partition: Partition) -> int:
        """Return the end of the part of the log that the reader may see."""
        if self.is_follower:
            return partition.log_end_offset
        return partition.last_stable_offset if self.is_read_committed else partition.high_watermark

    def read(
        self, wanted: WantedPartition, partition: Partition, room: int, *, first: bool, is_repeated: bool
    ) -> _Read:
        """Read one partition for the reader.

        ``room`` is the rest of the response's limit; with ``first`` a batch may exceed all limits (KIP-74). A
        follower's progress is recorded unless ``is_repeated``. Raises ``KafkaError``.
        """
        request = wanted.request
        if self.is_follower:
            self._check_follower(partition, request.current_leader_epoch)
        data = PartitionData(
            partition_index=request.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log_start_offset,
            aborted_transactions=[] if self.is_read_committed and not self.is_follower else None,
            records=b"",
        )
        log_end_offset = partition.log_end_offset
        diverging = partition.diverging(request.last_fetched_epoch, request.fetch_offset)
        if diverging is not None:
            data.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
            data.aborted_transactions = None
            return _Read(wanted, data)
        records, aborted = self._records(partition, request.fetch_offset, min(request.partition_max_bytes, room), first)
        if data.aborted_transactions is not None:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted
            ]
        if self.is_follower and not is_repeated:
            partition.follower_fetched(
                self.replica_id,
                request.fetch_offset,
                request.log_start_offset,
                self.replica_epoch,
                leader_end_offset=log_end_offset,
            )
            # The response includes a high watermark that the follower's own progress has moved.
            data.high_watermark = max(data.high_watermark, partition.high_watermark)
        if self.version < 10 and partition.log.config.compression_type == "zstd":
            return _Read(wanted, _absent(request.partition, UnsupportedCompressionTypeError.code))
        size = sum(map(len, records))
        if size:
            data.records = records
        has_more = request.fetch_offset < self.end_offset(partition)
        # A follower outside the ISR may be refused now and accepted later, so each of its requests counts.
        is_idle = not has_more and not (self.is_follower and self.replica_id not in partition.isr)
        return _Read(wanted, data, size, has_more, is_idle)

    def _check_follower(self, partition: Partition, current_leader_epoch: int) -> None:
        """Raise ``KafkaError`` unless the reader is one of the partition's replicas."""
        if current_leader_epoch == -1 and self.replica_id not in partition.followers:
            raise NotLeaderOrFollowerError(
                f"Replica {self.replica_id} is no replica of {partition.topic}-{partition.index}"
            )
        partition.follower(self.replica_id)

    def _records(
        self, partition: Partition, offset: int, max_bytes: int, first: bool
    ) -> tuple[Sequence[Buffer], Sequence[StoredAbort]]:
        """Return the batches for the reader, and the aborted transactions that some of them may belong to."""
        start, end = partition.log_start_offset, partition.log_end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"Received request for offset {offset} for partition {partition.topic}-{partition.index}, but we only "
                f"have log segments from offset {start} to {end}."
            )
        up_to = self.end_offset(partition)
        if offset >= up_to:
            return (), ()
        if max_bytes < 0:
            # Kafka responds with this error too.
            raise UnknownServerError(f"Invalid max size {max_bytes} for log read")
        limit = min(max_bytes, LONGEST_READ)
        if self.is_read_committed and not self.is_follower:
            return partition.log.read_committed(offset, limit, up_to=up_to, min_one_batch=first)
        return partition.log.read(offset, limit, up_to=up_to, min_one_batch=first), ()


@dataclass(slots=True)
class _Read:
    """The result of reading a partition."""

    wanted: WantedPartition
    data: PartitionData
    size: int = 0
    """Bytes of records."""
    has_more: bool = False
    """Whether there are records at the reader's offset."""
    is_idle: bool = False
    """Whether reading again is useless before the partition changes."""

    @property
    def is_urgent(self) -> bool:
        """Whether the response must be sent at once."""
        return bool(self.data.error_code) or self.data.diverging_epoch.epoch >= 0


async def handle(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Read the partitions of the request and its session, or wait until they have ``min_bytes``.

    Raises:
        UnknownServerError: the isolation level does not exist.
    """
    broker = context.broker
    version = context.version
    fault = context.error_for()
    if fault is not None and fault.code in _SESSION_ERRORS:
        return FetchResponse(error_code=fault.code)
    if request.isolation_level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        # Kafka responds with this error too.
        raise UnknownServerError(f"Unknown isolation level {request.isolation_level}")
    is_new = version >= 15
    max_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
    reading = _Reading(
        context,
        version,
        request.replica_state.replica_id if is_new else request.replica_id,
        request.replica_state.replica_epoch if is_new else -1,
        request.isolation_level == _READ_COMMITTED,
        max_bytes,
        min(request.min_bytes, max_bytes),
    )
    image = broker.image
    try:
        session = broker.requests.fetch_sessions.context(
            version, request, image.topics_by_id, is_follower=reading.is_follower
        )
    except KafkaError as error:
        return FetchResponse(error_code=error_code(error))
    reads = _Reads(reading, session)
    with session.moves.notifying(reads.move):
        # A fault comes from a test, so no partition notifies of it.
        await reads.read_all(session.wanted(all_partitions=fault is not None or context.fault is not None))
        if request.max_wait_ms > 0 and reads.can_get_more and not reads.is_enough:
            await reads.wait(request.max_wait_ms / 1000)
            await reads.fit()
        leaders = LeaderFinder(image)
        results = reads.results()
        if version >= 16:
            for wanted, data in results:
                if data.error_code in LEADER_MOVED and wanted.topic is not None:
                    data.current_leader = leaders.find(wanted.topic, data.partition_index)
        response = session.response(results, reads.idle())
    if not reading.is_follower:
        response.node_endpoints = leaders.endpoints
    return response


def _is_absent(broker: BrokerNode, topic: str, index: int) -> bool:
    state = broker.image.topics.get(topic)
    return state is None or not 0 <= index < len(state.partitions)


def _absent(index: int, code: int) -> PartitionData:
    """Return the response for an unknown partition (Kafka's ``FetchResponse.partitionResponse``)."""
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, aborted_transactions=[], records=b""
    )


def _failed(index: int, error: KafkaError, version: int) -> PartitionData:
    code = error_code(error)
    if code == KafkaStorageError.code and version <= 5:
        # Older readers do not know the newer error.
        code = NotLeaderOrFollowerError.code
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, aborted_transactions=None, records=b""
    )


class _Reads:
    """The results of a request's partitions."""

    def __init__(self, reading: _Reading, session: FetchContext) -> None:
        self._reading = reading
        self._session = session
        self._found: dict[Key, _Read] = {}
        self._absent: dict[Key, tuple[WantedPartition, PartitionData]] = {}
        """Partitions that do not exist: they do not end the wait."""
        self._moved: dict[Key, None] = {}
        """Partitions that have changed since they were read."""
        self._total = 0
        self._is_urgent = False
        self._woken: asyncio.Future[None] | None = None

    def move(self, key: Key) -> None:
        """Record that a partition has changed."""
        self._moved[key] = None
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    @property
    def can_get_more(self) -> bool:
        """Whether there is any partition to wait for."""
        return len(self._session.partitions) > len(self._absent)

    @property
    def is_enough(self) -> bool:
        """Whether the response is sent at once: there are enough bytes, or an error or a divergence."""
        return self._is_urgent or self._total >= self._reading.min_bytes

    async def read_all(self, wanted: list[WantedPartition]) -> None:
        """Read ``wanted`` within the limits of the request."""
        yielder = LoopYielder()
        room = self._reading.max_bytes
        first = True
        for partition in wanted:
            absent = self._absence(partition)
            if absent is not None:
                self._absent[partition.key] = partition, absent
                continue
            found = self._read(partition, room, first=first, is_repeated=False)
            if found.size:
                first = False
                room = max(0, room - found.size)
            await yielder.pause()

    def _absence(self, wanted: WantedPartition) -> PartitionData | None:
        """Return the response for a partition that does not exist; ``None`` if it does."""
        if wanted.topic is None:
            return _absent(wanted.request.partition, UnknownTopicIdError.code)
        if _is_absent(self._reading.context.broker, wanted.topic, wanted.request.partition):
            return _absent(wanted.request.partition, UnknownTopicOrPartitionError.code)
        return None

    def _read(self, wanted: WantedPartition, room: int, *, first: bool, is_repeated: bool) -> _Read:
        key = wanted.key
        try:
            partition = self._reading.partition(wanted)
            if self._session.partitions.get(key) is wanted:
                self._session.moves.watch(key, partition)
            found = self._reading.read(wanted, partition, room, first=first, is_repeated=is_repeated)
        except KafkaError as error:
            found = _Read(wanted, _failed(wanted.request.partition, error, self._reading.version))
        # Changes that the read itself has made are part of its result.
        self._moved.pop(key, None)
        self._absent.pop(key, None)
        before = self._found.get(key)
        self._total += found.size - (before.size if before is not None else 0)
        self._is_urgent = self._is_urgent or found.is_urgent
        self._found[key] = found
        return found

    async def wait(self, timeout: float) -> None:
        """Wait until the partitions have ``min_bytes``, or one of them fails, for at most ``timeout`` seconds.

        Only partitions that have changed, or had more than there was room for, are read again.
        """
        for key, found in self._found.items():
            if found.size or found.has_more:
                self._moved[key] = None
        is_over = False

        def give_up() -> None:
            nonlocal is_over
            is_over = True
            self._wake()

        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout, give_up)
        yielder = LoopYielder()
        try:
            while True:
                while self._moved:
                    key, _ = self._moved.popitem()
                    wanted = self._session.partitions.get(key)
                    if wanted is not None:
                        self._read(wanted, self._reading.max_bytes, first=True, is_repeated=True)
                        if self._is_urgent:
                            return
                        await yielder.pause()
                if is_over or self.is_enough:
                    return
                self._woken = loop.create_future()
                await self._woken
        finally:
            timer.cancel()

    async def fit(self) -> None:
        """Read those partitions again that have changed, or do not fit into the response with the others."""
        yielder = LoopYielder()
        room = self._reading.max_bytes
        first = True
        for found in sorted(self._found.values(), key=lambda found: found.wanted.turn):
            limit = min(room, found.wanted.request.partition_max_bytes)
            if found.wanted.key in self._moved or (not first and found.size > limit):
                found = self._read(found.wanted, room, first=first, is_repeated=True)
            if found.size:
                first = False
                room = max(0, room - found.size)
            await yielder.pause()

    def results(self) -> list[tuple[WantedPartition, PartitionData]]:
        """Return the result of each partition in the order of reading, then those that do not exist."""
        found = sorted(self._found.values(), key=lambda found: found.wanted.turn)
        return [(read.wanted, read.data) for read in found] + list(self._absent.values())

    def idle(self) -> list[Key]:
        """Return the keys of partitions that have nothing to return before they change."""
        return [key for key, found in self._found.items() if found.is_idle and key not in self._moved]
