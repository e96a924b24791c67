"""``aioproducer transactions``: list, describe and abort transactions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from aioproducer.admin import Admin, ProducerDescription, TransactionDescription
from aioproducer.cli.administration import administer
from aioproducer.cli.exits import EXPLANATION, CommandError, CommandUsageError
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options
from aioproducer.cli.output import print_json, print_table
from aioproducer.record import TopicPartition

_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence")


@click.group("transactions", epilog=EXPLANATION)
def command() -> None:
    """List and describe transactions, and abort those that are stuck."""


@command.command("list", epilog=EXPLANATION)
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only transactions in this state; may be repeated.",
)
@click.option("--producer-id", "producer_ids", type=int, multiple=True, metavar="ID", help="Only this producer id.")
@click.option(
    "--open-for",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Only transactions that have been open for longer.",
)
@click.option("--pattern", metavar="REGEX", help="Only transactional ids that match as a whole.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object a transactional id.")
@cluster_options
@diagnosis_options
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    open_for: float | None,
    pattern: str | None,
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Print the transactional ids of all brokers, with the state of the last transaction of each.

    \b
    Examples:
      aioproducer transactions list --open-for 300
      aioproducer transactions list --pattern 'orders-.*' --json
    """
    if open_for is not None:
        if states and states != ("Ongoing",):
            raise CommandUsageError("--open-for shows open transactions: remove --state, or use --state Ongoing")
        states = ("Ongoing",)

    async def work(admin: Admin) -> None:
        try:
            found = await admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                duration_ms=None if open_for is None else int(open_for * 1000),
                pattern=pattern,
            )
        except ValueError as error:
            raise CommandUsageError(str(error)) from error
        if as_json:
            print_json(
                [
                    {
                        "transactional_id": each.transactional_id,
                        "state": each.state,
                        "producer_id": each.producer_id,
                        "coordinator": each.coordinator,
                    }
                    for each in found
                ]
            )
            return
        columns = ["transactional id", "state", "producer id", "coordinator"]
        rows = [(each.transactional_id, each.state, each.producer_id, each.coordinator) for each in found]
        print_table(columns, rows, numbers=columns[2:])

    return administer(cluster, work)


@command.command("describe", epilog=EXPLANATION)
@click.argument("transactional_ids", nargs=-1, metavar="[TRANSACTIONAL_ID...]")
@click.option(
    "--partition", "partition", metavar="TOPIC:NUMBER", help="Describe the producers that this partition knows instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object an id, or a producer.")
