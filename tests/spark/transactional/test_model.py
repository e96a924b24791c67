"""The protocol on a model of Kafka: every crash, late call and time-out that the seeds come upon.

Each wrong version of the protocol violates what the right one keeps, and the seeds find it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aioproducer.spark.transactional import decisions
from aioproducer.spark.transactional.cluster import Verdict
from aioproducer.spark.transactional.decisions import (
    CopyKey,
    CopyNote,
    Decision,
    Handle,
    Identity,
    RowRange,
    Token,
    TopicRecord,
    chunk_key,
    decision_records,
)
from aioproducer.spark.transactional.flows import Committer, Planner
from aioproducer.spark.transactional.rules import Plan, Slots, TaskReport, task_id
from aioproducer.spark.transactional.table import DecisionTable
from tests.spark.transactional.sink_model import (
    DECISIONS,
    SINK,
    Model,
    ModelCluster,
    Sink,
    Worker,
    explore,
)

SEEDS = range(1200)
MOST_SEEDS = range(20_000)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions of several records."""
    monkeypatch.setattr(decisions, "HANDLES_PER_CHUNK", 1)


@pytest.mark.parametrize("version", [2, 1])
def test_no_row_is_lost_or_doubled_and_no_transaction_is_left(version):
    assert explore(Sink(), SEEDS, version) is None


@pytest.mark.soak
@pytest.mark.parametrize("version", [2, 1])
def test_many_seeds(version):
    assert explore(Sink(), range(1_000_000, 1_060_000), version) is None


def test_a_seed_replays_exactly():
    traces = []
    for _ in range(2):
        model = Model(7, 2, Sink())
        model.run()
        traces.append(model.world.trace)
    assert traces[0] == traces[1]


# Wrong versions


class PlainDecisionCluster(ModelCluster):
    """Decisions are written with acks=all, outside of transactions."""

    async def write(self, where: str, key: bytes | None, value: bytes | None) -> int:
        if where != DECISIONS:
            return await super().write(where, key, value)
        return await self.world.call(lambda: self.kafka.partition(DECISIONS).append_plain(key, value), again=True)

    async def commit(self) -> None:
        if self.kafka.ids[self.committer].state == "Ongoing":
            await super().commit()

    async def continue_as(self, identity: Identity) -> None:
        """It has no identity that could be fenced."""
        self.start_as(await self.world.call(lambda: self.kafka.ids[self.committer].identity))


class PlainDecision(Sink):
    cluster = PlainDecisionCluster


class IdsPerAttempt(Sink):
    """The id of a task's attempt, which the next driver uses as well."""

    def transactional_id(self, worker: Worker, slot: int, task: int, attempt: int) -> str:
        return task_id(SINK, "0" * 32, 10 * task + attempt)


class BlindAbort(Sink):
    """``abort`` aborts the handles, whether or not they are decided."""

    class committer(Committer):  # noqa: N801
        async def abort(self, reports: Sequence[TaskReport]) -> bool:
            await self.cluster.end([each.handle for each in reports if each.handle is not None], False)
            return True


class ReadBeforeTakeOver(Sink):
    """Decisions are read before InitProducerId has fenced the committer."""

    class planner(Planner):  # noqa: N801
        async def take_over_and_read(self) -> int:
            stop = await self.cluster.high_watermark()
            await self.cluster.read_up_to(self.table, stop)
            await self.cluster.take_over()
            return stop


class ReadToLastStableOffset(Sink):
    """Decisions behind the open transaction of another sink are not read."""

    class planner(Planner):  # noqa: N801
        async def take_over_and_read(self) -> int:
            await self.cluster.take_over()
            assert isinstance(self.cluster, ModelCluster)
            partition = self.cluster.kafka.partition(DECISIONS)
            stop = await self.cluster.world.call(lambda: partition.last_stable_offset)
            await self.cluster.read_up_to(self.table, stop)
            return stop


class VerdictByErrorCodeCluster(ModelCluster):
    """INVALID_TXN_STATE and PRODUCER_FENCED are taken for "committed before"."""

    async def verdict(self, handle: Handle, where: RowRange) -> Verdict:
        return Verdict.COMMITTED


