"""Admin's calls about groups and ``aioproducer groups`` on Apache Kafka; judges are its tool and confluent-kafka."""

from __future__ import annotations

import csv
import json
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from aioproducer.admin import Admin
from aioproducer.cli import main
from aioproducer.errors import (
    GroupIdNotFoundError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    PartialFailureError,
    UnknownMemberIdError,
)
from aioproducer.record import TopicPartition
from tests.kafka import jars
from tests.kafka.cluster import KafkaCluster

TIMEOUT = 30


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(one_node: KafkaCluster) -> str:
    """Ten records in partition 0, the times of which are 0 to 9 seconds after 1970, one in 1, and none in 2."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    one_node.create_topic(name, partitions=3, config={"retention.ms": "-1"})
    producer = ck.Producer({"bootstrap.servers": one_node.bootstrap_servers})
    for number in range(10):
        producer.produce(name, str(number), partition=0, timestamp=max(number * 1000, 1))
    producer.produce(name, "x", partition=1, timestamp=1)
    assert producer.flush(TIMEOUT) == 0
    return name


@contextmanager
def member_of(one_node: KafkaCluster, group: str, topic: str, **config: object) -> Iterator[None]:
    """A member of confluent-kafka that reads, and commits nothing; it has its partitions."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": one_node.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )
    assigned, stopped = threading.Event(), threading.Event()
    consumer.subscribe([topic], on_assign=lambda consumer, partitions: assigned.set())

    def poll() -> None:
        while not stopped.is_set():
            consumer.poll(0.05)

    thread = threading.Thread(target=poll, name="confluent-consumer")
    thread.start()
    try:
        assert assigned.wait(TIMEOUT)
        yield
    finally:
        stopped.set()
        thread.join(TIMEOUT)
        consumer.close()


