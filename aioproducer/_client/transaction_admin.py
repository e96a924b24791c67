"""The calls of ``Admin`` about transactions: list, describe and end those of other producers (KIP-664)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from aioproducer._client.admin_calls import AdminCalls, check_not_str, named_error, raise_first, run_all
from aioproducer.core.metadata.cluster import NO_LEADER
from aioproducer.core.transactions.requests import CoordinatorType, end_message, init_producer_id_message
from aioproducer.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REGULAR_EXPRESSION,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_COORDINATOR_FENCED,
    TRANSACTIONAL_ID_NOT_FOUND,
)
from aioproducer.errors import (
    KafkaError,
    LeaderNotAvailableError,
    ProtocolError,
    UnsupportedVersionError,
)
from aioproducer.io.coordinators import find_coordinators
from aioproducer.offsets import numbers_by_topic
from aioproducer.protocol.messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from aioproducer.protocol.messages.transactions import TopicRequest, WritableTxnMarker, WritableTxnMarkerTopic
from aioproducer.record import TopicPartition

T = TypeVar("T")

TransactionVersion: TypeAlias = Literal[1, 2]
"""The generation of the transaction protocol, Kafka's feature ``transaction.version``: 2 is that of KIP-890."""

# The versions of EndTxn in each generation. A repeated request is recognized only in the version of the first one.
_END_TXN_VERSIONS: Mapping[int, int] = {1: 4, 2: 5}
# The time-out of the transaction that a caller may continue with: the default of transaction.timeout.ms.
_FENCED_TIMEOUT_MS = 60_000
_LIST_BY_DURATION = 1
_LIST_BY_PATTERN = 2
_STATES = (
    "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, PrepareEpochFence (and Dead, of an "
    "expired id)"
)


# What codes mean for the caller, where the general text is for a producer.
_READ_THE_LOG = (
    "The log decides: readers of committed records see the records of the transaction only if it was committed."
)
_FENCED = f"a later producer of this id has taken over, or the coordinator has ended the transaction. {_READ_THE_LOG}"
_OF_END: Mapping[int, str] = {
    INVALID_TXN_STATE: f"the transaction has ended in another way, or nothing was written in it. {_READ_THE_LOG}",
    INVALID_PRODUCER_ID_MAPPING: (
        f"the id is unknown, has expired, or belongs to another producer id now. {_READ_THE_LOG}"
    ),
    INVALID_PRODUCER_EPOCH: _FENCED,
    PRODUCER_FENCED: _FENCED,
}
_OF_MARKER: Mapping[int, str] = {
    INVALID_PRODUCER_EPOCH: (
        "the partition knows a later epoch of this producer: describe_producers() returns it, and whether a "
        "transaction is still open"
    ),
    TRANSACTION_COORDINATOR_FENCED: (
        "a later coordinator has written to this partition: take coordinator_epoch from describe_producers()"
    ),
    CLUSTER_AUTHORIZATION_FAILED: "markers may be written only with the permission ClusterAction or Alter on the "
    "cluster",
}
_OF_DESCRIPTION: Mapping[int, str] = {
    TRANSACTIONAL_ID_NOT_FOUND: (
        "the coordinator does not know it: check the spelling; unused ids expire after transactional.id.expiration.ms"
    ),
}


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, its producer id, and the state of its last transaction in Kafka's words, as ``Ongoing``."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int
    """The id of the node that coordinates it."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its last transaction."""

    transactional_id: str
    coordinator: int
    """The id of the node that coordinates it."""
    state: str
    """In Kafka's words, as ``Ongoing``, ``PrepareCommit`` or ``CompleteAbort``."""
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    """The coordinator aborts a transaction that is open for longer, in milliseconds."""
    start_time_ms: int | None
    """When the last transaction began, in milliseconds since 1970; None if there was none."""
    topic_partitions: frozenset[TopicPartition]
    """The partitions of the open transaction; while it ends, those that have no marker yet."""


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer that a partition knows: it was idempotent, or had a transaction, and has not expired."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """The sequence of its last record, -1 if the partition knows none."""
    last_timestamp_ms: int
    """The time of its last batch, in milliseconds since 1970; -1 if the partition knows none."""
    coordinator_epoch: int
    """The epoch of the coordinator that has ended its last transaction here, -1 if there is none."""
    transaction_start_offset: int | None
    """The offset at which its open transaction begins; None if none is open."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


