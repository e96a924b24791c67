"""The transaction coordinator in both generations: producer ids, partitions, ends of transactions and their repetition.

No records are written: partitions are added to transactions by AddPartitionsToTxn, as clients (up to version 3) and
brokers (from 4 on) do.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeVar

from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from aioproducer.protocol.messages.transactions import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
)
from tests.interop.differential.scenario import Run, Topic, latest, scenario, versions
from tests.interop.differential.scenarios.groups import coordinator

R = TypeVar("R", bound=Response)

_PASSING = (14, 16, 51)
"""COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR (of a partition that was just created) and CONCURRENT_TRANSACTIONS."""
_NEW, _OLD = 5, 4
"""Versions of EndTxn of the two generations."""


class Producer(NamedTuple):
    """A transactional producer."""

    name: str
    id: int
    epoch: int

    def moved(self, epochs: int) -> Producer:
        """Return the same producer with an older or a newer epoch."""
        return self._replace(epoch=self.epoch + epochs)


async def transaction_coordinator(run: Run) -> None:
    """Wait until transactional ids have a coordinator."""

    async def found() -> bool:
        answer = await run.surely(FindCoordinatorRequest(key_type=1, coordinator_keys=[run.name("x")]))
        if answer.coordinators[0].error_code != 0:
            return False
        # 105 (TRANSACTIONAL_ID_NOT_FOUND) once the coordinator has loaded its partition.
        described = await run.surely(DescribeTransactionsRequest(transactional_ids=[run.name("x")]))
        return described.transaction_states[0].error_code == 105

    await run.eventually(found, "the transaction coordinator")


def init(name: str, producer: Producer | None = None, timeout_ms: int = 60_000) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1 if producer is None else producer.id,
        producer_epoch=-1 if producer is None else producer.epoch,
    )


async def initialized(run: Run, label: str = "id") -> Producer:
    """Return a producer, once the earlier transaction has ended."""
    name = run.name(label)
    answer = await final_response(run, init(name), latest(InitProducerIdRequest))
    assert answer.error_code == 0, answer
    return Producer(name, answer.producer_id, answer.producer_epoch)


async def observe_init(run: Run, label: str, request: InitProducerIdRequest, version: int = 5) -> None:
    """Record the response to InitProducerId, once the coordinator has loaded the id's partition."""
    answer = await final_response(run, request, version)
    run.names.add_producer(answer.producer_id)
    run.observe(label, answer, version)


async def final_response(run: Run, request: Request[R], version: int) -> R:
    """Return the response once no transaction is ending and no partition is loading, which takes a varying time."""
    while True:
        answer = await run.surely(request, version)
        if getattr(answer, "error_code", 0) not in _PASSING:
            return answer
        await asyncio.sleep(0.02)


def add(
    producer: Producer, topic: str, *indexes: int, version: int = 3, verify_only: bool = False
) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))]
    if version < 4:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=producer.name,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=topics,
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


async def begun(run: Run, topic: Topic, end_version: int, label: str = "id") -> Producer:
    """Return a producer with an open transaction of the topic's partition 0."""
    producer = await initialized(run, label)
    version = 5 if end_version == _NEW else 3
    answer = await run.surely(add(producer, topic.name, 0, version=version), version)
    results = answer.results_by_transaction[0].topic_results if version > 3 else answer.results_by_topic_v3_and_below
    assert results[0].results_by_partition[0].partition_error_code == 0, answer
    return producer


def end(producer: Producer, *, commit: bool = True) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
    )


async def observe_end(run: Run, label: str, producer: Producer, version: int, *, commit: bool = True) -> None:
    """Record the final response to EndTxn."""
    run.observe(label, await final_response(run, end(producer, commit=commit), version), version)


async def finished(run: Run, producer: Producer, version: int, *, commit: bool = True) -> None:
    """End a transaction, and wait for its markers."""
    answer = await final_response(run, end(producer, commit=commit), version)
    assert answer.error_code == 0, answer
    await complete(run, producer.name)


async def complete(run: Run, name: str) -> None:
    """Wait until a transactional id has no ending transaction."""

    async def is_complete() -> bool:
        described = await run.surely(DescribeTransactionsRequest(transactional_ids=[name]))
        return not described.transaction_states[0].transaction_state.startswith("Prepare")

    await run.eventually(is_complete, f"the end of {name}")


async def describe(run: Run, label: str, name: str) -> None:
    answer = await run.surely(DescribeTransactionsRequest(transactional_ids=[name]))
    for topic in answer.transaction_states[0].topics:
        # Kafka returns them in no order.
        topic.partitions.sort()
    run.observe(label, answer, latest(DescribeTransactionsRequest))


