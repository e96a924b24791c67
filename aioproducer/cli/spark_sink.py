"""``aioproducer spark-sink``: exactly-once sinks of Spark."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import click

from aioproducer.cli.exits import EXPLANATION, SUCCEEDED, CommandUsageError
from aioproducer.cli.options import client_config, cluster_options, diagnosis_options
from aioproducer.cli.output import print_json, print_table
from aioproducer.cli.running import run_briefly
from aioproducer.spark.options import DECISION_TOPIC
from aioproducer.spark.recovery import forget, list_sinks, open_sinks, recover
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.transactional.decisions import Decision

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
    bootstrap_server: str | None,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    config_file: str | None,
    timeout: float,
) -> int:
    """Print what sinks have decided last, and how many transactions of their tasks are open.

    A sink that is not running should have no open transaction and no unfinished batch: 'recover' sees to it.

    \b
    Examples:
      aioproducer spark-sink list
      aioproducer spark-sink list orders-job --json
    """
    config = client_config(bootstrap_server, settings, secrets, config_file)

    async def body() -> int:
        states = open_sinks(await list_sinks(config, decision_topic, timeout), sink)
        if as_json:
            print_json(
                [
                    {**_described(each), "open_transactions": list(state.open_ids)}
                    for state in states
                    for each in state.decisions
                ]
            )
            return SUCCEEDED
        columns = ["sink", "query or write", "batch", "rows", "state", "decided", "open transactions"]
        rows = [
            (
                state.sink,
                each.key,
                each.batch_id,
                each.rows if each.rows >= 0 else "any",
                "done" if each.done else f"unfinished ({len(each.handles)})",
                _time(each.decided_ms),
                len(state.open_ids),
            )
            for state in states
            for each in state.decisions
        ]
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
    bootstrap_server: str | None,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    config_file: str | None,
    timeout: float,
) -> int:
    """Finish the decided batch of SINK, and abort the transactions that no decision needs.

    Call it when no process of the sink is running: a query that is running fails. The next start of the query does the
    same; this is for a query that is not started again.

    \b
    Examples:
      aioproducer spark-sink recover orders-job
      aioproducer spark-sink recover orders-job --accept-replay 41
    """

    async def work(cluster: KafkaSinkCluster) -> None:
        for each in await recover(cluster, accept, click.echo):
            click.echo(f"{each.key}: {'write' if each.batch_id is None else f'batch {each.batch_id}'} is done")

    return _with_cluster(bootstrap_server, settings, secrets, config_file, timeout, sink, decision_topic, work)


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
    bootstrap_server: str | None,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    config_file: str | None,
    timeout: float,
) -> int:
    """Delete decisions of SINK from the decision topic.

    A write that is forgotten writes its rows again if it is run again. So does a query whose last batch is unfinished:
    it writes all rows of that batch again, also those that are committed already. Call it when no process of the sink
    is running.

    \b
    Examples:
      aioproducer spark-sink forget nightly --older-than 90
      aioproducer spark-sink forget orders-job --key 5f0e8a52-3c51-4f0c-9f0a-0d3f5c3c6d2e
    """
    if (older_than is None) == (key is None):
        raise CommandUsageError("give either --older-than DAYS or --key QUERY_OR_WRITE")

    async def work(cluster: KafkaSinkCluster) -> None:
        before = None if older_than is None else time.time_ns() // 1_000_000 - int(older_than * _DAY_MS)
        for each in await forget(cluster, key=key, decided_before_ms=before):
            click.echo(f"{each.key}: forgotten")

    return _with_cluster(bootstrap_server, settings, secrets, config_file, timeout, sink, decision_topic, work)


def _with_cluster(
    bootstrap_server: str | None,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    config_file: str | None,
    timeout: float,
    sink: str,
    decision_topic: str,
    work: Callable[[KafkaSinkCluster], Awaitable[None]],
) -> int:
    config = client_config(bootstrap_server, settings, secrets, config_file)

    async def body() -> int:
        async with KafkaSinkCluster(config, sink, decision_topic, timeout) as cluster:
            # Without this topic there is no such sink, and taking it over would create its transactional id.
            await cluster.admin.describe_topics([decision_topic])
            await work(cluster)
        return SUCCEEDED

    return run_briefly(body)


def _described(decision: Decision) -> dict[str, object]:
    return {
        "sink": decision.sink,
        "key": decision.key,
        "batch": decision.batch_id,
        "rows": decision.rows if decision.rows >= 0 else None,
        "done": decision.done,
        "run": decision.run_id,
        "decided_ms": decision.decided_ms,
        "transactions": [each.transactional_id for each in decision.handles],
    }


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
