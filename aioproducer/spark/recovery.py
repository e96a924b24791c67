"""What an operator does about exactly-once sinks: see what they have decided, finish it, and forget it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aioproducer.admin import Admin
from aioproducer.consumer.reader import Reader
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.transactional.decisions import ANY_ROWS, Decision, TopicRecord, decision_records
from aioproducer.spark.transactional.flows import Planner
from aioproducer.spark.transactional.rules import ExactlyOnceError, task_pattern
from aioproducer.spark.transactional.table import DecisionTable


@dataclass(frozen=True, slots=True)
class SinkState:
    """A sink's decisions, the last of each query and write, and the transactional ids that its tasks have open."""

    sink: str
    decisions: tuple[Decision, ...]
    open_ids: tuple[str, ...]


async def list_sinks(config: Mapping[str, object], topic: str, timeout: float) -> list[SinkState]:
    """Return all sinks of a decision topic, by name; this changes nothing.

    Raises:
        NoSuchTopicError: there is no such topic.
        DecisionTopicError: a record cannot be read.
        KafkaError: the cluster refuses or does not answer in time.
    """
    tables: dict[str, DecisionTable] = {}
    reader = Reader.from_config(config, topic, [0], stop="end", isolation_level="read_committed", timeout=timeout)
    async with reader:
        async for record in reader:
            sink = _sink_of(record.key)
            if sink is not None:
                tables.setdefault(sink, DecisionTable(sink)).apply(record.offset, record.key, record.value)
    async with Admin.from_config(config, timeout=timeout) as admin:
        return [
            SinkState(
                sink,
                tuple(table.decisions()),
                tuple(
                    each.transactional_id
                    for each in await admin.list_transactions(states=["Ongoing"], pattern=task_pattern(sink))
                ),
            )
            for sink, table in sorted(tables.items())
        ]


def _sink_of(key: bytes | None) -> str | None:
    try:
        found = json.loads(key or b"")
    except ValueError:
        return None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None


async def recover(cluster: KafkaSinkCluster, accept: str | None, log: Callable[[str], None]) -> list[Decision]:
    """Finish what the sink has decided, and abort what it has not; return its decisions.

    A query of the sink that is running fails, and goes on when it is started again.

    Args:
        accept: the number of a micro-batch, or the id of a write, whose replay may have another number of rows.

    Raises:
        ExactlyOnceError: a decided batch cannot be finished, or ``accept`` was not decided.
        KafkaError: the cluster refuses or does not answer in time.
    """
    table = DecisionTable(cluster.sink)
    await Planner(cluster, table, log).plan()
    if accept is not None:
        found = [each for each in table.decisions() if accept in (str(each.batch_id), each.key, _write_id(each.key))]
        if len(found) != 1:
            raise ExactlyOnceError(
                f"sink {cluster.sink!r} has decided {len(found)} batches or writes {accept!r} as its last; see "
                "'aioproducer spark-sink list'"
            )
        accepted = replace(found[0], rows=ANY_ROWS)
        await cluster.append(decision_records(accepted))
        await cluster.commit()
        table.finished(accepted)
    return table.decisions()


async def forget(
    cluster: KafkaSinkCluster, *, key: str | None = None, decided_before_ms: int | None = None
) -> list[Decision]:
    """Delete decisions of a sink, and return them: of one query or write, or of all writes that are done and older.

    A write that is forgotten is written again if it is run again. An unfinished decision is forgotten only by its key:
    a query writes its rows again, also those that are committed already.

    Raises:
        ExactlyOnceError: there is no decision of this key.
        KafkaError: the cluster refuses or does not answer in time.
    """
    table = DecisionTable(cluster.sink)
    await Planner(cluster, table, lambda text: None).take_over_and_read()
    if key is not None:
        found = [each for each in table.decisions() if key in (each.key, _write_id(each.key))]
        if not found:
            raise ExactlyOnceError(f"sink {cluster.sink!r} has no decision of query or write {key!r}")
    else:
        before = 0 if decided_before_ms is None else decided_before_ms
        found = [each for each in table.decisions() if each.done and each.batch_id is None and each.decided_ms < before]
    tombstones = [TopicRecord(each, None) for decision in found for each in table.record_keys(decision.key)]
    for first in range(0, len(tombstones), _TOMBSTONES):
        await cluster.append(tombstones[first : first + _TOMBSTONES])
        await cluster.commit()
    return found


# In one transaction.
_TOMBSTONES = 10_000
_WRITE = "write:"


def _write_id(key: str) -> str | None:
    return key.removeprefix(_WRITE) if key.startswith(_WRITE) else None


def open_sinks(states: Sequence[SinkState], sink: str | None) -> list[SinkState]:
    """Return the sinks to show: those that ``sink`` names, its ``write_batch`` sinks included."""
    return [each for each in states if sink is None or each.sink == sink or each.sink.startswith(f"{sink}--")]
