"""``aioproducer consume --group``: what is read, what is committed, and what a signal leaves for the next member."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import time

import pyarrow.parquet
import pytest

from aioproducer.cli.exits import FAILED, SUCCEEDED, USAGE

pytestmark = pytest.mark.usefixtures("environment")

TIMEOUT = 60
_numbers = itertools.count(1)


@pytest.fixture
def group():
    return f"reading-{next(_numbers)}"


@pytest.fixture
def filled(call, topic, tmp_path):
    """A topic with the records v0 to v9 in partition 0, and w0 to w4 in partition 1."""
    for partition, letter, count in ((0, "v", 10), (1, "w", 5)):
        (tmp_path / letter).write_text("".join(f"{letter}{number}\n" for number in range(count)))
        assert call("produce", topic, tmp_path / letter, "--partition", partition, "-q").code == SUCCEEDED
    return topic


ALL = sorted([*(f"v{number}" for number in range(10)), *(f"w{number}" for number in range(5))])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--partition", 0], "--group assigns the partitions: remove --partition"),
        (["--until", 3], "remove --until"),
        (["--from", 3], "'aioproducer groups reset-offsets g'"),
        (["--from", "2026-01-31"], "--from is beginning or end"),
    ],
)
def test_options_that_do_not_fit_a_group_are_wrong_usage(call, topic, arguments, text):
    ended = call("consume", topic, "--group", "g", *arguments)
    assert (ended.code, ended.out) == (USAGE, "")
    assert text in ended.err


def test_an_empty_group_is_wrong_usage(call, topic):
    assert "--group takes the name of a consumer group" in call("consume", topic, "--group", " ").err


def test_a_group_reads_each_record_once_over_several_commands(call, cluster, filled, group):
    ended = call("consume", filled, "--group", group)
    assert (ended.code, ended.err, sorted(ended.out.split())) == (SUCCEEDED, "", ALL)
    assert cluster.committed(group) == {(filled, 0): 10, (filled, 1): 5}
    assert cluster.members(group) == {}
    assert call("consume", filled, "--group", group) == (SUCCEEDED, "", "")
    assert call("groups", "reset-offsets", group, "--topic", f"{filled}:0", "--to-offset", 8, "--execute").code == 0
    ended = call("consume", filled, "--group", group, "--fields", "partition,offset,value", "-f", "jsonl")
    assert [json.loads(line) for line in ended.out.splitlines()] == [
        {"partition": 0, "offset": 8, "value": "v8"},
        {"partition": 0, "offset": 9, "value": "v9"},
    ]


def test_a_new_group_begins_at_the_end_on_demand(call, cluster, filled, group):
    assert call("consume", filled, "--group", group, "--from", "end") == (SUCCEEDED, "", "")


def test_no_more_is_committed_than_was_asked_for(call, cluster, filled, group):
    seen = []
    for count in (4, 1, 7, 99):
        ended = call("consume", filled, "--group", group, "--max-records", count)
        assert ended.code == SUCCEEDED
        seen += ended.out.split()
        assert sum(cluster.committed(group).values()) == len(seen)
    assert sorted(seen) == ALL


def test_parquet_is_committed_when_the_file_is_finished(call, cluster, filled, group, tmp_path):
    file = tmp_path / "read.parquet"
    ended = call("consume", filled, "--group", group, "-o", file, "-q")
    assert (ended.code, f"15 records are in {file}" in ended.err) == (SUCCEEDED, True)
    values = pyarrow.parquet.read_table(file).column("value").to_pylist()
    assert sorted(value.decode() for value in values) == ALL
    assert cluster.committed(group) == {(filled, 0): 10, (filled, 1): 5}


def test_what_cannot_be_written_is_not_committed(call, cluster, filled, group):
    ended = call("consume", filled, "--group", group, "-o", "/dev/full", "-q")
    assert (ended.code, "/dev/full cannot be written" in ended.err) == (FAILED, True)
    assert sum(cluster.committed(group).values()) == 0
    assert sorted(call("consume", filled, "--group", group).out.split()) == ALL


def read_lines(process: subprocess.Popen[bytes], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().decode().strip() for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_commits_the_last_written_record_and_no_later_one(commands, cluster, filled, group, number):
    process = commands.start("consume", filled, "--group", group, "--follow")
    seen = read_lines(process, len(ALL))
    process.send_signal(number)
    ended = commands.end(process)
    assert (ended.code, ended.out, ended.err) == (128 + number, "", "")
    assert sorted(seen) == ALL
    assert cluster.committed(group) == {(filled, 0): 10, (filled, 1): 5}
    assert cluster.members(group) == {}


def test_a_signal_while_the_output_takes_nothing_commits_only_what_was_written(commands, cluster, topic, group):
    size = 3000

    async def produce():
        async with cluster.producer(batch_size=16384) as producer:
            for number in range(1000):
                producer.send(topic, b"%06d" % number + b"x" * size, partition=0)
            await producer.flush()

    asyncio.run(produce())
    reader, writer = os.pipe()
    process = commands.start("consume", topic, "--group", group, "-X", "max.poll.records=10", stdout=writer)
    os.close(writer)
    line = b""
    while b"\n" not in line:
        data = os.read(reader, 1024)
        assert data, commands.end(process)
        line += data
    # A batch is half as large as the pipe: the command writes the next ones, then waits for a reader.
    process.send_signal(signal.SIGTERM)
    ended = commands.end(process)
    assert ended.code == 128 + signal.SIGTERM
    received = line
    while data := os.read(reader, 65536):
        received += data
    os.close(reader)
    whole = received.count(b"\n")
    committed = cluster.committed(group).get((topic, 0), 0)
    assert committed <= whole
    # At most the batch under way is written again.
    assert whole - committed <= 10


def test_two_members_share_the_partitions_and_the_second_takes_over(commands, cluster, filled, group):
    first = commands.start("consume", filled, "--group", group, "--follow", "-X", "heartbeat.interval.ms=100")
    assert sorted(read_lines(first, len(ALL))) == ALL
    second = commands.start("consume", filled, "--group", group, "--follow", "-X", "heartbeat.interval.ms=100")
    deadline = time.monotonic() + TIMEOUT
    while len(cluster.members(group)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    assert commands.end(first).out == ""

    async def produce():
        async with cluster.producer() as producer:
            for partition in range(2):
                await producer.send(filled, b"late", partition=partition)

    asyncio.run(produce())
    assert read_lines(second, 2) == ["late", "late"]
    second.send_signal(signal.SIGTERM)
    ended = commands.end(second)
    assert (ended.code, ended.out, ended.err) == (128 + signal.SIGTERM, "", "")
    assert cluster.committed(group) == {(filled, 0): 11, (filled, 1): 6}


def test_a_member_without_a_partition_says_so(call, commands, cluster, topic, group, tmp_path):
    name = f"{topic}-single"
    cluster.create_topic(name, 1)
    (tmp_path / "one").write_text("one\n")
    assert call("produce", name, tmp_path / "one", "-q").code == SUCCEEDED
    # The range assignor gives the partition to the first member id, which begins with the client id.
    first = commands.start(
        "consume", name, "--group", group, "--follow", "-X", "client.id=a", "-X", "heartbeat.interval.ms=100"
    )
    assert read_lines(first, 1) == ["one"]
    ended = call("consume", name, "--group", group, "--timeout", 10, "-X", "client.id=b")
    assert (ended.code, ended.out) == (FAILED, "")
    assert "the group has assigned no partition within 10 s: other members have all of them" in ended.err
    first.send_signal(signal.SIGTERM)
    assert commands.end(first).code == 128 + signal.SIGTERM


def test_keys_of_consumers_and_producers_are_accepted_and_misspelt_ones_are_not(call, filled, group, tmp_path):
    (tmp_path / "client.properties").write_text("linger.ms=5\nsession.timeout.ms=20000\n")
    options = ["--config", tmp_path / "client.properties", "-X", "max_poll_records=3"]
    ended = call("consume", filled, "--group", group, *options)
    assert (ended.code, sorted(ended.out.split())) == (SUCCEEDED, ALL), ended.err
    ended = call("consume", filled, "--group", group, "-X", "max.pol.records=3")
    assert (ended.code, "unknown configuration key: 'max.pol.records'" in ended.err) == (USAGE, True)