@scenario()
async def find_transaction_coordinator(run: Run) -> None:
    await transaction_coordinator(run)
    for version in versions(FindCoordinatorRequest, 1):
        request = FindCoordinatorRequest(key_type=1)
        if version < 4:
            request.key = run.name("id")
        else:
            request.coordinator_keys = [run.name("id"), ""]
        await run.ask(f"version {version}", request, version)


@scenario()
async def init_transactional_producer_ids(run: Run) -> None:
    await transaction_coordinator(run)
    for version in versions(InitProducerIdRequest):
        name = run.name(f"v{version}")
        for number in range(3):
            await observe_init(run, f"version {version} number {number}", init(name), version)
    for timeout_ms in (0, -1, 1, 900_000, 900_001, 2**31 - 1):
        await observe_init(run, f"time-out {timeout_ms}", init(run.name("time-out"), timeout_ms=timeout_ms))
    await observe_init(run, "no name", init(""))
    for version in versions(InitProducerIdRequest, 3):
        first = await initialized(run, f"known-{version}")
        await observe_init(run, f"version {version} goes on", init(first.name, first), version)
        await observe_init(run, f"version {version} goes on again", init(first.name, first), version)
        await observe_init(run, f"version {version} with the new epoch", init(first.name, first.moved(1)), version)
        await observe_init(run, f"version {version} too old", init(first.name, first), version)
        await observe_init(run, f"version {version} too new", init(first.name, first.moved(9)), version)
        await observe_init(run, f"version {version} another id", init(first.name, first._replace(id=10**12)), version)
    await observe_init(run, "an id before the first", init(run.name("none"), Producer("", 10**12, 5)))


@scenario()
async def add_partitions_to_transactions(run: Run) -> None:
    topic = await run.create(partitions=2)
    await transaction_coordinator(run)
    for version in versions(AddPartitionsToTxnRequest):
        producer = await initialized(run, f"v{version}")
        labels: list[tuple[str, Producer, str, tuple[int, ...]]] = [
            ("first", producer, topic.name, (0,)),
            ("again", producer, topic.name, (0,)),
            ("both", producer, topic.name, (0, 1)),
            ("none", producer, topic.name, ()),
            ("unknown partition", producer, topic.name, (0, 7)),
            ("unknown topic", producer, run.name("unknown"), (0,)),
            ("old epoch", producer.moved(-1), topic.name, (0,)),
            ("new epoch", producer.moved(1), topic.name, (0,)),
            ("other id", producer._replace(id=10**12), topic.name, (0,)),
            ("other name", producer._replace(name=run.name("other")), topic.name, (0,)),
            ("no name", producer._replace(name=""), topic.name, (0,)),
        ]
        for label, asking, name, indexes in labels:
            await run.ask(f"version {version} {label}", add(asking, name, *indexes, version=version), version)
            if version >= 4:
                request = add(asking, name, *indexes, version=version, verify_only=True)
                await run.ask(f"version {version} verify {label}", request, version)
        await describe(run, f"version {version} described", producer.name)


@scenario()
async def add_offsets_to_transactions(run: Run) -> None:
    await coordinator(run)
    await transaction_coordinator(run)
    for version in versions(AddOffsetsToTxnRequest):
        producer = await initialized(run, f"v{version}")
        for label, asking in (
            ("first", producer),
            ("again", producer),
            ("old epoch", producer.moved(-1)),
            ("other id", producer._replace(id=10**12)),
            ("other name", producer._replace(name=run.name("other"))),
            ("no name", producer._replace(name="")),
        ):
            request = AddOffsetsToTxnRequest(
                transactional_id=asking.name, producer_id=asking.id, producer_epoch=asking.epoch, group_id="g"
            )
            await run.ask(f"version {version} {label}", request, version)


