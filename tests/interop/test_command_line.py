"""The command line, its admin calls and its reader against Apache Kafka, new and old, and the embedded broker."""

from __future__ import annotations

import json

import pytest

from aioproducer.admin import Admin
from aioproducer.cli import main
from aioproducer.consumer import Reader
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster


@pytest.fixture(params=["three_nodes", "old_broker", "three_embedded"])
def brokers(request: pytest.FixtureRequest) -> KafkaCluster | InProcessCluster:
    found: KafkaCluster | InProcessCluster = request.getfixturevalue(request.param)
    return found


def test_a_file_is_produced_and_consumed_unchanged(brokers, topic, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("AIOPRODUCER_BOOTSTRAP_SERVERS", brokers.bootstrap_servers)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    rows = [{"id": f"k{number % 7}", "n": number} for number in range(3000)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    assert call("topics", "create", topic, "-p", 3, "--set", "retention.ms=86400000") == (0, "", "")
    assert topic in call("topics", "list")[1].splitlines()
    code, _, error = call("topics", "create", topic)
    assert (code, "already exists" in error) == (1, True)
    code, out, _ = call(
        "produce", topic, tmp_path / "rows.jsonl", "--key", "id", "--json", "-X", "compression.type=zstd"
    )
    assert (code, json.loads(out)["acknowledged"]) == (0, 3000)
    code, out, error = call("consume", topic, "-f", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, error, len(found)) == (0, "", 3000)
    for key in {row["id"] for row in rows}:
        assert [json.loads(each["value"]) for each in found if each["key"] == key] == [
            row for row in rows if row["id"] == key
        ]
    (described,) = json.loads(call("topics", "describe", topic, "--json")[1])
    assert sum(each["end_offset"] for each in described["partitions"]) == 3000
    assert described["configs"]["retention.ms"] == "86400000"
    assert call("topics", "delete", topic) == (0, "", "")
    code, _, error = call("topics", "delete", topic)
    assert (code, "There is no topic" in error) == (1, True)


def test_the_doctor_passes_every_check(brokers, capfd):
    code = main(["doctor", "--bootstrap-server", brokers.bootstrap_servers, "--json"])
    sections = json.loads(capfd.readouterr().out)["sections"]
    cluster = {check["name"]: check for check in sections["cluster"]}
    assert code == 0, sections
    addresses = brokers.bootstrap_servers.split(",")
    assert cluster["brokers"]["text"] == str(len(addresses))
    assert all(f"bootstrap {address}" in sections for address in addresses)
    assert all(cluster[f"broker {number + 1}"]["status"] == "ok" for number in range(len(addresses)))
    if isinstance(brokers, KafkaCluster):
        assert "metadata.version " in cluster["features"]["text"]
        # The brokers use this machine's clock; their response needs less than a second even on a busy machine.
        assert cluster["clock"]["status"] == "ok"
        assert "the controller is 0." in cluster["clock"]["text"]
    else:
        assert cluster["features"]["text"] == "transaction.version 2"
        assert cluster["clock"]["status"] == "unknown"


async def test_a_reader_waits_for_missing_records(brokers, topic):
    from aioproducer import Producer

    async with Admin(bootstrap_servers=brokers.bootstrap_servers) as admin:
        await admin.create_topic(topic, 2)
        assert topic in await admin.list_topics()
        assert len((await admin.describe_cluster()).nodes) in (1, 3)
    async with (
        Producer(bootstrap_servers=brokers.bootstrap_servers) as producer,
        Reader(topic, bootstrap_servers=brokers.bootstrap_servers) as reader,
    ):
        for number in range(5):
            sent = await producer.send(topic, b"%d" % number)
            record = await anext(reader)
            assert (record.partition, record.offset, record.value) == (sent.partition, sent.offset, b"%d" % number)
