"""The operator's calls for exactly-once sinks: list, finish and forget their decisions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aioproducer._common.diagnosis import nearest
from aioproducer.admin import Admin
from aioproducer.consumer.reader import Reader
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.transactional.decisions import (
    ANY_ROWS,
    Decision,
    DecisionTopicError,
    TopicRecord,
    decision_records,
)
from aioproducer.spark.transactional.flows import Planner
from aioproducer.spark.transactional.rules import ExactlyOnceError, sink_of_task, task_pattern
from aioproducer.spark.transactional.table import DecisionTable


@dataclass(frozen=True, slots=True)
class SinkState:
    """A sink: its decisions, the last of each query and write, and the transactional ids that its tasks have open.

    ``damaged`` has the keys of decisions that cannot be read, and why.
    """

    sink: str
    decisions: tuple[Decision, ...]
    damaged: Mapping[str, DecisionTopicError]
    open_ids: tuple[str, ...]


async def list_sinks(config: Mapping[str, object], topic: str, timeout: float) -> list[SinkState]:
    """Return the sinks that have a decision in the topic, or open transactions, by name; this changes nothing.

    Raises:
        NoSuchTopicError: there is no such topic.
        KafkaError: the cluster refuses or does not answer in time.
    """
    tables: dict[str, DecisionTable] = {}
    damaged: dict[str, dict[str, DecisionTopicError]] = {}
    reader = Reader.from_config(config, topic, [0], stop="end", isolation_level="read_committed", timeout=timeout)
    async with reader:
        async for record in reader:
            sink = _sink_of(record.key)
            if sink is None:
                continue
            try:
                tables.setdefault(sink, DecisionTable(sink)).apply(record.offset, record.key, record.value)
            except DecisionTopicError as error:
                damaged.setdefault(sink, {})[repr(record.key)] = error
    open_ids: dict[str, list[str]] = {}
    async with Admin.from_config(config, timeout=timeout) as admin:
        for each in await admin.list_transactions(states=["Ongoing"], pattern=task_pattern(None)):
            open_ids.setdefault(sink_of_task(each.transactional_id), []).append(each.transactional_id)
    found: list[SinkState] = []
    for sink in sorted({*tables, *open_ids}):
        decisions, unreadable = tables[sink].readable() if sink in tables else ([], {})
        unreadable |= damaged.get(sink, {})
        # Tombstones of a forgotten sink may still be in the topic.
        if decisions or unreadable or sink in open_ids:
            found.append(SinkState(sink, tuple(decisions), unreadable, tuple(open_ids.get(sink, ()))))
    return found


def _sink_of(key: bytes | None) -> str | None:
    try:
        found = json.loads(key or b"")
    except ValueError:
        return None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None


async def known_sinks(config: Mapping[str, object], topic: str, timeout: float, sink: str) -> list[str]:
    """Return the sink and its ``write_batch`` sinks: those that have a decision or a transactional id.

    Raises:
        NoSuchSinkError: there is none of this name.
        NoSuchTopicError: there is no such topic.
        KafkaError: the cluster refuses or does not answer in time.
    """
    states = await list_sinks(config, topic, timeout)
    found = {each.sink for each in open_sinks(states, sink)}
    async with Admin.from_config(config, timeout=timeout) as admin:
        # A sink that was killed before its first decision may have no open transaction.
        pattern = rf"{re.escape(sink)}(--[A-Za-z0-9_-]+)?-committer"
        for each in await admin.list_transactions(pattern=pattern):
            found.add(each.transactional_id.removesuffix("-committer"))
    if not found:
        known = [each.sink for each in states]
        hint = nearest(sink, known) or (f"it has {', '.join(known[:10])}" if known else "it has none")
        raise NoSuchSinkError(f"the decision topic {topic!r} has no sink {sink!r}: {hint}")
    return sorted(found)


class NoSuchSinkError(ExactlyOnceError):
    """No sink of this name has decided anything, or begun a transaction."""


async def recover(cluster: KafkaSinkCluster, log: Callable[[str], None]) -> list[Decision]:
    """Finish what the sink has decided, and abort what it has not; return its decisions.

    A query of the sink that is running fails, and goes on when it is started again.

    Raises:
        ExactlyOnceError: a decided batch cannot be finished.
        KafkaError: the cluster refuses or does not answer in time.
    """
    table = DecisionTable(cluster.sink)
    await Planner(cluster, table, log).plan()
    return table.decisions()


async def accept_replay(cluster: KafkaSinkCluster, decision: Decision) -> None:
    """Let the replay of a decided batch have any number of rows. Call it after ``recover`` of the same sink.

    It takes the sink over and reads the decisions again: a query that has started since ``recover`` may have decided
    its next batch, and a record about the earlier one would replace that decision.

    Raises:
        ExactlyOnceError: the decision was replaced or forgotten since; nothing was written.
        KafkaError: the cluster refuses or does not answer in time.
    """
    table = DecisionTable(cluster.sink)
    await Planner(cluster, table, lambda text: None).take_over_and_read()
    last = table.decision(decision.key)
    if last is None or last.decision_id != decision.decision_id:
        how = "it was deleted" if last is None else "another one has replaced it"
        raise ExactlyOnceError(
            f"sink {cluster.sink!r}: the last decision of {decision.key!r} has changed during this command: {how}. "
            "No replay was accepted. Stop all processes of the sink, and run the command again"
        )
    await cluster.append(decision_records(replace(last, rows=ANY_ROWS)))
    await cluster.commit()


def is_named(decision: Decision, name: str) -> bool:
    """Return whether this is the decision of a micro-batch, a query or a ``write.id`` that an operator names."""
    return name in (str(decision.batch_id), decision.key, _write_id(decision.key))


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The key of a deleted decision; ``batch_id`` is set if a query will write this batch again."""

    key: str
    batch_id: int | None = None


