"""``aioproducer consume`` in this process: topics into files and streams of every format."""

from __future__ import annotations

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest

from aioproducer.cli.exits import FAILED, SUCCEEDED, USAGE
from aioproducer.wire.record_batch import SimpleRecord, encode_batch

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture
def filled(call, topic, tmp_path):
    """A topic with ten records in partition 0 and one without key in partition 1."""
    rows = "".join(
        json.dumps({"k": f"k{number}", "v": f"v{number}", "t": 1000 * number, "h": [["n", "x"]]}) + "\n"
        for number in range(10)
    )
    (tmp_path / "rows.jsonl").write_text(rows)
    columns = ["--key", "k", "--value", "v", "--timestamp", "t", "--headers", "h"]
    assert call("produce", topic, tmp_path / "rows.jsonl", *columns, "--partition", 0).code == 0
    (tmp_path / "one").write_text("alone\n")
    assert call("produce", topic, tmp_path / "one", "--partition", 1).code == 0
    return topic


def test_lines_are_values(call, filled):
    ended = call("consume", filled)
    assert (ended.code, ended.err) == (SUCCEEDED, "")
    assert sorted(ended.out.split()) == sorted(["alone", *(f"v{number}" for number in range(10))])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-p", 0, "--from", 7], "v7\nv8\nv9\n"),
        (["-p", 0, "--from", 2, "--until", 4], "v2\nv3\n"),
        (["-p", 0, "--from", "@8000"], "v8\nv9\n"),
        (["-p", 0, "--from", "1970-01-01T00:00:01Z", "--until", "1970-01-01T00:00:03Z"], "v1\nv2\n"),
        (["--from", "end"], ""),
        (["--from", 10], ""),
        (["--from", 9], "v9\n"),
        (["--until", "beginning"], ""),
        (["-p", 0, "--until", 99, "--from", 9], "v9\n"),
        (["-p", 0, "-n", 2], "v0\nv1\n"),
        (["-p", 0, "-n", 1, "--key"], "k0\tv0\n"),
        (["-p", 1, "--key", "--separator", "|"], "|alone\n"),
        (["-p", 0, "-n", 1, "--fields", "topic, partition,offset,timestamp,headers", "--separator", " "], None),
        (["-p", 0, "--follow", "--until", 3], "v0\nv1\nv2\n"),
        (["-p", 0, "--follow", "-n", 1], "v0\n"),
    ],
)
def test_from_where_to_where_and_what(call, filled, arguments, expected):
    ended = call("consume", filled, *arguments)
    assert ended.code == SUCCEEDED
    assert ended.out == (f'{filled} 0 0 0 [["n","x"]]\n' if expected is None else expected)


def test_records_of_open_transactions_are_read_unless_only_committed_ones_are_wanted(call, cluster, filled):
    records = bytearray().join(
        encode_batch(
            [SimpleRecord(0, None, b"open")],
            producer_id=99,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )

    def begin(inner):
        partition = inner.brokers[1].replicas.leader(filled, 1)
        guard = partition.begin_verification(99, 0, 0, supports_epoch_bump=False)
        partition.append(records, acks=-1, guard=guard)

    cluster._call(begin)
    committed = ["-p", 1, "--isolation-level", "read_committed"]
    assert call("consume", filled, "-p", 1).out == "alone\nopen\n"
    assert call("consume", filled, *committed).out == "alone\n"
    assert call("consume", filled, *committed, "--from", 2).out == ""
    assert call("consume", filled, *committed, "--from", 3).code == FAILED
    assert call("consume", filled, "-p", 1, "--isolation-level", "all").code == USAGE


def test_json_lines_are_taken_back_by_produce(call, cluster, filled, tmp_path):
    assert call("consume", filled, "-o", tmp_path / "all.jsonl").code == 0
    columns = ["--key", "key", "--value", "value", "--headers", "headers", "--timestamp", "timestamp"]
    assert call("produce", f"{filled}-copy", tmp_path / "all.jsonl", "--create", *columns).code == 0

    def content(topic):
        return sorted((each[3:] for each in cluster.records(topic)), key=str)

    assert content(f"{filled}-copy") == content(filled)


def test_csv(call, filled):
    ended = call("consume", filled, "-f", "csv", "-p", 0, "-n", 1)
    assert list(csv.DictReader(ended.out.splitlines())) == [
        {"partition": "0", "offset": "0", "timestamp": "0", "key": "k0", "value": "v0", "headers": '[["n","x"]]'}
    ]
    assert call("consume", filled, "-f", "csv", "--from", "end").out == "partition,offset,timestamp,key,value,headers\n"


def test_parquet_and_arrow(call, filled, tmp_path):
    ended = call("consume", filled, "-p", 0, "-o", tmp_path / "all.parquet")
    assert ended.err == f"aioproducer consume: 10 records are in {tmp_path / 'all.parquet'}\n"
    assert call("consume", filled, "-p", 0, "-o", tmp_path / "all.arrow", "-q").code == 0
    table = pyarrow.parquet.read_table(tmp_path / "all.parquet")
    assert table.column("value").to_pylist() == [b"v%d" % number for number in range(10)]
    assert table.column("headers").to_pylist()[0] == [{"key": "n", "value": b"x"}]
    assert table.schema.field("timestamp").type == pyarrow.timestamp("ms", tz="UTC")
    with pyarrow.OSFile(str(tmp_path / "all.arrow")) as file, pyarrow.ipc.open_stream(file) as stream:
        assert stream.read_all().equals(table)


def test_bytes_that_are_no_text(call, topic, tmp_path):
    (tmp_path / "one").write_bytes(b"\xff\n")
    assert call("produce", topic, tmp_path / "one", "--partition", 0).code == 0
    assert '"value_base64":"/w=="' in call("consume", topic, "-f", "jsonl").out
    ended = call("consume", topic, "-f", "csv")
    assert (ended.code, ended.out) == (FAILED, "")
    assert "partition 0, offset 0: the value is not UTF-8, which CSV requires: use --format jsonl" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--from", "soon"], USAGE, "--from takes beginning, end, an offset"),
        (["--from", "@99999999999999999"], USAGE, "the time is out of range"),
        (["--fields", "value,offest"], USAGE, "--fields: there is no 'offest' (did you mean 'offset'?)"),
        (["-p", "7"], FAILED, "has no partition 7: it has 2, which count from 0"),
        (["--from", "7", "--follow", "-p", "1"], FAILED, "has no offset 7: it has 0 to 1"),
        (["--from", "11"], FAILED, "--from 11 is beyond the end of topic"),
        (["--from", "2", "-p", "1"], FAILED, "next offset 1: use a lower offset, or omit --from"),
        (["-o", "/nope/x"], FAILED, "/nope/x cannot be written: No such file or directory"),
        (["-o", "/dev/full"], FAILED, "/dev/full cannot be written: No space left on device"),
        (["-b", "127.0.0.1:1", "--timeout", "0.3"], FAILED, "Nothing listens at 127.0.0.1:1"),
    ],
)
def test_what_goes_wrong_is_one_line(call, filled, arguments, code, text):
    ended = call("consume", filled, *arguments)
    assert ended.code == code
    (line,) = ended.err.splitlines()
    assert text in line


def test_a_topic_that_is_not_there(call, topic):
    ended = call("consume", f"{topic}s")
    assert ended.code == FAILED
    assert f"there is no topic '{topic}s' (did you mean '{topic}'?): 'aioproducer topics list' shows" in ended.err