class TransactionAdmin(AdminCalls):
    """The part of ``Admin`` that is about transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] | None = None,
        producer_ids: Iterable[int] | None = None,
        duration_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids of all brokers, sorted; None for a filter lets all pass.

        Args:
            states: states in Kafka's words, as ``["Ongoing"]``.
            producer_ids: producer ids.
            duration_ms: only ids whose last transaction began longer ago, in milliseconds, or that have had none; with
                ``states=["Ongoing"]`` the transactions that have been open for longer (Kafka 3.8).
            pattern: a regular expression that the whole id matches, valid in Python and in RE2. Brokers before Kafka
                4.1 list all ids, and the client selects.

        Raises:
            ValueError: there is no such state, or the pattern is not valid.
            UnsupportedVersionError: the brokers cannot list transactions (before 3.0), or not by duration.
            KafkaTimeoutError: not all brokers answered in time.
            TypeError: ``states`` is a single str.
        """
        check_not_str("states", states)
        request = ListTransactionsRequest(
            state_filters=list(states or ()),
            producer_id_filters=list(producer_ids or ()),
            duration_filter=-1 if duration_ms is None else duration_ms,
            transactional_id_pattern=pattern,
        )
        matches = _matcher(pattern)
        found: dict[int, list[TransactionListing]] = {}

        async def ask(timeout: float) -> list[TransactionListing]:
            brokers = await self._at_brokers(partial(self._list_of, request, found), found, timeout)
            listed = [each for node_id in brokers for each in found[node_id] if matches(each.transactional_id)]
            return sorted(listed, key=lambda each: (each.transactional_id, each.coordinator))

        return await self._retrying(ask)

    async def _list_of(
        self,
        request: ListTransactionsRequest,
        found: dict[int, list[TransactionListing]],
        node_id: int,
        timeout: float,
    ) -> None:
        lowest = 0 if request.duration_filter < 0 else _LIST_BY_DURATION
        ask = partial(self.client.request, node_id=node_id, timeout=timeout)
        if request.transactional_id_pattern is None:
            response = await ask(request, lowest=lowest)
        else:
            try:
                response = await ask(request, lowest=_LIST_BY_PATTERN)
            except UnsupportedVersionError:
                without = ListTransactionsRequest(
                    state_filters=request.state_filters,
                    producer_id_filters=request.producer_id_filters,
                    duration_filter=request.duration_filter,
                )
                response = await ask(without, lowest=lowest)
        if response.error_code == INVALID_REGULAR_EXPRESSION:
            raise ValueError(f"the brokers reject the pattern {request.transactional_id_pattern!r}: see RE2's syntax")
        if response.error_code:
            raise named_error(f"broker {node_id}", response.error_code)
        if response.unknown_state_filters:
            unknown = ", ".join(map(repr, response.unknown_state_filters))
            raise ValueError(f"transactions have no state {unknown}: use {_STATES}")
        found[node_id] = [
            TransactionListing(each.transactional_id, each.producer_id, each.transaction_state, node_id)
            for each in response.transaction_states
        ]

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> list[TransactionDescription]:
        """Return the descriptions of transactional ids, in this order, from their coordinators.

        Raises:
            BrokerError: TRANSACTIONAL_ID_NOT_FOUND, or the client may not describe an id; the text names the id.
            KafkaTimeoutError: not all coordinators answered in time.
            TypeError: ``transactional_ids`` is a single str.
        """
        check_not_str("transactional_ids", transactional_ids)
        wanted = list(transactional_ids)
        found: dict[str, TransactionDescription] = {}

        async def describe(node_id: int, ids: list[str], timeout: float) -> None:
            request = DescribeTransactionsRequest(transactional_ids=ids)
            response = await self.client.request(request, node_id=node_id, timeout=timeout)
            errors = []
            for each in response.transaction_states:
                if each.error_code:
                    errors.append(
                        named_error(f"transactional id {each.transactional_id!r}", each.error_code, _OF_DESCRIPTION)
                    )
                    continue
                start = each.transaction_start_time_ms
                found[each.transactional_id] = TransactionDescription(
                    each.transactional_id,
                    node_id,
                    each.transaction_state,
                    each.producer_id,
                    each.producer_epoch,
                    each.transaction_timeout_ms,
                    start if start >= 0 else None,
                    frozenset(
                        TopicPartition(topic.topic, partition)
                        for topic in each.topics
                        for partition in topic.partitions
                    ),
                )
            raise_first(errors)

        async def ask(timeout: float) -> list[TransactionDescription]:
            missing = [each for each in dict.fromkeys(wanted) if each not in found]
            await self._at_coordinators(missing, describe, timeout)
            return [found[each] for each in wanted]

        return await self._retrying(ask)

    async def describe_producers(
        self, topic_partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
        """Return the producers that each partition knows, from its leader, ordered by producer id.

        Raises:
            NoSuchTopicError: there is no such topic or partition.
            TopicAuthorizationError: the client may not read the topic.
            KafkaTimeoutError: not all leaders answered in time.
        """
        wanted = [TopicPartition(*each) for each in topic_partitions]
        found: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}
        await self._check_topics(wanted)

        async def describe(node_id: int, partitions: list[TopicPartition], timeout: float) -> None:
            topics = numbers_by_topic(partitions).items()
            request = DescribeProducersRequest(
                topics=[TopicRequest(name=name, partition_indexes=of) for name, of in topics]
            )
            response = await self.client.request(request, node_id=node_id, timeout=timeout)
            errors = []
            for of_topic in response.topics:
                for each in of_topic.partitions:
                    where = TopicPartition(of_topic.name, each.partition_index)
                    if each.error_code:
                        errors.append(named_error(str(where), each.error_code, message=each.error_message))
                        continue
                    found[where] = tuple(
                        ProducerDescription(
                            producer.producer_id,
                            producer.producer_epoch,
                            producer.last_sequence,
                            producer.last_timestamp,
                            producer.coordinator_epoch,
                            producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else None,
                        )
                        for producer in sorted(each.active_producers, key=lambda each: each.producer_id)
                    )
            raise_first(errors)

        async def ask(timeout: float) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
            await self._at_leaders([each for each in wanted if each not in found], describe, timeout)
            return {each: found[each] for each in wanted}

        return await self._retrying(ask)

    async def abort_transaction(
        self, topic_partition: tuple[str, int], producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write the marker of an abort into one partition, for a transaction that no coordinator ends any more.

        The last resort for a hanging transaction (KIP-664), whose coordinator has forgotten it. The records of any
        other transaction are aborted in this partition alone, so use ``end_transaction`` or ``fence_producers`` where
        ``describe_transactions`` still shows it. ``describe_producers`` returns the three numbers of an open one
        (-1 for ``coordinator_epoch`` is replaced by 0, as in Kafka's tool).

        Raises:
            BrokerError: the marker was rejected; the text says why.
            NoSuchTopicError: there is no such topic or partition.
            KafkaTimeoutError: the leader did not answer in time; repeat the call.
        """
        where = TopicPartition(*topic_partition)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])],
            coordinator_epoch=max(coordinator_epoch, 0),
        )
        what = f"producer id {producer_id}, epoch {producer_epoch}, in {where}"

        async def write(node_id: int, timeout: float) -> None:
            request = WriteTxnMarkersRequest(markers=[marker])
            response = await self.client.request(request, node_id=node_id, timeout=timeout)
            codes = [
                result.error_code for each in response.markers for topic in each.topics for result in topic.partitions
            ]
            if len(codes) != 1:
                raise ProtocolError(f"broker {node_id} answers one marker with {len(codes)} results")
            if codes[0]:
                raise named_error(what, codes[0], _OF_MARKER)

        await ask_leader(self, where, write)

    async def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        transaction_version: TransactionVersion,
    ) -> ProducerIdentity | None:
        """Commit or abort a transaction that another producer has left open, by its saved producer id and epoch.

        The call may be repeated with the same arguments, also after a commit that has succeeded: a success proves that
        the transaction has this outcome. No error proves the contrary: the codes depend on later events. In the first
        generation epochs are reused: a repeated call ends whatever transaction of this epoch is open by then.

        Args:
            transaction_version: the generation to end the transaction in, 2 from Kafka 4.0 on unless the cluster was
                upgraded and its feature ``transaction.version`` was not. Repeat a call with the same version.

        Returns:
            The producer id and epoch for the next transaction; None in the first generation, where both stay.

        Raises:
            BrokerError: the coordinator rejects the call; the text says why, and what to do.
            UnsupportedVersionError: the coordinator does not know this generation.
            KafkaTimeoutError: there was no answer in time, and the transaction may have ended; repeat the call.
            ConcurrentTransactionsError: markers were still being written when the time was over; repeat the call.
        """
        version = _END_TXN_VERSIONS.get(transaction_version)
        if version is None:
            raise ValueError(f"transaction_version must be 1 or 2, not {transaction_version!r}")
        request = end_message(transactional_id, producer_id, producer_epoch, commit)
        lowest = version if transaction_version >= 2 else 0
        what = f"transactional id {transactional_id!r}, producer id {producer_id}, epoch {producer_epoch}"
        ended: list[ProducerIdentity | None] = []

        async def end(node_id: int, ids: list[str], timeout: float) -> None:
            response = await self.client.request(
                request, node_id=node_id, lowest=lowest, highest=version, timeout=timeout
            )
            if response.error_code:
                raise named_error(what, response.error_code, _OF_END)
            known = response.producer_id >= 0
            ended.append(ProducerIdentity(response.producer_id, response.producer_epoch) if known else None)

        await self._retrying(lambda timeout: self._at_coordinators([transactional_id], end, timeout))
        return ended[0]

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """End every producer of these transactional ids, and return the producer id and epoch that replace its own.

        A transaction that one has left open is aborted; one whose commit has begun is committed first. A producer that
        is running gets ``ProducerFencedError``. An id that does not exist is created.

        Raises:
            BrokerError: a coordinator rejects an id; the text names it. The other ids are fenced.
            KafkaTimeoutError, ConcurrentTransactionsError: not all were fenced in time; repeat the call.
            TypeError: ``transactional_ids`` is a single str.
        """
        check_not_str("transactional_ids", transactional_ids)
        wanted = list(dict.fromkeys(transactional_ids))
        found: dict[str, ProducerIdentity] = {}

        async def fence(node_id: int, ids: list[str], timeout: float) -> None:
            await run_all([fence_one(node_id, each, timeout) for each in ids])

        async def fence_one(node_id: int, transactional_id: str, timeout: float) -> None:
            request = init_producer_id_message(transactional_id, _FENCED_TIMEOUT_MS, -1, -1)
            response = await self.client.request(request, node_id=node_id, timeout=timeout)
            if response.error_code:
                raise named_error(f"transactional id {transactional_id!r}", response.error_code)
            found[transactional_id] = ProducerIdentity(response.producer_id, response.producer_epoch)

        async def ask(timeout: float) -> dict[str, ProducerIdentity]:
            await self._at_coordinators([each for each in wanted if each not in found], fence, timeout)
            return {each: found[each] for each in wanted}

        return await self._retrying(ask)

    # Where to ask

    async def _at_coordinators(
        self, ids: Sequence[str], ask: Callable[[int, list[str], float], Awaitable[None]], timeout: float
    ) -> None:
        """Call ``ask`` with each coordinator and its ids; they are found again for each attempt."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        by_node: dict[int, list[str]] = {}
        found = await find_coordinators(self.client, CoordinatorType.TRANSACTION, ids, timeout)
        for transactional_id, node_id in found.items():
            by_node.setdefault(node_id, []).append(transactional_id)
        left = max(deadline - loop.time(), 0)
        await run_all([ask(node_id, of_node, left) for node_id, of_node in by_node.items()])

    async def _at_leaders(
        self,
        partitions: Sequence[TopicPartition],
        ask: Callable[[int, list[TopicPartition], float], Awaitable[None]],
        timeout: float,
    ) -> None:
        """Call ``ask`` with each leader and its partitions; after an error metadata is renewed for the next attempt."""
        client = self.client
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        by_leader: dict[int, list[TopicPartition]] = {}
        for where in partitions:
            by_leader.setdefault(client.leader(*where), []).append(where)
        leaderless = by_leader.pop(NO_LEADER, [])
        calls = [ask(node_id, of_node, timeout) for node_id, of_node in by_leader.items()]
        try:
            await run_all(calls)
            if leaderless:
                raise LeaderNotAvailableError(f"{leaderless[0]} has no leader at present.")
        except KafkaError as error:
            if error.retriable:
                await client.renew_metadata(max(deadline - loop.time(), 0))
            raise


async def ask_leader(admin: TransactionAdmin, where: TopicPartition, ask: Callable[[int, float], Awaitable[T]]) -> T:
    """Return the result of ``ask(node id, seconds left)`` for the leader of a partition; retriable errors are retried.

    Raises:
        NoSuchTopicError: there is no such topic or partition.
        KafkaError: an error of ``ask`` that is not retriable, or the last one when the time is over.
    """
    results: list[T] = []

    async def ask_once(node_id: int, partitions: list[TopicPartition], timeout: float) -> None:
        results.append(await ask(node_id, timeout))

    await admin._check_partitions(where.topic, [where.partition])
    await admin._retrying(lambda timeout: admin._at_leaders([where], ask_once, timeout))
    return results[-1]


def _matcher(pattern: str | None) -> Callable[[str], object]:
    """
    Raises:
        ValueError: the pattern is not valid.
    """
    if pattern is None:
        return lambda transactional_id: True
    try:
        return re.compile(pattern).fullmatch
    except re.error as error:
        raise ValueError(f"pattern is not a regular expression: {error}: {pattern!r}") from error
