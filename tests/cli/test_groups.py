"""``aioproducer groups``: wrong usage, what is printed, and what is changed, with the embedded broker."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime

import pytest

from aioproducer.admin import Admin
from aioproducer.cli.exits import FAILED, SUCCEEDED, USAGE, CommandUsageError
from aioproducer.cli.group_offsets import parse_target, parse_topics
from aioproducer.record import TopicPartition
from tests.joining import join_group

pytestmark = pytest.mark.usefixtures("environment")

_numbers = itertools.count(1)


@pytest.fixture
def group():
    return f"group-{next(_numbers)}"


@pytest.fixture
def asked(cluster):
    """Run a coroutine function with an Admin of the cluster."""

    def ask(work):
        async def body():
            async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                return await work(admin)

        return asyncio.run(body())

    return ask


@pytest.fixture
def filled(call, topic, tmp_path):
    """A topic with ten records in partition 0, the times of which are 0 to 9 seconds after 1970, and one in 1."""
    rows = tmp_path / "rows.csv"
    rows.write_text("t,v\n" + "".join(f"{number * 1000},{number}\n" for number in range(10)))
    other = tmp_path / "other.csv"
    other.write_text("t,v\n0,x\n")
    for partition, file in enumerate((rows, other)):
        columns = ["--timestamp", "t", "--value", "v", "--partition", partition]
        ended = call("produce", topic, file, *columns, "-q")
        assert ended.code == SUCCEEDED, ended.err
    return topic


def committed_of(asked, group):
    offsets = asked(lambda admin: admin.list_group_offsets([group]))[group]
    return {where.partition: offset.offset for where, offset in offsets.items()}


ONE_OF = "give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration and --shift-by"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--all-topics"], ONE_OF),
        (["--all-topics", "--to-earliest", "--to-latest"], ONE_OF),
        (["--to-earliest"], "give either --topic or --all-topics"),
        (["--to-earliest", "--all-topics", "--topic", "t"], "give either --topic or --all-topics"),
        (["--to-earliest", "--topic", "t", "--dry-run", "--execute"], "give either --dry-run or --execute"),
        (["--to-earliest", "--topic", "t:"], "--topic takes TOPIC or TOPIC:PARTITION,PARTITION, not 't:'"),
        (["--to-earliest", "--topic", "t", "--topic", "t:1"], "--topic names 't' twice: use t:PARTITION,PARTITION"),
        (["--to-offset", "-1", "--topic", "t"], "-1 is not in the range"),
        (["--to-datetime", "noon", "--topic", "t"], "--to-datetime takes a time in ISO 8601"),
        (["--by-duration", "1h", "--topic", "t"], "--by-duration takes a duration in ISO 8601, as P7D or PT1H30M"),
        (["--by-duration", "P9999999D", "--topic", "t"], "P9999999D: the time is out of range"),
    ],
)
def test_wrong_usage_is_rejected_in_one_line(call, arguments, text):
    ended = call("groups", "reset-offsets", "g", *arguments)
    assert (ended.code, ended.out) == (USAGE, "")
    assert text in ended.err
    assert ended.err.count("\n") == 1


def test_partitions_follow_the_topic():
    assert parse_topics(["a", "b:0", "c:2,0,2"]) == {"a": None, "b": [0], "c": [2, 0]}
    for text in ("", ":1", "a:x", "a:1,", "a:-1"):
        with pytest.raises(CommandUsageError, match="--topic takes"):
            parse_topics([text])


def target(**chosen):
    nothing = dict.fromkeys(("to_offset", "to_datetime", "by_duration", "shift_by"))
    fields = {"to_earliest": False, "to_latest": False, **nothing, **chosen}
    return parse_target(**fields, now=lambda: datetime(2026, 1, 31, 12, tzinfo=UTC))


def test_a_time_without_a_zone_is_utc_as_in_kafka():
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00.000", "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00"):
        assert target(to_datetime=text).spec == noon
    assert target(by_duration="P1DT1H").spec == datetime(2026, 1, 30, 11, tzinfo=UTC)


def test_groups_are_listed_described_and_deleted(call, asked, filled, group):
    offsets = {(filled, 0): 7, (filled, 1): 1}
    asked(lambda admin: admin.alter_group_offsets(group, offsets))
    listed = {each["group_id"]: each for each in json.loads(call("groups", "list", "--json").out)}
    assert listed[group] == {
        "group_id": group,
        "state": "Empty",
        "type": "classic",
        "protocol_type": "",
        "coordinator": 1,
    }
    lines = call("groups", "list", "--state", "Empty", "--type", "classic").out.splitlines()
    assert lines[0].split() == ["group", "state", "type", "protocol", "type", "coordinator"]
    assert [group, "Empty", "classic", "1"] in [line.split() for line in lines[1:]]
    assert group not in call("groups", "list", "--state", "Stable").out

    lines = call("groups", "describe", group).out.splitlines()
    assert lines[0] == f"{group}: Empty, 0 members, coordinator broker 1"
    assert lines[1].split() == ["topic", "partition", "committed", "end", "offset", "lag", "member", "host"]
    assert [line.split() for line in lines[2:]] == [[filled, "0", "7", "10", "3"], [filled, "1", "1", "1", "0"]]
    assert f"{group}: Empty" in call("groups", "describe").out

    assert call("groups", "delete", group) == (SUCCEEDED, "", "")
    ended = call("groups", "describe", group)
    assert (ended.code, f"group '{group}': there is no classic group of this id" in ended.err) == (FAILED, True)
    ended = call("groups", "delete", group)
    assert (ended.code, "there is no such group: check the spelling" in ended.err) == (FAILED, True)
    assert call("groups", "delete", group, "--if-exists") == (SUCCEEDED, "", "")


def test_a_group_with_members_is_described_and_is_neither_reset_nor_deleted(call, cluster, asked, filled, group):
    async def join(admin):
        await admin.alter_group_offsets(group, {(filled, 0): 7})
        # The first commit creates the group; partition 1 gets no offset.
        return await join_group(admin, group, [TopicPartition(filled, 0), TopicPartition(filled, 1)])

    member_id = asked(join)
    try:
        (described,) = json.loads(call("groups", "describe", group, "--json").out)
        (member,) = described.pop("members")
        assert described == {
            "group_id": group,
            "state": "Stable",
            "protocol_type": "consumer",
            "assignor": "range",
            "coordinator": 1,
            "offsets": [
                {
                    "topic": filled,
                    "partition": partition,
                    "committed": committed,
                    "end_offset": end,
                    "lag": lag,
                    "member_id": member_id,
                }
                for partition, committed, end, lag in ((0, 7, 10, 3), (1, None, 1, None))
            ],
        }
        assert (member["member_id"], member["group_instance_id"], member["partitions"]) == (member_id, None, 2)
        assert member["host"] in ("127.0.0.1", "::1")
        lines = call("groups", "describe", group).out.splitlines()
        assert lines[0] == f"{group}: Stable, 1 member, assignor range, coordinator broker 1"
        assert lines[3].split() == [filled, "1", "-", "1", "-", member_id, member["host"]]

        for arguments in (["--execute"], []):
            ended = call("groups", "reset-offsets", group, "--all-topics", "--to-earliest", *arguments)
            assert (ended.code, ended.out) == (FAILED, "")
            assert f"group '{group}' is Stable and has 1 member: close them" in ended.err
        ended = call("groups", "delete", group)
        assert (ended.code, "the group has members: close them" in ended.err) == (FAILED, True)
    finally:
        asked(lambda admin: admin.remove_members(group))
    ended = call("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    assert (ended.code, committed_of(asked, group)) == (SUCCEEDED, {0: 0})


def test_members_without_partitions_have_a_line(call, asked, topic, group):
    async def join(admin):
        await admin.alter_group_offsets(group, {(topic, 0): 0})
        return await join_group(admin, group, [], group_instance_id=f"{group}-static")

    member_id = asked(join)
    try:
        lines = call("groups", "describe", group).out.splitlines()
        assert lines[-1].startswith(f"without partitions: {member_id} at ")
    finally:
        asked(lambda admin: admin.remove_members(group, group_instance_ids=[f"{group}-static"]))


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 1}),
        (["--to-offset", "4"], {0: 4, 1: 1}),
        (["--to-datetime", "1970-01-01T00:00:03.000"], {0: 3, 1: 1}),
        (["--to-datetime", "1970-01-01T01:00:03+01:00"], {0: 3, 1: 1}),
        (["--by-duration", "P1D"], {0: 10, 1: 1}),
        (["--shift-by", "2"], {0: 9, 1: 1}),
        (["--shift-by", "-3"], {0: 4, 1: 0}),
        (["--shift-by", "-100"], {0: 0, 1: 0}),
    ],
)
def test_offsets_are_reset_as_by_kafkas_tool(call, asked, filled, group, arguments, offsets):
    asked(lambda admin: admin.alter_group_offsets(group, {(filled, 0): 7, (filled, 1): 1}))
    ended = call("groups", "reset-offsets", group, "--all-topics", *arguments, "--json")
    planned = {each["partition"]: each["new_offset"] for each in json.loads(ended.out)}
    assert (ended.code, planned) == (SUCCEEDED, offsets)
    assert "nothing was changed: add --execute to commit the new offsets" in ended.err
    assert committed_of(asked, group) == {0: 7, 1: 1}
    ended = call("groups", "reset-offsets", group, "--all-topics", *arguments, "--execute", "--json")
    assert (ended.code, json.loads(ended.out)[0]["committed"]) == (SUCCEEDED, 7)
    assert "nothing was changed" not in ended.err
    assert committed_of(asked, group) == offsets


def test_a_group_that_does_not_exist_is_created_for_named_partitions(call, asked, filled, group):
    ended = call("groups", "reset-offsets", group, "--all-topics", "--to-latest")
    assert (ended.code, "has no committed offsets: name topics with --topic" in ended.err) == (FAILED, True)
    ended = call("groups", "reset-offsets", group, "--topic", filled, "--shift-by", 1)
    assert (ended.code, f"{filled}:0 has no committed offset to shift: use --to-offset" in ended.err) == (FAILED, True)
    lines = call("groups", "reset-offsets", group, "--topic", f"{filled}:0", "--to-offset", 99, "--execute")
    assert lines.err == f"aioproducer groups: {filled}:0: offset 99 is beyond the end, 10, which is used instead\n"
    assert [line.split() for line in lines.out.splitlines()] == [
        ["topic", "partition", "committed", "new", "offset"],
        [filled, "0", "-", "10"],
    ]
    assert committed_of(asked, group) == {0: 10}
    ended = call("groups", "reset-offsets", group, "--topic", filled, "--to-earliest", "--execute")
    assert (ended.code, committed_of(asked, group)) == (SUCCEEDED, {0: 0, 1: 0})
    ended = call("groups", "reset-offsets", group, "--topic", f"{filled}:7", "--to-earliest")
    assert (ended.code, "has no partition 7" in ended.err) == (FAILED, True)
    assert call("groups", "delete", group).code == SUCCEEDED
