"""``aioproducer spark-sink``: exactly-once sinks of Spark."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

import click

from aioproducer.cli.exits import EXPLANATION, SUCCEEDED, CommandUsageError
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options
from aioproducer.cli.output import print_json, print_table
from aioproducer.cli.running import run_briefly
from aioproducer.spark.options import DECISION_TOPIC
from aioproducer.spark.recovery import (
    NoSuchSinkError,
    SinkState,
    accept_replay,
    forget,
    is_named,
    known_sinks,
    list_sinks,
    open_sinks,
    recover,
)
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.transactional.decisions import Decision
from aioproducer.spark.transactional.rules import ExactlyOnceError

_DAY_MS = 86_400_000

topic_option = click.option(
    "--decision-topic", default=DECISION_TOPIC, show_default=True, metavar="TOPIC", help="The sink's decision.topic."
)


@click.group("spark-sink", epilog=EXPLANATION)
def command() -> None:
    """Show and recover exactly-once sinks of Spark."""


@command.command("list", epilog=EXPLANATION)
@click.argument("sink", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object a query or write.")
@topic_option
@cluster_options
@diagnosis_options
def list_command(
    sink: str | None,
    as_json: bool,
    decision_topic: str,
    cluster: ClusterOptions,
) -> int:
    """Print what sinks have decided last, and how many transactions of their tasks are open.

    A sink that is not running should have no open transaction and no unfinished batch: call 'recover'. A decision that
    cannot be read is shown as damaged; 'forget --key' deletes it. With SINK, its write_batch sinks are shown as well.

    \b
    Examples:
      aioproducer spark-sink list
      aioproducer spark-sink list orders-job --json
    """
    config = cluster.config()

    async def body() -> int:
        states = open_sinks(await list_sinks(config, decision_topic, cluster.timeout), sink)
        if as_json:
            print_json([each for state in states for each in _described(state)])
            return SUCCEEDED
        columns = ["sink", "query or write", "batch", "rows", "state", "decided", "open transactions"]
        rows = [row for state in states for row in _rows(state)]
        print_table(columns, rows, numbers=["batch", "rows", "open transactions"])
        return SUCCEEDED

    return run_briefly(body)


@command.command("recover", epilog=EXPLANATION)
@click.argument("sink")
@click.option(
    "--accept-replay",
    "accept",
    metavar="BATCH",
    help="Go on with the decided rows of this micro-batch, or write.id, whose replay has another number of rows.",
)
@topic_option
@cluster_options
@diagnosis_options
def recover_command(
    sink: str,
    accept: str | None,
    decision_topic: str,
    cluster: ClusterOptions,
) -> int:
    """Finish the decided batch of SINK and of its write_batch sinks, and abort the transactions that no decision needs.

    Call it when no process of the sink is running: a query that is running fails. The next start of the query does the
    same; this is for a query that is not started again.

    \b
    Examples:
      aioproducer spark-sink recover orders-job
      aioproducer spark-sink recover orders-job --accept-replay 41
    """

    config = cluster.config()

    async def body() -> int:
        accepted: list[tuple[str, Decision]] = []
        for name in await known_sinks(config, decision_topic, cluster.timeout, sink):
            async with KafkaSinkCluster(config, name, decision_topic, cluster.timeout) as of_sink:
                decisions = await recover(of_sink, click.echo)
            for each in decisions:
                click.echo(f"{name}: {_what(each)} is done")
            if not decisions:
                click.echo(
                    f"{name}: nothing is decided in topic {decision_topic!r}. If the query or write has another "
                    "decision.topic, call this again with --decision-topic"
                )
            click.echo(f"{name}: no transaction of its tasks is open")
            accepted += [(name, each) for each in decisions if accept is not None and is_named(each, accept)]
        if accept is not None:
            await _accept(config, decision_topic, cluster.timeout, accept, accepted)
        return SUCCEEDED

    return run_briefly(body)


async def _accept(
    config: dict[str, object], decision_topic: str, timeout: float, accept: str, found: list[tuple[str, Decision]]
) -> None:
    """
    Raises:
        ExactlyOnceError: the name stands for no decision or for several, or the decision has changed since.
    """
    if len(found) != 1:
        which = ", ".join(f"{name} ({_what(each)})" for name, each in found)
        raise ExactlyOnceError(
            f"{accept!r} names {len(found)} of the last decisions{': ' + which if which else ''}, and must name one: "
            "see 'aioproducer spark-sink list', and give the sink by its whole name"
        )
    ((name, decision),) = found
    async with KafkaSinkCluster(config, name, decision_topic, timeout) as cluster:
        await accept_replay(cluster, decision)


@command.command("forget", epilog=EXPLANATION)
@click.argument("sink")
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Done df.write jobs that are older.")
@click.option("--key", metavar="QUERY_OR_WRITE", help="This query or write.id, even if it is unfinished.")
@topic_option
@cluster_options
@diagnosis_options
def forget_command(
    sink: str,
    older_than: float | None,
    key: str | None,
    decision_topic: str,
    cluster: ClusterOptions,
) -> int:
    """Delete decisions of SINK from the decision topic.

    A write that is forgotten writes its rows again if it is run again. So does a query whose last batch is unfinished:
    it writes all rows of that batch again, also those that are committed already, and so may a query that was killed
    when its last batch was done. Afterwards call 'recover', which aborts the transactions of such a batch. Call both
    when no process of the sink is running.

    \b
    Examples:
      aioproducer spark-sink forget nightly --older-than 90
      aioproducer spark-sink forget orders-job --key 5f0e8a52-3c51-4f0c-9f0a-0d3f5c3c6d2e
    """
    if (older_than is None) == (key is None):
        raise CommandUsageError("give either --older-than DAYS or --key QUERY_OR_WRITE")
    if older_than is not None and not math.isfinite(older_than):
        raise CommandUsageError("--older-than must be a number of days")

    config = cluster.config()

    async def body() -> int:
        before = None if older_than is None else time.time_ns() // 1_000_000 - int(older_than * _DAY_MS)
        if sink not in await known_sinks(config, decision_topic, cluster.timeout, sink):
            raise NoSuchSinkError(f"sink {sink!r} has decided nothing; its write_batch sinks have names of their own")
        async with KafkaSinkCluster(config, sink, decision_topic, cluster.timeout) as of_sink:
            for each in await forget(of_sink, key=key, decided_before_ms=before):
                again = "" if each.batch_id is None else f"; the query writes batch {each.batch_id} again"
                click.echo(f"{each.key}: forgotten{again}")
        return SUCCEEDED

    return run_briefly(body)


def _what(decision: Decision) -> str:
    """Return what a decision is about, as a reader of the output knows it."""
    name = decision.key.removeprefix("write:")
    return f"write {name!r}" if decision.batch_id is None else f"batch {decision.batch_id} of query {name}"


def _described(state: SinkState) -> list[dict[str, object]]:
    """Return the objects of a sink: one for each query or write, or one without a key if there is none."""
    found: list[dict[str, object]] = [
        {
            "sink": state.sink,
            "key": each.key,
            "batch": each.batch_id,
            "rows": each.rows if each.rows >= 0 else None,
            "done": each.done,
            "run": each.run_id,
            "decided_ms": each.decided_ms,
            "transactions": [handle.transactional_id for handle in each.handles],
        }
        for each in state.decisions
    ]
    found += [{"sink": state.sink, "key": key, "damaged": str(error)} for key, error in state.damaged.items()]
    return [
        {**each, "open_transactions": list(state.open_ids)} for each in found or [{"sink": state.sink, "key": None}]
    ]


def _rows(state: SinkState) -> list[tuple[object, ...]]:
    """Return the lines of a sink."""
    open_transactions = len(state.open_ids)
    found: list[tuple[object, ...]] = [
        (
            state.sink,
            each.key,
            each.batch_id,
            each.rows if each.rows >= 0 else "any",
            "done" if each.done else f"unfinished ({len(each.handles)})",
            _time(each.decided_ms),
            open_transactions,
        )
        for each in state.decisions
    ]
    found += [
        (state.sink, key, None, None, f"damaged: {error}", None, open_transactions)
        for key, error in state.damaged.items()
    ]
    return found or [(state.sink, None, None, None, "nothing decided", None, open_transactions)]


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
