"""``aioproducer groups``: list, describe and delete consumer groups, and reset their offsets."""

from __future__ import annotations

from typing import Any, get_args

import click

from aioproducer._common.texts import counted
from aioproducer.admin import Admin, GroupDescription, GroupState, GroupType
from aioproducer.cli.administration import administer
from aioproducer.cli.exits import EXPLANATION, CommandError, CommandUsageError
from aioproducer.cli.group_offsets import Reset, Target, end_offsets, parse_target, parse_topics, plan_resets
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options
from aioproducer.cli.output import note, print_json, print_table
from aioproducer.cli.positions import LARGEST_OFFSET
from aioproducer.errors import GroupIdNotFoundError

_COMMAND = "groups"
_CLASSIC = "classic"


@click.group(_COMMAND, epilog=EXPLANATION)
def command() -> None:
    """List, describe and delete consumer groups, and reset their offsets."""


@command.command("list", epilog=EXPLANATION)
@click.option(
    "--state",
    "states",
    type=click.Choice(get_args(GroupState)),
    multiple=True,
    help="Only groups in this state; may be repeated.",
)
@click.option(
    "--type", "types", type=click.Choice(get_args(GroupType)), multiple=True, help="Only groups of this type."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object a group.")
@cluster_options
@diagnosis_options
def list_groups(
    states: tuple[GroupState, ...],
    types: tuple[GroupType, ...],
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Print the groups of all brokers, with their states.

    \b
    Examples:
      aioproducer groups list --state Empty
      aioproducer groups list --type classic --json
    """

    async def work(admin: Admin) -> None:
        found = await admin.list_groups(states=states, types=types)
        if as_json:
            print_json(
                [
                    {
                        "group_id": each.group_id,
                        "state": each.state,
                        "type": each.group_type,
                        "protocol_type": each.protocol_type,
                        "coordinator": each.coordinator,
                    }
                    for each in found
                ]
            )
            return
        columns = ["group", "state", "type", "protocol type", "coordinator"]
        rows = [(each.group_id, each.state, each.group_type, each.protocol_type, each.coordinator) for each in found]
        print_table(columns, rows, numbers=columns[4:])

    return administer(cluster, work)


@command.command("describe", epilog=EXPLANATION)
@click.argument("groups", nargs=-1, metavar="[GROUP...]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object a group.")
@cluster_options
@diagnosis_options
def describe(
    groups: tuple[str, ...],
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Show the members of groups, and for each partition the committed offset, the end and the lag.

    Without GROUP, show all classic groups. The lag is the number of offsets between the committed one and the end of
    the partition; it counts the records of open transactions, too.

    \b
    Examples:
      aioproducer groups describe billing
      aioproducer groups describe billing --json
    """

    async def work(admin: Admin) -> None:
        names = groups
        if not names:
            listed = await admin.list_groups()
            names = tuple(each.group_id for each in listed if each.group_type in (_CLASSIC, None))
        described = [await _describe(admin, each) for each in await admin.describe_groups(dict.fromkeys(names))]
        if as_json:
            print_json(described)
            return
        for position, each in enumerate(described):
            if position:
                print()
            _print_group(each)

    return administer(cluster, work)


async def _describe(admin: Admin, group: GroupDescription) -> dict[str, Any]:  # Any: as JSON has it
    committed = (await admin.list_group_offsets([group.group_id]))[group.group_id]
    owners = {where: member for member in group.members for where in member.assignment or ()}
    partitions = sorted(committed.keys() | owners.keys())
    ends = await end_offsets(admin, partitions)
    offsets: list[dict[str, Any]] = []
    for where in partitions:
        offset = committed[where].offset if where in committed else None
        end = ends.get(where)
        owner = owners.get(where)
        offsets.append(
            {
                "topic": where.topic,
                "partition": where.partition,
                "committed": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else end - offset,
                "member_id": None if owner is None else owner.member_id,
            }
        )
    return {
        "group_id": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "client_id": each.client_id,
                "host": each.client_host.removeprefix("/"),
                "partitions": None if each.assignment is None else len(each.assignment),
            }
            for each in group.members
        ],
        "offsets": offsets,
    }


