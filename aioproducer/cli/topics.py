"""``aioproducer topics``: list, create, describe and delete topics."""

from __future__ import annotations

from typing import Any

import click

from aioproducer._common.texts import counted
from aioproducer.admin import Admin, NoSuchTopicError
from aioproducer.cli.administration import administer
from aioproducer.cli.exits import EXPLANATION
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options, pairs
from aioproducer.cli.output import print_json, print_table
from aioproducer.errors import TopicExistsError


@click.group("topics", epilog=EXPLANATION)
def command() -> None:
    """List, create, describe and delete topics."""


@command.command("list", epilog=EXPLANATION)
@click.option("--internal", is_flag=True, help="Include the cluster's internal topics.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of names.")
@cluster_options
@diagnosis_options
def list_topics(
    internal: bool,
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Print the names of all topics, one a line."""

    async def work(admin: Admin) -> None:
        names = await admin.list_topics(internal=internal)
        if as_json:
            print_json(names)
            return
        for name in names:
            print(name)

    return administer(cluster, work)


@command.command("create", epilog=EXPLANATION)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions.  [default: the broker's]")
@click.option(
    "-r", "--replication-factor", type=click.IntRange(min=1), help="Copies of each partition.  [default: the broker's]"
)
@click.option("--set", "configs", multiple=True, metavar="NAME=VALUE", help="A topic key, as --set retention.ms=-1.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@cluster_options
@diagnosis_options
def create(
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    cluster: ClusterOptions,
) -> int:
    """Create topics, and wait until they can be used.

    \b
    Example:
      aioproducer topics create clicks -p 6 --set compression.type=zstd
    """
    topic_configs = pairs(configs, "--set")

    async def work(admin: Admin) -> None:
        for topic in topics:
            try:
                await admin.create_topic(topic, partitions or -1, replication_factor or -1, configs=topic_configs)
            except TopicExistsError:
                if not if_not_exists:
                    raise

    return administer(cluster, work)


@command.command("describe", epilog=EXPLANATION)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object a topic.")
@cluster_options
@diagnosis_options
def describe(
    topics: tuple[str, ...],
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Show the partitions of topics (all, if none is named): leader, replicas, offsets, and configured keys."""

    async def work(admin: Admin) -> None:
        names = topics or tuple(await admin.list_topics())
        described = [await _describe(admin, name) for name in names]
        if as_json:
            print_json(described)
            return
        for position, topic in enumerate(described):
            if position:
                print()
            configs = " ".join(f"{key}={value}" for key, value in topic["configs"].items())
            print(
                f"{topic['topic']}: {counted(len(topic['partitions']), 'partition')}{', ' + configs if configs else ''}"
            )
            columns = ["partition", "leader", "replicas", "in sync", "first offset", "end offset", "records"]
            rows = [
                (
                    each["partition"],
                    "none" if each["leader"] is None else each["leader"],
                    ",".join(map(str, each["replicas"])),
                    ",".join(map(str, each["in_sync_replicas"])),
                    each["first_offset"],
                    each["end_offset"],
                    each["end_offset"] - each["first_offset"],
                )
                for each in topic["partitions"]
            ]
            print_table(columns, rows, numbers=[*columns[:2], *columns[4:]])

    return administer(cluster, work)


async def _describe(admin: Admin, name: str) -> dict[str, Any]:  # Any: as JSON has it
    (topic,) = await admin.describe_topics([name])
    numbers = [each.partition for each in topic.partitions]
    first = await admin.list_offsets(name, dict.fromkeys(numbers, "earliest"))
    end = await admin.list_offsets(name, dict.fromkeys(numbers, "latest"))
    configs = await admin.topic_config(name)
    return {
        "topic": name,
        "topic_id": None if topic.topic_id is None else topic.topic_id.hex(),
        "configs": {entry.name: entry.value for entry in configs if entry.is_set},
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "in_sync_replicas": list(each.in_sync_replicas),
                "first_offset": first[each.partition],
                "end_offset": end[each.partition],
            }
            for each in topic.partitions
        ],
    }


@command.command("delete", epilog=EXPLANATION)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@cluster_options
@diagnosis_options
def delete(
    topics: tuple[str, ...],
    if_exists: bool,
    cluster: ClusterOptions,
) -> int:
    """Delete topics and all their records."""

    async def work(admin: Admin) -> None:
        for topic in topics:
            try:
                await admin.delete_topic(topic)
            except NoSuchTopicError:
                if not if_exists:
                    raise

    return administer(cluster, work)
