"""The plan for the tasks, the tasks' reports, and the rule by which a task writes or skips its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aioproducer._common.texts import counted
from aioproducer.errors import KafkaError
from aioproducer.spark.transactional.decisions import ANY_ROWS, Handle, Token

SINK_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_TASK: Final = "-t-"
_WRITE: Final = "--"


class ExactlyOnceError(KafkaError):
    """The sink cannot continue without losing or doubling rows; nothing was written. The text has the remedy."""


class SinkTakenOverError(ExactlyOnceError):
    """Another run has decided a batch with this ``sink.id``, or is planning one."""


class ReplayDiffersError(ExactlyOnceError):
    """A batch that is decided was replayed with another number of rows."""


def check_sink_id(sink: str) -> str:
    """Return the id if it is valid.

    Raises:
        ValueError: it is not; the text says why.
    """
    if not SINK_ID.fullmatch(sink) or _TASK in sink or _WRITE in sink:
        raise ValueError(
            f"must be 1 to 100 letters, digits, '_' and '-', without '{_TASK}' and '{_WRITE}' in it, not {sink!r}"
        )
    return sink


def write_sink(sink: str, name: str) -> str:
    """Return the separate sink of one ``write_batch`` of a sink."""
    return f"{sink}{_WRITE}{name}"


def committer_id(sink: str) -> str:
    """Return the transactional id that writes the decisions of a sink."""
    return f"{sink}-committer"


def task_id(sink: str, process: str, slot: int) -> str:
    """Return the transactional id of a slot of a Python process, which ``process`` names by 32 hexadecimal digits."""
    return f"{sink}{_TASK}{process}-{slot}"


def task_pattern(sink: str | None) -> str:
    """Return the regular expression that all transactional ids of a sink's tasks match; None: of all sinks."""
    return rf"{'[A-Za-z0-9_-]+' if sink is None else re.escape(sink)}{_TASK}[0-9a-f]{{32}}-[0-9]+"


def sink_of_task(transactional_id: str) -> str:
    """Return the sink of an id that matches ``task_pattern``."""
    return transactional_id.rpartition(_TASK)[0]


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """The last decided batch of a key, and its number of rows; ``batch_id`` is None for a batch job."""

    batch_id: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The planner's result, which goes to the tasks and by their reports to ``commit``.

    decided
        The last decided batch of each query or write.
    last_run, superseded
        The run of the sink's last decision, and the runs before.
    version
        The generation of the transaction protocol, 1 or 2.
    """

    sink: str
    token: Token
    version: int
    decided: Mapping[str, DecidedBatch]
    last_run: str | None
    superseded: tuple[str, ...]

    def is_second_write(self, key: str, batch_id: int | None, run_id: str) -> bool:
        """Return whether this run itself has decided the batch: its function has written it before."""
        last = self.decided.get(key)
        return last is not None and last.batch_id == batch_id and self.last_run == run_id

    def writes(self, key: str, batch_id: int | None, run_id: str) -> bool:
        """Return whether a task of this batch writes its rows; False if the batch is decided already.

        Raises:
            ExactlyOnceError: the run was replaced, or the batch is not the one after the last decided one.
        """
        if run_id in self.superseded:
            raise SinkTakenOverError(
                f"sink.id {self.sink!r} was taken over by run {self.last_run}: this run ({run_id}) writes nothing "
                "more. "
                "One sink.id is for one running query; give each query its own"
            )
        last = self.decided.get(key)
        if last is None:
            return True
        if batch_id is None or last.batch_id is None:
            return False
        if batch_id == last.batch_id + 1:
            return True
        if batch_id == last.batch_id:
            return False
        if batch_id < last.batch_id:
            raise ExactlyOnceError(
                f"Checkpoint rolled back: batch {batch_id} of query {key} is older than batch {last.batch_id}, "
                "the last "
                f"one that sink.id {self.sink!r} has decided, so that its rows would be written twice. Restore "
                "the newer "
                "checkpoint, or start with a new checkpoint and a new sink.id"
            )
        raise ExactlyOnceError(
            f"Decision lost or another sink.id: query {key} is at batch {batch_id}, but the last one that sink.id "
            f"{self.sink!r} has decided is batch {last.batch_id}. Use the sink.id and decision.topic that the "
            "query has "
            "had before; after the loss of the decision topic only a new checkpoint helps. Or the function of "
            "foreachBatch has not called write_batch for a batch: it must, also without rows. To go on from this "
            f"batch: aioproducer spark-sink forget {self.sink} --key {key}"
        )


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Result of one task: ``handle`` is None if it had no rows, or skipped them."""

    plan: Plan
    key: str
    batch_id: int | None
    run_id: str
    rows: int
    skipped: bool
    handle: Handle | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The reports of all tasks of a batch, which agree about the plan."""

    plan: Plan
    key: str
    batch_id: int | None
    run_id: str
    rows: int
    skipped: bool
    handles: tuple[Handle, ...]


def batch_of(reports: Sequence[TaskReport]) -> Batch:
    """Combine the reports of a batch.

    Raises:
        ExactlyOnceError: there is no report, or they are not of one plan.
    """
    if not reports:
        raise ExactlyOnceError("no task has reported anything: nothing can be decided")
    first = reports[0]
    for each in reports:
        if (each.plan.token, each.key, each.batch_id, each.skipped) != (
            first.plan.token,
            first.key,
            first.batch_id,
            first.skipped,
        ):
            raise ExactlyOnceError("the tasks of this batch were planned at different times: nothing is decided")
    return Batch(
        first.plan,
        first.key,
        first.batch_id,
        first.run_id,
        sum(each.rows for each in reports),
        first.skipped,
        tuple(each.handle for each in reports if each.handle is not None),
    )


def check_replay(batch: Batch) -> None:
    """Compare the rows of a decided batch that was replayed.

    Raises:
        ReplayDiffersError: their number differs.
    """
    decided = batch.plan.decided[batch.key].rows
    if decided not in (ANY_ROWS, batch.rows):
        which = f"batch {batch.batch_id} of query {batch.key}" if batch.batch_id is not None else f"write {batch.key!r}"
        raise ReplayDiffersError(
            f"{which} is decided with {counted(decided, 'row')}, and its replay has {batch.rows}: the input or "
            "the query "
            "has changed. To go on with the rows that are in the topic: aioproducer spark-sink recover "
            f"{batch.plan.sink} --accept-replay {batch.batch_id if batch.batch_id is not None else batch.key}"
        )


class Slots:
    """The slots of one Python process: each is a transactional id that serves one task after the other.

    A slot is free again only for a writer with a newer token than that of its last transaction: a planner has ended
    that transaction before it made a newer token. Under an equal token it may be part of the batch that is still to be
    committed, and a task with an older token must not abort it.
    """

    def __init__(self) -> None:
        self._opened: list[Token] = []
        self._busy: set[int] = set()

    def take(self, token: Token) -> int:
        """Return the number of a slot for a task.

        ``release`` gives it back. A task that fails keeps it: its InitProducerId may still be on its way, and would
        abort the transaction of the next task.
        """
        for number, opened in enumerate(self._opened):
            if number not in self._busy and self.is_free(opened, token):
                break
        else:
            number = len(self._opened)
            self._opened.append(token)
        self._opened[number] = token
        self._busy.add(number)
        return number

    @staticmethod
    def is_free(opened: Token, token: Token) -> bool:
        return opened < token

    def release(self, number: int) -> None:
        """Let a later task use the slot. Its transaction is complete, and may be open."""
        self._busy.discard(number)