@scenario()
async def end_transactions(run: Run) -> None:
    """Every end of a transaction and its repetition, in every version, and after other events."""
    topic = await run.create()
    await transaction_coordinator(run)
    for version in versions(EndTxnRequest):
        where = f"version {version}"
        kind = _NEW if version == _NEW else _OLD
        for commit in (True, False):
            what = f"{where} {'commit' if commit else 'abort'}"
            producer = await begun(run, topic, kind, f"v{version}-{commit}")
            await run.ask(f"{what} old epoch", end(producer.moved(-1), commit=commit), version)
            await run.ask(f"{what} new epoch", end(producer.moved(1), commit=commit), version)
            await run.ask(f"{what} other id", end(producer._replace(id=10**12), commit=commit), version)
            await run.ask(what, end(producer, commit=commit), version)
            await complete(run, producer.name)
            await describe(run, f"{what} described", producer.name)
            for again in (commit, not commit):
                for epochs in (-1, 0, 1, 2):
                    label = f"{what} then {again} epoch {epochs}"
                    await observe_end(run, label, producer.moved(epochs), version, commit=again)
                    await complete(run, producer.name)
            await describe(run, f"{what} described again", producer.name)
            await run.ask(f"{what} a new producer", init(producer.name))
            await observe_end(run, f"{what} fenced", producer, version, commit=commit)
        unused = await initialized(run, f"v{version}-unused")
        await observe_end(run, f"{where} nothing to commit", unused, version)
        await observe_end(run, f"{where} nothing to abort", unused, version, commit=False)
        await run.ask(f"{where} unknown name", end(Producer(run.name("unknown"), 1, 0)), version)
        await run.ask(f"{where} no name", end(Producer("", 1, 0)), version)


@scenario()
async def end_transactions_in_the_other_version(run: Run) -> None:
    topic = await run.create()
    await transaction_coordinator(run)
    for first, then in ((_NEW, _OLD), (_OLD, _NEW)):
        for commit in (True, False):
            producer = await begun(run, topic, first, f"v{first}-{commit}")
            await finished(run, producer, first, commit=commit)
            await observe_end(run, f"{first} then {then} commit {commit}", producer, then, commit=commit)
            opened = await begun(run, topic, first, f"opened-{first}-{commit}")
            await observe_end(run, f"opened for {first}, ended by {then} commit {commit}", opened, then, commit=commit)


@scenario()
async def transactions_that_the_coordinator_aborts(run: Run) -> None:
    """InitProducerId aborts an open transaction; the later responses to the old producer."""
    topic = await run.create()
    await transaction_coordinator(run)
    for kind in (_NEW, _OLD):
        for known in (True, False):
            producer = await begun(run, topic, kind, f"v{kind}-{known}")
            request = init(producer.name, producer if known else None)
            await run.ask(f"version {kind} known {known} at first", request)
            await complete(run, producer.name)
            await describe(run, f"version {kind} known {known} described", producer.name)
            await observe_end(run, f"version {kind} known {known} commit", producer, kind)
            await observe_end(run, f"version {kind} known {known} abort", producer, kind, commit=False)
            await run.ask(f"version {kind} known {known} then", request)
            await observe_end(run, f"version {kind} known {known} commit after that", producer, kind)


@scenario()
async def list_transactions(run: Run) -> None:
    topic = await run.create()
    await transaction_coordinator(run)
    producer = await begun(run, topic, _NEW, "list-ongoing")
    await initialized(run, "list-empty")
    ours = f".*{run.name('list')}.*"
    for version in versions(ListTransactionsRequest):
        for states in (["Ongoing", "Gone"], ["ongoing"], ["Dead", "PrepareEpochFence"]):
            request = ListTransactionsRequest(state_filters=states, producer_id_filters=[producer.id])
            await run.ask(f"version {version} states {states}", request, version)
    for pattern in (ours, f"{ours}empty", run.name("list"), "(", "[a-"):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        answer = await run.surely(request)
        found = sorted(state.transactional_id for state in answer.transaction_states)
        run.observe(f"pattern {pattern}", {"error_code": answer.error_code, "found": found})
    for duration in (-1, 10**9):
        request = ListTransactionsRequest(duration_filter=duration, producer_id_filters=[producer.id])
        await run.ask(f"duration {duration}", request)
    await describe(run, "describe", producer.name)
    for label, name in (("an unknown id", run.name("none")), ("no id", "")):
        unknown = await run.surely(DescribeTransactionsRequest(transactional_ids=[name]))
        run.observe(f"describe {label}", {"error_code": unknown.transaction_states[0].error_code})


@scenario()
async def write_transaction_markers(run: Run) -> None:
    topic = await run.create()
    for version in versions(WriteTxnMarkersRequest):
        await run.ask(f"version {version} nothing", WriteTxnMarkersRequest(), version)
        for label, name, index in (("unknown topic", run.name("unknown"), 0), ("unknown partition", topic.name, 3)):
            marker = WritableTxnMarker(
                producer_id=10**12,
                producer_epoch=0,
                transaction_result=True,
                topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[index])],
            )
            await run.ask(f"version {version} {label}", WriteTxnMarkersRequest(markers=[marker]), version)
    assert latest(WriteTxnMarkersRequest) == 2