class VerdictByErrorCode(Sink):
    cluster = VerdictByErrorCodeCluster


class SkipByLayout(Sink):
    """A replayed task skips its rows if the decision has a handle of its number."""

    def rows_to_write(self, plan: Plan, key: str, batch_id: int, run_id: str, task: int) -> bool:
        last = plan.decided.get(key)
        if last is not None and last.batch_id == batch_id:
            return task >= 2
        return super().rows_to_write(plan, key, batch_id, run_id, task)

    class committer(Committer):  # noqa: N801
        async def commit(self, reports: Sequence[TaskReport]) -> None:
            written = [each for each in reports if not each.skipped]
            if written:
                await super().commit(written)


class OneKeyCluster(ModelCluster):
    """All chunks of a decision have the key of the first one."""

    async def append(self, records: Sequence[TopicRecord]) -> int:
        offset = -1
        for record in records:
            offset = await self.write(DECISIONS, record.key.rpartition(b",")[0] + b",0]", record.value)
        return offset


class OneKeyTable(DecisionTable):
    """Reads the chunks of one key in their order, as long as compaction leaves them."""

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        chunk = 0
        if key is not None and value is not None and b'"run"' not in value and key.startswith(b'["' + SINK.encode()):
            chunk = 1 + max((each for chunks in self._chunks.values() for each in chunks), default=0)
            key = chunk_key(SINK, "query", chunk)
        elif key is not None and value is not None and key.startswith(b'["' + SINK.encode()):
            self._chunks.clear()
        super().apply(offset, key, value)


class OneKey(Sink):
    cluster = OneKeyCluster

    class planner(Planner):  # noqa: N801
        def __init__(self, cluster, table, log) -> None:  # type: ignore[no-untyped-def]
            super().__init__(cluster, OneKeyTable(SINK), log)


class TokenUsedTwiceCluster(ModelCluster):
    """The first generation writes one transaction after the other under one epoch."""

    async def bump(self) -> None:
        self.used = False


class TokenUsedTwice(Sink):
    cluster = TokenUsedTwiceCluster

    class committer(Committer):  # noqa: N801
        async def append_decision(self, token: Token, decision: Decision) -> None:
            await self.cluster.append(decision_records(decision))


class OtherTokenSlots(Slots):
    """A slot is free for every writer with another token."""

    @staticmethod
    def is_free(opened: Token, token: Token) -> bool:
        return opened != token


class OtherTokenSlot(Sink):
    slots = OtherTokenSlots


class SweepAfterNote(Sink):
    """``commit`` lists what it sweeps after the done note, without a look at the committer."""

    class committer(Committer):  # noqa: N801
        async def done_and_sweep(self, decision: Decision, copied: dict[CopyKey, CopyNote]) -> None:
            await self.note_done(decision, copied)
            # A slow process finds more.
            assert isinstance(self.cluster, ModelCluster)
            await self.cluster.world.pause(80)
            found = await self.cluster.list_open()
            await self.cluster.world.pause(80)
            await self.cluster.abort_open(found)


class NoCheckOfCommitter(Sink):
    """The planner sweeps whatever it has listed."""

    class planner(Planner):  # noqa: N801
        async def sweep(self, identity: Identity) -> None:
            await self.abort_listed(await self.cluster.list_open())


WRONG = [
    (PlainDecision, 2),
    (BlindAbort, 2),
    (ReadBeforeTakeOver, 2),
    (ReadBeforeTakeOver, 1),
    (ReadToLastStableOffset, 2),
    (VerdictByErrorCode, 2),
    (SkipByLayout, 2),
    (OneKey, 2),
    (TokenUsedTwice, 1),
    (OtherTokenSlot, 2),
    (SweepAfterNote, 2),
    (NoCheckOfCommitter, 2),
    (IdsPerAttempt, 2),
]


@pytest.mark.parametrize(("wrong", "version"), WRONG, ids=lambda each: getattr(each, "__name__", f"TV{each}"))
def test_a_wrong_version_is_found(wrong, version):
    assert explore(wrong(), MOST_SEEDS, version) is not None