def _print_group(group: dict[str, Any]) -> None:
    members = group["members"]
    assignor = f", assignor {group['assignor']}" if group["assignor"] else ""
    print(
        f"{group['group_id']}: {group['state']}, {counted(len(members), 'member')}{assignor}, "
        f"coordinator broker {group['coordinator']}"
    )
    if group["offsets"]:
        hosts = {each["member_id"]: each["host"] for each in members}
        columns = ["topic", "partition", "committed", "end offset", "lag", "member", "host"]
        rows = [
            (
                each["topic"],
                each["partition"],
                *("-" if each[name] is None else each[name] for name in ("committed", "end_offset", "lag")),
                each["member_id"],
                hosts.get(each["member_id"]),
            )
            for each in group["offsets"]
        ]
        print_table(columns, rows, numbers=columns[1:5])
    for each in members:
        if not each["partitions"]:
            print(f"without partitions: {each['member_id']} at {each['host']}")


@command.command("reset-offsets", epilog=EXPLANATION)
@click.argument("group")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,...]", help="A topic, or partitions of it; may be repeated."
)
@click.option("--all-topics", is_flag=True, help="Every partition with a committed offset.")
@click.option("--to-earliest", is_flag=True, help="The first record of each partition.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option("--to-offset", type=click.IntRange(0, LARGEST_OFFSET), metavar="OFFSET", help="This offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="The first record of this time or later, as 2026-01-31T12:00:00Z; UTC if it has no zone.",
)
@click.option(
    "--by-duration", metavar="DURATION", help="The first record of this last time, in ISO 8601, as P7D or PT1H30M."
)
@click.option("--shift-by", type=int, metavar="N", help="N records after the committed offset, before it if negative.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets.  [default]")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object a partition.")
@cluster_options
@diagnosis_options
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    dry_run: bool,
    execute: bool,
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Change the offsets from which GROUP goes on to read; the group must have no members.

    Without --execute, the new offsets are only shown. An offset outside of a partition becomes its first or last one.

    \b
    Examples:
      aioproducer groups reset-offsets billing --all-topics --to-earliest
      aioproducer groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
      aioproducer groups reset-offsets billing --topic orders --to-datetime 2026-01-31T12:00:00Z --execute
    """
    target = parse_target(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_datetime=to_datetime,
        by_duration=by_duration,
        shift_by=shift_by,
    )
    if bool(topics) == all_topics:
        raise CommandUsageError("give either --topic or --all-topics")
    if dry_run and execute:
        raise CommandUsageError("give either --dry-run or --execute")
    wanted = parse_topics(topics) if topics else None

    async def work(admin: Admin) -> None:
        await _reset(admin, group, wanted, target, execute=execute, as_json=as_json)

    return administer(cluster, work)


async def _reset(
    admin: Admin,
    group_id: str,
    topics: dict[str, list[int] | None] | None,
    target: Target,
    *,
    execute: bool,
    as_json: bool,
) -> None:
    """
    Raises:
        CommandError: the group has members.
    """
    await _require_no_members(admin, group_id)
    resets = await plan_resets(admin, group_id, topics, target, lambda text: note(_COMMAND, text))
    if execute:
        await admin.alter_group_offsets(group_id, {each.where: each.new_offset for each in resets})
    _print_resets(resets, as_json)
    if not execute:
        note(_COMMAND, "nothing was changed: add --execute to commit the new offsets")


async def _require_no_members(admin: Admin, group_id: str) -> None:
    """
    Raises:
        CommandError: the group has members.
    """
    try:
        (described,) = await admin.describe_groups([group_id])
    except GroupIdNotFoundError:
        # As in Kafka's tool: the commit creates the group. It fails for a group of another type that has members.
        return
    if described.state != "Empty":
        raise CommandError(
            f"group {group_id!r} is {described.state} and has {counted(len(described.members), 'member')}: close them, "
            "and repeat the command"
        )


def _print_resets(resets: list[Reset], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "topic": each.where.topic,
                    "partition": each.where.partition,
                    "committed": each.committed,
                    "new_offset": each.new_offset,
                }
                for each in resets
            ]
        )
        return
    columns = ["topic", "partition", "committed", "new offset"]
    rows = [(*each.where, "-" if each.committed is None else each.committed, each.new_offset) for each in resets]
    print_table(columns, rows, numbers=columns[1:])


@command.command("delete", epilog=EXPLANATION)
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@click.option("--if-exists", is_flag=True, help="Succeed if a group does not exist.")
@cluster_options
@diagnosis_options
def delete(
    groups: tuple[str, ...],
    if_exists: bool,
    cluster: ClusterOptions,
) -> int:
    """Delete groups that have no members, with their offsets."""

    async def work(admin: Admin) -> None:
        for group in groups:
            try:
                await admin.delete_groups([group])
            except GroupIdNotFoundError:
                if not if_exists:
                    raise

    return administer(cluster, work)