@cluster_options
@diagnosis_options
def describe(
    transactional_ids: tuple[str, ...],
    partition: str | None,
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Show the last transaction of transactional ids: state, producer, start, time-out, partitions.

    With --partition, show the producers of one partition, and where their open transactions begin.
    """
    if bool(transactional_ids) == (partition is not None):
        raise CommandUsageError("give either transactional ids or --partition TOPIC:NUMBER")
    where = None if partition is None else _parse_partition(partition)

    async def work(admin: Admin) -> None:
        if where is not None:
            _print_producers((await admin.describe_producers([where]))[where], as_json)
        else:
            _print_transactions(await admin.describe_transactions(transactional_ids), as_json)

    return administer(cluster, work)


def _print_transactions(described: Sequence[TransactionDescription], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "transactional_id": each.transactional_id,
                    "state": each.state,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "coordinator": each.coordinator,
                    "timeout_ms": each.timeout_ms,
                    "start_time_ms": each.start_time_ms,
                    "partitions": [
                        {"topic": topic, "partition": number} for topic, number in sorted(each.topic_partitions)
                    ],
                }
                for each in described
            ]
        )
        return
    for position, each in enumerate(described):
        if position:
            print()
        rows = [
            ("state", each.state),
            ("producer", f"id {each.producer_id}, epoch {each.producer_epoch}"),
            ("coordinator", f"broker {each.coordinator}"),
            ("begun", "" if each.start_time_ms is None else _time(each.start_time_ms)),
            ("time-out", f"{each.timeout_ms / 1000:g} s"),
            ("partitions", ", ".join(f"{topic}:{number}" for topic, number in sorted(each.topic_partitions))),
        ]
        print(f"{each.transactional_id}:")
        for title, text in rows:
            if text:
                print(f"  {title + ':':<13}{text}")


def _print_producers(producers: Sequence[ProducerDescription], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "last_sequence": each.last_sequence,
                    "last_timestamp_ms": each.last_timestamp_ms,
                    "coordinator_epoch": each.coordinator_epoch,
                    "transaction_start_offset": each.transaction_start_offset,
                }
                for each in producers
            ]
        )
        return
    columns = ["producer id", "epoch", "last sequence", "last batch", "coordinator epoch", "transaction from offset"]
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            _time(each.last_timestamp_ms) if each.last_timestamp_ms >= 0 else None,
            each.coordinator_epoch,
            each.transaction_start_offset,
        )
        for each in producers
    ]
    print_table(columns, rows, numbers=columns)


@command.command("abort", epilog=EXPLANATION)
@click.argument("transactional_ids", nargs=-1, metavar="[TRANSACTIONAL_ID...]")
@click.option(
    "--partition", "partition", metavar="TOPIC:NUMBER", help="Abort a hanging transaction in this partition alone."
)
@click.option("--producer-id", type=int, metavar="ID", help="With --partition: the producer of that transaction.")
@cluster_options
@diagnosis_options
def abort(
    transactional_ids: tuple[str, ...],
    partition: str | None,
    producer_id: int | None,
    cluster: ClusterOptions,
) -> int:
    """Abort the open transactions of TRANSACTIONAL_IDs, and fence their producers.

    A producer that is still running fails; a commit that has begun is completed. With --partition and --producer-id,
    write the marker of an abort into one partition: for a transaction that its coordinator has forgotten, and that
    keeps readers of committed records waiting. 'describe --partition' shows it.

    \b
    Examples:
      aioproducer transactions abort orders-3
      aioproducer transactions abort --partition orders:0 --producer-id 1017
    """
    if bool(transactional_ids) == (partition is not None):
        raise CommandUsageError("give either transactional ids, or --partition TOPIC:NUMBER with --producer-id")
    if (partition is None) != (producer_id is None):
        raise CommandUsageError("--partition and --producer-id belong together")
    where = None if partition is None else _parse_partition(partition)

    async def work(admin: Admin) -> None:
        if where is not None and producer_id is not None:
            await _abort_in_partition(admin, where, producer_id)
            return
        # An id that does not exist must not be created.
        await admin.describe_transactions(transactional_ids)
        await admin.fence_producers(transactional_ids)

    return administer(cluster, work)


async def _abort_in_partition(admin: Admin, where: TopicPartition, producer_id: int) -> None:
    """
    Raises:
        CommandError: this producer has no open transaction there, or its coordinator knows of it.
    """
    producers = (await admin.describe_producers([where]))[where]
    found = next((each for each in producers if each.producer_id == producer_id), None)
    if found is None or found.transaction_start_offset is None:
        raise CommandError(f"producer id {producer_id} has no open transaction in {where.topic}:{where.partition}")
    listed = await admin.list_transactions(producer_ids=[producer_id])
    for each in await admin.describe_transactions([each.transactional_id for each in listed]):
        if where in each.topic_partitions:
            raise CommandError(
                f"its coordinator knows this transaction: 'aioproducer transactions abort {each.transactional_id}' "
                "aborts it in all of its partitions"
            )
    await admin.abort_transaction(where, found.producer_id, found.producer_epoch, found.coordinator_epoch)


def _parse_partition(text: str) -> TopicPartition:
    """
    Raises:
        CommandUsageError: the text is not TOPIC:NUMBER.
    """
    topic, colon, number = text.rpartition(":")
    if not (colon and topic and number.isdecimal()):
        raise CommandUsageError(f"--partition takes TOPIC:NUMBER, not {text!r}")
    return TopicPartition(topic, int(number))


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