@pytest.fixture
def judge(one_node: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": one_node.bootstrap_servers, "log_level": 0})


@contextmanager
def outsider(one_node: KafkaCluster, group: str) -> Iterator[ck.Consumer]:
    """A consumer of confluent-kafka that uses the group's offsets, and is no member."""
    settings = {"bootstrap.servers": one_node.bootstrap_servers, "group.id": group, "log_level": 0}
    consumer = ck.Consumer({**settings, "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def committed_of(one_node: KafkaCluster, group: str, topic: str) -> dict[int, int]:
    with outsider(one_node, group) as consumer:
        found = consumer.committed([ck.TopicPartition(topic, partition) for partition in range(3)], TIMEOUT)
    return {each.partition: each.offset for each in found if each.offset >= 0}


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(one_node: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setenv("AIOPRODUCER_BOOTSTRAP_SERVERS", one_node.bootstrap_servers)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return run


def resets_of_kafka(one_node: KafkaCluster, group: str, *arguments: str) -> dict[int, int]:
    """What ``kafka-consumer-groups.sh --reset-offsets --dry-run`` would commit."""
    command = [jars.java(), "-Xmx128m", *jars.SHORT_LIVED, "-cp", f"{jars.resolve(jars.TOOLS)}/*"]
    command += ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    command += ["--bootstrap-server", one_node.bootstrap_servers, "--group", group, "--timeout", "30000"]
    command += ["--reset-offsets", "--dry-run", "--export", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [row for row in csv.reader(ended.stdout.splitlines()) if len(row) == 3]
    return {int(partition): int(offset) for _, partition, offset in rows}


def test_offsets_are_reset_to_those_of_kafkas_tool(call: Call, one_node: KafkaCluster, topic: str, group: str) -> None:
    start = {0: 7, 1: 1, 2: 0}
    expected = {
        ("--shift-by", "-5"): {0: 2, 1: 0, 2: 0},
        ("--to-offset", "4"): {0: 4, 1: 1, 2: 0},
        ("--to-datetime", "1970-01-01T00:00:03.000"): {0: 3, 1: 1, 2: 0},
    }
    common = ("groups", "reset-offsets", group, "--all-topics")
    names = ",".join(map(str, start))
    assert call("groups", "reset-offsets", group, "--topic", f"{topic}:{names}", "--to-latest", "--execute")[0] == 0
    assert committed_of(one_node, group, topic) == {0: 10, 1: 1, 2: 0}
    with outsider(one_node, group) as consumer:
        offsets = [ck.TopicPartition(topic, partition, offset) for partition, offset in start.items()]
        consumer.commit(offsets=offsets, asynchronous=False)
    for arguments, offsets_after in expected.items():
        code, out, err = call(*common, *arguments, "--json")
        assert (code, "nothing was changed" in err) == (0, True)
        planned = {each["partition"]: each["new_offset"] for each in json.loads(out)}
        assert planned == offsets_after
    # Each start of a JVM takes seconds.
    for arguments in list(expected)[1:]:
        assert resets_of_kafka(one_node, group, "--all-topics", *arguments) == expected[arguments]
    assert committed_of(one_node, group, topic) == start
    assert call(*common, "--shift-by", -5, "--execute")[0] == 0
    assert committed_of(one_node, group, topic) == {0: 2, 1: 0, 2: 0}


def test_a_group_with_a_member_is_described_as_by_confluent_and_protected(
    call: Call, one_node: KafkaCluster, judge: AdminClient, topic: str, group: str
) -> None:
    assert call("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-offset", 4, "--execute")[0] == 0
    with member_of(one_node, group, topic):
        (described,) = json.loads(call("groups", "describe", group, "--json")[1])
        theirs = judge.describe_consumer_groups([group])[group].result(TIMEOUT)
        (member,) = theirs.members
        assert (described["state"], described["assignor"]) == ("Stable", theirs.partition_assignor)
        assert described["coordinator"] == theirs.coordinator.id
        assert [each["member_id"] for each in described["members"]] == [member.member_id]
        assert f"/{described['members'][0]['host']}" == member.host
        owned = {(each.topic, each.partition) for each in member.assignment.topic_partitions}
        assert {(each["topic"], each["partition"]) for each in described["offsets"]} == owned
        assert [(each["committed"], each["end_offset"], each["lag"]) for each in described["offsets"]] == [
            (4, 10, 6),
            (None, 1, None),
            (None, 0, None),
        ]
        code, _, err = call("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
        assert (code, "is Stable and has 1 member" in err) == (1, True)
        code, _, err = call("groups", "delete", group)
        assert (code, "the group has members" in err) == (1, True)
        listed = json.loads(call("groups", "list", "--state", "Stable", "--type", "classic", "--json")[1])
        assert group in [each["group_id"] for each in listed]
    assert committed_of(one_node, group, topic) == {0: 4}
    assert call("groups", "delete", group) == (0, "", "")
    code, _, err = call("groups", "delete", group)
    assert (code, "there is no such group" in err) == (1, True)


async def test_calls_fail_in_part_and_members_are_removed(one_node: KafkaCluster, topic: str, group: str) -> None:
    other = one_node.create_topic(f"{topic}-other", partitions=1)
    async with Admin(bootstrap_servers=one_node.bootstrap_servers) as admin:
        await admin.alter_group_offsets(group, {(topic, 0): 3, (other, 0): 0})
        with member_of(one_node, group, topic, group_instance_id=f"{group}-static"):
            with pytest.raises(UnknownMemberIdError, match="only they can commit"):
                await admin.alter_group_offsets(group, {(topic, 0): 1})
            with pytest.raises(GroupNotEmptyError):
                await admin.delete_groups([group])
            with pytest.raises(PartialFailureError) as failed:
                await admin.delete_group_offsets(group, [(topic, 0), (other, 0)])
            assert isinstance(failed.value.failures[TopicPartition(topic, 0)], GroupSubscribedToTopicError)
            with pytest.raises(PartialFailureError) as failed:
                await admin.describe_groups([group, f"{group}-none"])
            assert isinstance(failed.value.failures[f"{group}-none"], GroupIdNotFoundError)
            with pytest.raises(UnknownMemberIdError):
                await admin.remove_members(group, group_instance_ids=["none"])
        (described,) = await admin.describe_groups([group])
        # A static member does not leave when it is closed.
        assert [each.group_instance_id for each in described.members] == [f"{group}-static"]
        await admin.remove_members(group, reason="test")
        (described,) = await admin.describe_groups([group])
        assert (described.state, described.members) == ("Empty", ())
        assert list((await admin.list_group_offsets({group: None}))[group]) == [(topic, 0)]
        await admin.delete_groups([group])
        assert await admin.list_group_offsets([group]) == {group: {}}


async def test_a_group_of_the_new_protocol_is_listed_and_not_described(
    one_node: KafkaCluster, topic: str, group: str
) -> None:
    async with Admin(bootstrap_servers=one_node.bootstrap_servers) as admin:
        with member_of(one_node, group, topic, group_protocol="consumer"):
            listed = await admin.list_groups(types=["consumer"])
            assert [each.group_type for each in listed if each.group_id == group] == ["consumer"]
            with pytest.raises(GroupIdNotFoundError, match=r"there is no classic group .* list_groups\(\) shows"):
                await admin.describe_groups([group])
            with pytest.raises(UnknownMemberIdError):
                await admin.alter_group_offsets(group, {(topic, 0): 1})
