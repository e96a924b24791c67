"""``SinkCluster`` on a real cluster: one ``Admin``, and one transactional ``Producer`` once something is written.

Both stay connected from one batch to the next: new connections would take longer than the requests of a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from aioproducer.admin import Admin, TransactionVersion
from aioproducer.consumer.partition_log import LARGEST_BATCH, fetch_committed, fetch_of_producer, find_marker
from aioproducer.core.transactions.manager import NEWER_GENERATION, TRANSACTION_FEATURE
from aioproducer.core.transactions.states import READY
from aioproducer.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
)
from aioproducer.errors import BrokerError, KafkaTimeoutError
from aioproducer.producer import Producer
from aioproducer.protocol.messages import ApiVersionsRequest
from aioproducer.record import TopicPartition
from aioproducer.spark import halting
from aioproducer.spark.transactional.cluster import OpenTransaction, Row, Verdict
from aioproducer.spark.transactional.decisions import Handle, Identity, RowRange, TopicRecord
from aioproducer.spark.transactional.rules import ExactlyOnceError, committer_id, task_pattern
from aioproducer.spark.transactional.table import DecisionTable

if TYPE_CHECKING:
    from aioproducer._client.transactions import Transactions
    from aioproducer.transport.base import Connector

COMMITTER_TIMEOUT_MS: Final = 60_000
"""The time-out of the committer's transactions; ``Admin.fence_producers`` sets the same."""

# Another sink's open transaction in the decision topic ends within its time-out, at the coordinator's next look, which
# comes every 10 s (transaction.abort.timed.out.transaction.cleanup.interval.ms).
HIDDEN_FOR: Final = 75.0
# How long the marker of an ended transaction may take, in seconds, beside the search in the log; also how long the high
# watermark of a new leader may stay below rows that an earlier leader has returned.
MARKER_WITHIN: Final = 30.0
# A piece of copied rows is one transaction of the committer, which must end within COMMITTER_TIMEOUT_MS: its size in
# bytes before compression, and how long it is read on after its first row, and then written, in seconds. It is written
# in steps, each of which is acknowledged before the next: brokers may be slow, or a quota may hold the rows back.
PIECE_BYTES: Final = 32 << 20
PIECE_SECONDS: Final = 10.0
STEP_BYTES: Final = 1 << 20
_ROW_OVERHEAD: Final = 16
# Requests on their way at the same time.
AT_ONCE: Final = 50
CLOSE_WITHIN: Final = 5.0
_LOOK_EVERY: Final = 0.01
_LONGEST_LOOK: Final = 1.0

# What EndTxn answers if the transaction has ended in another way, or belongs to a later producer.
_ENDED: Final = frozenset((INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING))

# Keys of the user's configuration that are about rows, not about decisions and copies.
_OF_ROWS: Final = (
    "acks",
    "batch.size",
    "enable.idempotence",
    "interceptor.classes",
    "linger.ms",
    "partitioner.class",
    "transaction.timeout.ms",
    "transactional.id",
)


# A coordinator answers CONCURRENT_TRANSACTIONS while it writes markers, for some milliseconds.
_BACKOFF: Final = {"retry.backoff.ms": "5", "retry.backoff.max.ms": "1000"}