async def forget(
    cluster: KafkaSinkCluster, *, key: str | None = None, decided_before_ms: int | None = None
) -> list[Forgotten]:
    """Delete decisions of a sink: of one query or write, or of all writes that are done and older.

    A write that is forgotten is written again if it is run again. An unfinished decision is forgotten only by its key.
    If it is a query's, a done note of the batch before replaces it: the query writes the whole batch again, also rows
    that are committed already, and runs that were replaced stay replaced.

    Raises:
        NoSuchSinkError: there is no decision of this key.
        KafkaError: the cluster refuses or does not answer in time.
    """
    table = DecisionTable(cluster.sink)
    await Planner(cluster, table, lambda text: None).take_over_and_read()
    decisions, damaged = table.readable()
    records: list[TopicRecord] = []
    if key is not None:
        keys = [each for each in (*damaged, *(one.key for one in decisions)) if key in (each, _write_id(each))]
        if not keys:
            raise NoSuchSinkError(f"sink {cluster.sink!r} has no decision of query or write {key!r}")
    else:
        before = 0 if decided_before_ms is None else decided_before_ms
        keys = [each.key for each in decisions if each.done and each.batch_id is None and each.decided_ms < before]
    forgotten: list[Forgotten] = []
    for each in keys:
        records += [TopicRecord(record_key, None) for record_key in table.record_keys(each)]
        decision = None if each in damaged else table.decision(each)
        if decision is not None and not decision.done and decision.batch_id is not None:
            earlier = replace(decision.finished(), batch_id=decision.batch_id - 1, rows=ANY_ROWS)
            # The last record of a key counts.
            records += decision_records(earlier)
            forgotten.append(Forgotten(each, decision.batch_id))
        else:
            forgotten.append(Forgotten(each))
    for first in range(0, len(records), _RECORDS_PER_TRANSACTION):
        await cluster.append(records[first : first + _RECORDS_PER_TRANSACTION])
        await cluster.commit()
    return forgotten


_RECORDS_PER_TRANSACTION = 10_000
_WRITE = "write:"


def _write_id(key: str) -> str | None:
    return key.removeprefix(_WRITE) if key.startswith(_WRITE) else None


def open_sinks(states: Sequence[SinkState], sink: str | None) -> list[SinkState]:
    """Return the sinks to show: those that ``sink`` names, its ``write_batch`` sinks included."""
    return [each for each in states if sink is None or each.sink == sink or each.sink.startswith(f"{sink}--")]
