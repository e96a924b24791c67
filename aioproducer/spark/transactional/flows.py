"""The flows of the driver: plan, commit, abort, and the recovery of unfinished batches.

Each is a sequence of calls to ``SinkCluster``; any call may be the last of its process. The docstrings give the reasons
of the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioproducer._common.texts import counted
from aioproducer.spark.transactional.cluster import OpenTransaction, Row, SinkCluster, Verdict
from aioproducer.spark.transactional.decisions import (
    CopyKey,
    CopyNote,
    Decision,
    Handle,
    Identity,
    RowRange,
    Token,
    copy_record,
    decision_records,
    done_records,
    superseded_by,
)
from aioproducer.spark.transactional.rules import (
    Batch,
    DecidedBatch,
    ExactlyOnceError,
    Plan,
    SinkTakenOverError,
    TaskReport,
    batch_of,
    check_replay,
)
from aioproducer.spark.transactional.table import DecisionTable

LATE_SHARE = 0.5
"""A transaction that was open for this share of its time-out when its batch was decided is worth a warning."""


class Finisher:
    """Ends the transactions of a decision: commits them, or copies the rows of those that were aborted."""

    def __init__(self, cluster: SinkCluster, log: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.log = log

    async def check_committer(self, identity: Identity) -> None:
        """Check that no other planner has taken the place of the one with this identity.

        Raises:
            SinkTakenOverError: one has.
        """
        if not await self.cluster.is_committer(identity):
            raise SinkTakenOverError(
                f"sink.id {self.cluster.sink!r} is being used by another query or write at the same time: give "
                "each its own"
            )

    async def finish(self, decision: Decision, copied: dict[CopyKey, CopyNote]) -> None:
        """Have all rows of the decision committed, and write the done note.

        Raises:
            ExactlyOnceError: the log does not tell how a transaction has ended, or its rows are gone.
        """
        await self.end(decision, copied)
        await self.note_done(decision, copied)

    async def end(self, decision: Decision, copied: dict[CopyKey, CopyNote]) -> None:
        """Commit each handle. Only the answer NONE proves anything: for another one, the log decides."""
        answers = await self.cluster.end(decision.handles, True)
        for handle, committed in zip(decision.handles, answers, strict=True):
            if not committed:
                await self.resolve(decision, handle, copied)
        await self.cluster.reached("ended")

    async def resolve(self, decision: Decision, handle: Handle, copied: dict[CopyKey, CopyNote]) -> None:
        """Read from the log how a handle has ended, and copy the rows of an aborted one."""
        for where in handle.ranges:
            verdict = await self.cluster.verdict(handle, where)
            if verdict is Verdict.UNKNOWN:
                raise ExactlyOnceError(
                    f"{where.topic}-{where.partition}: the log has no marker of transaction "
                    f"{handle.transactional_id!r} (producer id {handle.producer_id}, epoch {handle.producer_epoch}), "
                    f"which batch {decision.batch_id} of {decision.key} needs. Try again when the coordinator is back; "
                    "see 'aioproducer transactions describe'"
                )
            if verdict is Verdict.ABORTED:
                await self.copy(decision, handle, where, copied)

    async def copy(self, decision: Decision, handle: Handle, where: RowRange, copied: dict[CopyKey, CopyNote]) -> None:
        """Copy rows in pieces: each is one transaction of the committer, which ends with the note about it."""
        copy_key = CopyKey(handle.transactional_id, handle.producer_epoch, where.topic, where.partition)
        note = copied.get(copy_key, CopyNote(where.first_offset - 1, 0))
        rows: Sequence[Row] = ()
        while note.offset < where.last_offset:
            rows = rows or await self.cluster.rows_of(handle, where, note.offset)
            count = note.rows + len(rows)
            if not rows or (rows[-1].offset >= where.last_offset and count != where.rows):
                raise ExactlyOnceError(
                    f"{where.topic}-{where.partition}: {count} of {counted(where.rows, 'row')} of transaction "
                    f"{handle.transactional_id!r} are left in the log. It was aborted after batch {decision.batch_id} "
                    f"of {decision.key} was decided, and retention, compaction or DeleteRecords has removed rows "
                    "since: they are lost"
                )
            written = await self.cluster.append_rows(where, rows)
            note = CopyNote(rows[written - 1].offset, note.rows + written)
            await self.cluster.append([copy_record(decision, copy_key, note)])
            await self.cluster.commit()
            rows = rows[written:]
            copied[copy_key] = note
            self.log(
                f"batch {decision.batch_id} of {decision.key}: copied {note.rows} of {counted(where.rows, 'row')} of "
                f"{where.topic}-{where.partition}, as the coordinator had aborted their transaction"
            )
            await self.cluster.reached("copied")

    async def note_done(self, decision: Decision, copied: dict[CopyKey, CopyNote]) -> None:
        await self.cluster.append(done_records(decision, copied))
        await self.cluster.commit()
        await self.cluster.reached("done")


class Planner(Finisher):
    """Takes the sink over, finishes what was decided, and ends what was not."""

    def __init__(self, cluster: SinkCluster, table: DecisionTable, log: Callable[[str], None]) -> None:
        super().__init__(cluster, log)
        self.table = table

    async def plan(self, write: str | None = None) -> Plan:
        """Return the plan of the next batch.

        Args:
            write: the key of a batch job: the plan contains its decision only, otherwise those of all queries. A sink
                may have had thousands of batch jobs, and each task receives the plan.

        Raises:
            KafkaError: the cluster refuses, or the decision topic cannot be read up to its end.
            ExactlyOnceError: a decided batch cannot be finished.
        """
        stop = await self.take_over_and_read()
        await self.finish_undone()
        identity = await self.cluster.identity()
        plan = self.plan_with(stop, identity, write)
        await self.sweep(identity)
        await self.cluster.reached("planned")
        return plan

    async def take_over_and_read(self) -> int:
        """Fence earlier committers, and only then read: no decision can come behind what is read.

        The end to read up to is the high watermark. An open transaction of another sink lowers the last stable offset,
        and a decision behind it would be missed.
        """
        await self.cluster.take_over()
        stop = await self.cluster.high_watermark()
        await self.cluster.read_up_to(self.table, stop)
        return stop

    async def finish_undone(self) -> None:
        for decision in self.table.unfinished():
            self.log(
                f"finishing batch {decision.batch_id} of {decision.key}, which was decided with "
                f"{counted(len(decision.handles), 'transaction')}"
            )
            await self.finish(decision, self.table.copied(decision))
            self.table.finished(decision)

    def plan_with(self, stop: int, identity: Identity, write: str | None) -> Plan:
        wanted = self.table.queries() if write is None else [self.table.decision(write)]
        last = self.table.last()
        return Plan(
            self.cluster.sink,
            Token(stop, *identity),
            self.cluster.version,
            {each.key: DecidedBatch(each.batch_id, each.rows) for each in wanted if each is not None},
            None if last is None else last.run_id,
            () if last is None else last.superseded,
        )

    async def sweep(self, identity: Identity) -> None:
        """End the open transactions of tasks: no decision needs them.

        They are listed first. If this is the committer still after that, no newer planner can have had tasks before.
        """
        found = await self.cluster.list_open()
        await self.check_committer(identity)
        if found:
            self.log(f"aborting {counted(len(found), 'transaction')} of tasks that no decision needs")
            await self.abort_listed(found)

    async def abort_listed(self, found: Sequence[OpenTransaction]) -> None:
        """Of the second generation EndTxn with the listed identity ends no later transaction; the first needs more."""
        if self.cluster.version >= 2:
            await self.cluster.abort_open(found)
        else:
            await self.cluster.fence_open(found)


class Committer(Finisher):
    """``commit`` and ``abort`` of one batch, in a process that receives the plan with the tasks' reports."""

    def __init__(self, cluster: SinkCluster, log: Callable[[str], None], new_id: Callable[[], str]) -> None:
        super().__init__(cluster, log)
        self.new_id = new_id

    async def commit(self, reports: Sequence[TaskReport]) -> None:
        """Decide the batch, and finish it.

        If it raises, the batch may be decided; the next plan finds out.

        Raises:
            SinkTakenOverError: another planner has ended the transactions of the batch.
            ReplayDiffersError: the batch is decided already, with another number of rows.
            ExactlyOnceError: a transaction of the batch has ended, so that nothing was decided.
            KafkaError: another planner has taken over, or Kafka does not answer.
        """
        batch = batch_of(reports)
        if batch.skipped:
            check_replay(batch)
            return
        await self.check_open(batch)
        await self.cluster.reached("deciding")
        decision = self.decision_for(batch)
        await self.decide(batch, decision)
        await self.cluster.reached("decided")
        copied: dict[CopyKey, CopyNote] = {}
        await self.end(decision, copied)
        await self.done_and_sweep(decision, copied)

    async def check_open(self, batch: Batch) -> None:
        """See that no transaction of the batch has ended; warn if one was open for half of its time-out.

        Ages are by this machine's clock, which may differ from the coordinator's: they are worth a warning, no more.
        """
        found = await self.cluster.describe(batch.handles)
        is_open = [
            each is not None and each.identity == handle.identity
            for handle, each in zip(batch.handles, found, strict=True)
        ]
        slowest = max((each for each in found if each is not None), key=lambda each: each.open_for_ms, default=None)
        if not all(is_open):
            # Another planner ends the transactions of tasks that it does not know.
            await self.check_committer(batch.plan.token.identity)
            handle = batch.handles[is_open.index(False)]
            how_long = "" if slowest is None else f" ({_share_of_timeout(slowest)})"
            raise ExactlyOnceError(
                f"transaction {handle.transactional_id!r} of batch {batch.batch_id} of {batch.key} is no longer open"
                f"{how_long}, so that nothing is decided: a batch must end within transaction.timeout.ms. The batch is "
                "written again; if this comes again, raise transaction.timeout.ms or make batches smaller"
            )
        if slowest is not None and slowest.open_for_ms > LATE_SHARE * slowest.timeout_ms:
            self.log(
                f"WARNING: batch {batch.batch_id} of {batch.key} with {counted(batch.rows, 'row')} needed "
                f"{_share_of_timeout(slowest)}: a batch that takes longer fails each time. Raise "
                "transaction.timeout.ms or make batches smaller"
            )

    def decision_for(self, batch: Batch) -> Decision:
        plan = batch.plan
        return Decision(
            plan.sink,
            batch.key,
            batch.batch_id,
            self.new_id(),
            batch.run_id,
            superseded_by(batch.run_id, plan.last_run, plan.superseded),
            batch.rows,
            self.cluster.now_ms(),
            handles=batch.handles,
        )

    async def decide(self, batch: Batch, decision: Decision) -> None:
        """Write the decision in one transaction under the plan's token: a newer planner has fenced it."""
        token = batch.plan.token
        await self.cluster.continue_as(token.identity)
        await self.append_decision(token, decision)
        await self.cluster.reached("appended")
        await self.cluster.commit()

    async def append_decision(self, token: Token, decision: Decision) -> None:
        offset = await self.cluster.append(decision_records(decision))
        if offset < token.high_watermark:
            raise ExactlyOnceError(
                f"the decision about batch {decision.batch_id} was acknowledged at offset {offset}, before the "
                "end of the "
                f"decision topic as the plan has seen it ({token.high_watermark}): it was taken for a duplicate"
            )

    async def done_and_sweep(self, decision: Decision, copied: dict[CopyKey, CopyNote]) -> None:
        """List before the done note: if that is committed, no newer planner had taken over when these were listed."""
        found = await self.cluster.list_open() if self.cluster.version >= 2 else []
        await self.note_done(decision, copied)
        if found:
            self.log(f"aborting {counted(len(found), 'transaction')} of tasks that have lost against others")
            await self.cluster.abort_open(found)

    async def abort(self, reports: Sequence[TaskReport]) -> bool:
        """Abort the transactions of a batch that is not decided, if that is certain; return whether it was.

        EndTxn(abort) with the token is a test-and-set: NONE proves that nothing was decided, and that nothing will be.
        The first generation cannot tell, and leaves the transactions to the next plan.
        """
        written = [each for each in reports if not each.skipped]
        if not written or written[0].plan.version < 2:
            return False
        if not await self.cluster.abort_committer(written[0].plan.token.identity):
            return False
        await self.cluster.end([each.handle for each in written if each.handle is not None], False)
        return True


def _share_of_timeout(transaction: OpenTransaction) -> str:
    return (
        f"{transaction.open_for_ms / 1000:.1f} s of the {transaction.timeout_ms / 1000:.1f} s of transaction.timeout.ms"
    )