class KafkaSinkCluster:
    """The calls for one sink; an async context manager.

    Args:
        config: the producer's configuration, in Kafka's dotted names.
        timeout: limit of each call in seconds, retries included.
        transport: as ``Producer(transport=...)``.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        sink: str,
        decision_topic: str,
        timeout: float,
        *,
        transport: str | Connector = "tcp",
    ) -> None:
        self.sink = sink
        self._config = {**_BACKOFF, **{name: value for name, value in config.items() if name not in _OF_ROWS}}
        self._decisions = decision_topic
        self.timeout = timeout
        self._committer = committer_id(sink)
        self._transport = transport
        self._admin = Admin.from_config(self._config, timeout=timeout, transport=transport)
        self._version: TransactionVersion = 1
        self._identity = Identity(-1, -1)
        self._producer: Producer | None = None
        self._resumed = False
        """Whether the producer has the committer's identity."""
        self._in_transaction = False
        self._used = False

    @property
    def version(self) -> TransactionVersion:
        return self._version

    @property
    def admin(self) -> Admin:
        return self._admin

    # Life

    async def start(self) -> None:
        await self._admin.start()

    async def close(self) -> None:
        try:
            await self._close_producer()
        finally:
            await self._admin.close()

    async def _close_producer(self) -> None:
        """An open transaction is aborted: it was not to be committed."""
        producer, self._producer = self._producer, None
        self._resumed = self._in_transaction = self._used = False
        if producer is not None:
            await producer.close(CLOSE_WITHIN)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def find_version(self) -> None:
        """Ask for the generation of the transaction protocol; a producer of the other generation is replaced."""
        response = await self._admin.client.request(
            ApiVersionsRequest(client_software_name="aioproducer", client_software_version="1"), timeout=self.timeout
        )
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        version: TransactionVersion = 2 if levels.get(TRANSACTION_FEATURE, 0) >= NEWER_GENERATION else 1
        if version != self._version:
            # It learns of an upgrade with its next connection only.
            await self._close_producer()
        self._version = version

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def reached(self, point: str) -> None:
        await halting.reached(point)

    # The decision topic

    async def take_over(self) -> None:
        await self._drop_failed_producer()
        await self.find_version()
        (found,) = (await self._admin.fence_producers([self._committer])).values()
        self._set_identity(Identity(found.producer_id, found.producer_epoch))

    async def continue_as(self, identity: Identity) -> None:
        await self._drop_failed_producer()
        await self.find_version()
        self._set_identity(identity)

    async def _drop_failed_producer(self) -> None:
        """Close a producer that cannot resume; before a later identity exists, whose transaction this could abort."""
        producer = self._producer
        if producer is not None and producer._transactional_calls().manager.state is not READY:
            await self._close_producer()

    def _set_identity(self, identity: Identity) -> None:
        """Set the identity that the producer resumes with before its next transaction."""
        self._identity = identity
        self._resumed = self._used = False

    async def high_watermark(self) -> int:
        return (await self._admin.list_offsets(self._decisions, {0: "latest"}))[0]

    async def read_up_to(self, table: DecisionTable, stop: int) -> None:
        place = TopicPartition(self._decisions, 0)
        if not table.position:
            table.position = (await self._admin.list_offsets(self._decisions, {0: "earliest"}))[0]
        deadline = time.monotonic() + HIDDEN_FOR
        look = _LOOK_EVERY
        while table.position < stop:
            position = table.position
            fetched = await fetch_committed(self._admin, place, position)
            for record in fetched.records:
                if position <= record.offset < stop:
                    table.apply(record.offset, record.key, record.value)
            if fetched.next_offset > position:
                table.position = min(fetched.next_offset, stop)
                deadline, look = time.monotonic() + HIDDEN_FOR, _LOOK_EVERY
                continue
            if fetched.last_stable_offset >= stop:
                # Compaction has removed what was left.
                table.position = stop
                return
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(
                    f"The decision topic {self._decisions} could be read up to offset {table.position} only, and not "
                    f"to {stop}, for {HIDDEN_FOR:.0f} s: a transaction of another sink is open there. See 'aioproducer "
                    f"transactions describe --partition {self._decisions}:0'"
                )
            await asyncio.sleep(look)
            look = min(2 * look, _LONGEST_LOOK)

    async def _calls(self) -> Transactions:
        """The transactions of the committer's producer, in an epoch that was not used."""
        if self._producer is None:
            config = {
                **self._config,
                "acks": "all",
                "linger.ms": "0",
                "transactional.id": self._committer,
                "transaction.timeout.ms": str(COMMITTER_TIMEOUT_MS),
            }
            producer = Producer.from_config(config, transport=self._transport)
            await producer.start()
            self._producer = producer
        calls = self._producer._transactional_calls()
        if not self._resumed:
            await calls.resume(*self._identity)
            self._resumed = True
        elif self._used and calls.manager.version < NEWER_GENERATION:
            await calls.new_epoch()
        self._used = False
        return calls

    async def _begun(self) -> Producer:
        if not self._in_transaction:
            await (await self._calls()).begin()
            self._in_transaction = True
        assert self._producer is not None
        return self._producer

    async def append(self, records: Sequence[TopicRecord]) -> int:
        producer = await self._begun()
        sent = [producer.send(self._decisions, record.value, record.key, partition=0) for record in records]
        with producer.hurrying():
            offsets = [(await each).offset for each in sent]
        # The broker has forgotten the offset of an old duplicate.
        return max(-1 if each is None else each for each in offsets)

    async def append_rows(self, where: RowRange, rows: Sequence[Row]) -> int:
        producer = await self._begun()
        deadline = time.monotonic() + PIECE_SECONDS
        appended = 0
        while appended < len(rows) and not (appended and time.monotonic() > deadline):
            size = 0
            while appended < len(rows) and size < STEP_BYTES:
                row = rows[appended]
                producer.send(
                    where.topic,
                    row.value,
                    row.key,
                    partition=where.partition,
                    timestamp_ms=row.timestamp_ms,
                    headers=row.headers,
                )
                await producer.drain()
                appended += 1
                size += _size(row)
            await producer.flush()
        return appended

    async def commit(self) -> None:
        assert self._producer is not None
        await self._producer.commit_transaction()
        self._in_transaction, self._used = False, True
        self._identity = Identity(*self._producer._transactional_calls().manager.producer_identity)

    async def identity(self) -> Identity:
        if self._resumed:
            calls = await self._calls()
            self._identity = Identity(*calls.manager.producer_identity)
        return self._identity

    async def is_committer(self, identity: Identity) -> bool:
        deadline = time.monotonic() + self.timeout
        pause = _LOOK_EVERY
        while True:
            (found,) = await self._admin.describe_transactions([self._committer])
            # EndTxn at the last epoch returns the next producer id before the coordinator has written the markers, and
            # this is the committer's only afterwards.
            is_ending = found.state.startswith("Prepare")
            if not is_ending or (found.producer_id, found.producer_epoch) == identity:
                return (found.producer_id, found.producer_epoch) == identity
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(
                    f"The last transaction of {self._committer} has not ended within {self.timeout:g} s. See "
                    f"'aioproducer transactions describe {self._committer}'"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)

    async def abort_committer(self, identity: Identity) -> bool:
        return await self._end(self._committer, identity, False, NEWER_GENERATION)

    # Transactions of tasks

    async def describe(self, handles: Sequence[Handle]) -> list[OpenTransaction | None]:
        found = await self._describe([each.transactional_id for each in handles])
        return [found.get(each.transactional_id) for each in handles]

    async def _describe(self, transactional_ids: Sequence[str]) -> dict[str, OpenTransaction]:
        if not transactional_ids:
            return {}
        now = self.now_ms()
        return {
            each.transactional_id: OpenTransaction(
                each.transactional_id,
                Identity(each.producer_id, each.producer_epoch),
                0 if each.start_time_ms is None else now - each.start_time_ms,
                each.timeout_ms,
            )
            for each in await self._admin.describe_transactions(transactional_ids)
            if each.state == "Ongoing"
        }

    async def end(self, handles: Sequence[Handle], commit: bool) -> list[bool]:
        if commit and halting.halts_at("half-ended"):
            half = len(handles) // 2
            first = await self._end_all(handles[:half], commit)
            await halting.reached("half-ended")
            return [*first, *await self._end_all(handles[half:], commit)]
        return await self._end_all(handles, commit)

    async def _end_all(self, handles: Sequence[Handle], commit: bool) -> list[bool]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def end(handle: Handle) -> bool:
            async with limit:
                return await self._end(handle.transactional_id, handle.identity, commit, handle.version)

        # None goes on behind one that has failed.
        ended = await asyncio.gather(*map(end, handles), return_exceptions=True)
        answers: list[bool] = []
        for each in ended:
            if isinstance(each, BaseException):
                raise each
            answers.append(each)
        return answers

    async def _end(self, transactional_id: str, identity: Identity, commit: bool, version: int) -> bool:
        try:
            await self._admin.end_transaction(
                transactional_id, *identity, commit=commit, transaction_version=2 if version >= 2 else 1
            )
        except BrokerError as error:
            if error.code not in _ENDED:
                raise
            return False
        return True

    async def list_open(self) -> list[OpenTransaction]:
        found = await self._admin.list_transactions(states=["Ongoing"], pattern=task_pattern(self.sink))
        return list((await self._describe([each.transactional_id for each in found])).values())

    async def abort_open(self, found: Sequence[OpenTransaction]) -> None:
        handles = [Handle(each.transactional_id, *each.identity, NEWER_GENERATION, 0, ()) for each in found]
        await self._end_all(handles, False)

    async def fence_open(self, found: Sequence[OpenTransaction]) -> None:
        await self._admin.fence_producers([each.transactional_id for each in found])

    # The log

    async def verdict(self, handle: Handle, where: RowRange) -> Verdict:
        await self._check_topic(where)
        place = TopicPartition(where.topic, where.partition)
        marker = await find_marker(self._admin, place, where.last_offset, handle.producer_id, within=MARKER_WITHIN)
        if marker is None:
            return Verdict.UNKNOWN
        return Verdict.COMMITTED if marker.committed else Verdict.ABORTED

    async def _check_topic(self, where: RowRange) -> None:
        (described,) = await self._admin.describe_topics([where.topic])
        found = "" if described.topic_id is None else described.topic_id.hex()
        if where.topic_id and found != where.topic_id:
            raise ExactlyOnceError(
                f"topic {where.topic!r} was deleted and created again after a batch was decided: rows of the batch are "
                "lost. After 'aioproducer spark-sink forget --key' the query writes the whole batch again"
            )

    async def rows_of(self, handle: Handle, where: RowRange, after: int) -> list[Row]:
        deadline = time.monotonic() + PIECE_SECONDS
        place = TopicPartition(where.topic, where.partition)
        offset = after + 1
        size = 0
        rows: list[Row] = []
        give_up_at: float | None = None
        pause = _LOOK_EVERY
        # Rows of other producers may lie between: the first row is searched up to the end of the range.
        while offset <= where.last_offset and not (rows and time.monotonic() > deadline):
            fetched = await fetch_of_producer(self._admin, place, offset, handle.producer_id, committed=False)
            if fetched.next_offset == offset:
                if fetched.high_watermark > where.last_offset:
                    break
                # A new leader has the rows, but returns none of them before its high watermark includes them.
                if give_up_at is None:
                    give_up_at, pause = time.monotonic() + MARKER_WITHIN, _LOOK_EVERY
                if time.monotonic() >= give_up_at:
                    raise KafkaTimeoutError(
                        f"{where.topic}-{where.partition}: the high watermark has stayed at "
                        f"{fetched.high_watermark} for {MARKER_WITHIN:.0f} s, and the rows of transaction "
                        f"{handle.transactional_id!r} reach up to offset {where.last_offset}. Start the query again "
                        "when the partition's leader and its in-sync replicas are back"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_LOOK)
                continue
            give_up_at = None
            for batch in fetched.batches:
                if batch.producer_epoch != handle.producer_epoch:
                    continue
                for each in batch.records(LARGEST_BATCH):
                    if after < each.offset <= where.last_offset:
                        rows.append(Row(each.offset, each.key, each.value, each.headers, each.timestamp))
                        size += _size(rows[-1])
                        if size >= PIECE_BYTES:
                            return rows
            offset = fetched.next_offset
        return rows


def _size(row: Row) -> int:
    """Return the bytes of a row, uncompressed, and about those that its batch adds."""
    headers = sum(len(name) + len(value or b"") + _ROW_OVERHEAD for name, value in row.headers)
    return len(row.key or b"") + len(row.value or b"") + headers + _ROW_OVERHEAD
