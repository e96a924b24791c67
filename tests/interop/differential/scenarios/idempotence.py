"""InitProducerId, and Produce by idempotent producers: duplicates, gaps, epochs."""

from __future__ import annotations

from aioproducer.protocol.messages import DeleteRecordsRequest, DescribeProducersRequest, InitProducerIdRequest
from aioproducer.protocol.messages.offsets import DeleteRecordsPartition, DeleteRecordsTopic
from aioproducer.protocol.messages.transactions import TopicRequest
from tests.interop.differential.batches import batch
from tests.interop.differential.scenario import Run, Topic, fetch, partition_data, produce, scenario, versions

_LAST_SEQUENCE = 2**31 - 1


async def _producer(run: Run) -> int:
    """Return a new producer id; a broker that has just started needs a moment for its first ones."""
    found: list[int] = []

    async def given() -> bool:
        answer = await run.surely(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
        found.append(answer.producer_id)
        return answer.error_code == 0

    await run.eventually(given, "a producer id")
    return found[-1]


class _Sender:
    """Appends batches of one record as an idempotent producer does."""

    def __init__(self, run: Run, topic: Topic, producer_id: int) -> None:
        self._run = run
        self._topic = topic
        self.producer_id = producer_id
        self._count = 0

    def batch(self, sequence: int, *, epoch: int = 0, records: int = 1) -> bytes:
        return batch(records, producer_id=self.producer_id, producer_epoch=epoch, base_sequence=sequence)

    async def append(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        records: int = 1,
        version: int = 13,
        topic: Topic | None = None,
        label: str = "",
    ) -> None:
        self._count += 1
        request = produce(topic or self._topic, self.batch(sequence, epoch=epoch, records=records))
        where = f"{self._count:02} sequence {sequence} of epoch {epoch}, {records} records {label}".rstrip()
        await self._run.ask(where, request, version)


async def _log(run: Run, topic: Topic) -> None:
    run.observe("log", partition_data(await run.quietly(fetch(topic))), 18)


@scenario()
async def init_producer_id(run: Run) -> None:
    await _producer(run)
    for version in versions(InitProducerIdRequest):
        await run.ask(f"version {version}", InitProducerIdRequest(transactional_id=None), version)
    for producer_id, epoch in ((-1, 0), (0, -1), (-2, -2), (7, 3), (10**12, 0), (7, 32767)):
        request = InitProducerIdRequest(transactional_id=None, producer_id=producer_id, producer_epoch=epoch)
        for version in (3, 5):
            await run.ask(f"version {version} producer {producer_id} epoch {epoch}", request, version)
    await run.ask("empty transactional id", InitProducerIdRequest(transactional_id=""))
    await run.ask("timeout of no meaning", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-5))


@scenario()
async def duplicates(run: Run) -> None:
    topic = await run.create()
    sender = _Sender(run, topic, await _producer(run))
    for sequence in range(6):
        await sender.append(sequence)
    for sequence in (5, 4, 3, 2, 1, 0):
        await sender.append(sequence, label="again")
    for version in (3, 9, 12):
        await sender.append(5, version=version, label=f"again in version {version}")
    await sender.append(6)
    await sender.append(2, records=3, label="of other shape")
    await sender.append(6, records=2, label="longer")
    await _log(run, topic)


@scenario()
async def sequence_gaps(run: Run) -> None:
    topic = await run.create()
    sender = _Sender(run, topic, await _producer(run))
    await sender.append(0, records=3)
    await sender.append(4)
    await sender.append(2)
    await sender.append(3)
    await sender.append(5, version=3)
    await sender.append(_LAST_SEQUENCE)
    await sender.append(4)
    other = _Sender(run, topic, await _producer(run))
    await other.append(5, label="first of a new producer")
    await other.append(0, label="of it")
    await other.append(6, label="of it")
    await other.append(7, label="of it")
    await _log(run, topic)


@scenario()
async def producer_epochs(run: Run) -> None:
    topic = await run.create()
    sender = _Sender(run, topic, await _producer(run))
    await sender.append(0, epoch=3)
    await sender.append(1, epoch=3)
    await sender.append(2, epoch=4)
    await sender.append(0, epoch=4)
    await sender.append(1, epoch=3)
    for version in (3, 9, 10, 11, 12):
        await sender.append(2, epoch=2, version=version, label=f"version {version}")
    await sender.append(1, epoch=4)
    await sender.append(0, epoch=6)
    await sender.append(0, epoch=6, label="again")
    await sender.append(0, epoch=5)
    await sender.append(7, epoch=32767)
    await sender.append(0, epoch=32767)
    other = await run.create("other")
    await sender.append(0, epoch=1, topic=other, label="elsewhere")
    await _log(run, topic)


@scenario()
async def sequences_wrap_around(run: Run) -> None:
    topic = await run.create()
    sender = _Sender(run, topic, await _producer(run))
    await sender.append(_LAST_SEQUENCE - 1, label="first of a new producer")
    await sender.append(_LAST_SEQUENCE)
    await sender.append(0)
    await sender.append(_LAST_SEQUENCE, label="again")
    await sender.append(1)
    crossing = _Sender(run, topic, await _producer(run))
    await crossing.append(_LAST_SEQUENCE - 1, records=4, label="across the end")
    await crossing.append(1, label="too early")
    await crossing.append(2, label="behind it")
    await crossing.append(_LAST_SEQUENCE - 1, records=4, label="across the end again")
    await _log(run, topic)


@scenario()
async def ids_that_nobody_gave(run: Run) -> None:
    topic = await run.create()
    sender = _Sender(run, topic, 987_654_321)
    await sender.append(0)
    await sender.append(1)
    await sender.append(1)
    await sender.append(3)
    # Two batches of one producer in one request, and a duplicate after a valid one.
    both = sender.batch(2) + sender.batch(3)
    await run.ask("two batches", produce(topic, both))
    await run.ask("two partitions' worth in one", produce(topic, sender.batch(2) + batch()))
    await _log(run, topic)


@scenario()
async def producers_after_delete_records(run: Run) -> None:
    topic = await run.create()
    sender = _Sender(run, topic, await _producer(run))
    for sequence in range(3):
        await sender.append(sequence)
    delete = DeleteRecordsTopic(name=topic.name, partitions=[DeleteRecordsPartition(partition_index=0, offset=3)])
    await run.surely(DeleteRecordsRequest(topics=[delete], timeout_ms=5000))
    await sender.append(1, label="a duplicate that is gone")
    await sender.append(3)
    await sender.append(5)
    await _log(run, topic)


@scenario()
async def describe_producers(run: Run) -> None:
    topic = await run.create()
    sender = _Sender(run, topic, await _producer(run))

    async def describe(where: str, name: str, *indexes: int) -> None:
        request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=list(indexes))])
        await run.ask(where, request)

    await describe("before anything was written", topic.name, 0)
    await sender.append(0, records=3)
    await describe("after a batch", topic.name, 0)
    await sender.append(0, epoch=1)
    await describe("after a batch of another epoch", topic.name, 0)
    await describe("unknown partitions", topic.name, 0, 7, -1)
    await describe("twice", topic.name, 0, 0)
    await describe("unknown topic", run.name("absent"), 0, 1)
    for name in ("", ".", "not/valid", "x" * 250):
        await describe(f"topic {name[:20]!r}", name, 0)
    await run.ask("nothing", DescribeProducersRequest())
