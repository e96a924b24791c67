"""``aioproducer produce`` in this process: files into topics, its messages, and its errors."""

from __future__ import annotations

import json

import pytest

from aioproducer.cli.exits import FAILED, PARTLY_REJECTED, SUCCEEDED, USAGE

pytestmark = pytest.mark.usefixtures("environment")


def stored(cluster, topic):
    return sorted((record.key, record.value) for record in cluster.records(topic))


def test_a_csv_file_becomes_records_with_all_their_parts(call, cluster, topic, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('id,text,meta,at\n1,one,"{""h"":""x""}",1000\n2,two,,2000\n')
    ended = call(
        "produce", topic, file, "--key", "id", "--value", "text", "--headers", "meta", "--timestamp", "at",
        "--header", "source=test", "--partition", 1,
    )  # fmt: skip
    assert ended.code == SUCCEEDED
    assert ended.err == ""
    assert [(each.partition, *each[3:]) for each in cluster.records(topic)] == [
        (1, 1000, b"1", b"one", (("source", b"test"), ("h", b"x"))),
        (1, 2000, b"2", b"two", (("source", b"test"),)),
    ]
    assert "records:    2 acknowledged of 2\n" in ended.out
    assert "latency:    p50 " in ended.out


def test_the_summary_is_json_and_any_producer_key_is_accepted(call, cluster, topic, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"id":{number}}}\n' for number in range(500)))
    config = tmp_path / "client.properties"
    config.write_text("compression.type=gzip\nlinger.ms=0\nkey.serializer=StringSerializer\n")
    ended = call("produce", topic, file, "--json", "--config", config, "-X", "linger_ms=20", "-X", "batch.size=1000")
    assert ended.code == SUCCEEDED
    summary = json.loads(ended.out)
    assert {name: summary[name] for name in ("topic", "records", "acknowledged", "failed", "errors", "bad_lines")} == {
        "topic": topic, "records": 500, "acknowledged": 500, "failed": 0, "errors": {}, "bad_lines": 0
    }  # fmt: skip
    assert summary["bytes"] == file.stat().st_size - 500
    assert summary["batch_bytes_sent"] > 0
    assert summary["batches"] >= 1
    assert 0 < summary["latency_ms"]["p50"] <= summary["latency_ms"]["p99"] <= summary["latency_ms"]["max"]
    assert len(cluster.records(topic)) == 500


def test_bad_lines_are_counted_shown_and_written_to_a_file(call, cluster, topic, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"id":1}\n' + b"nope\n" * 5 + b'\xff\n{"id":2}\n')
    ended = call("produce", topic, file, "--key", "id", "--rejects", tmp_path / "bad", "--json")
    assert ended.code == PARTLY_REJECTED
    assert json.loads(ended.out)["bad_lines"] == 6
    assert (tmp_path / "bad").read_bytes() == b"nope\n" * 5 + b"\xff\n"
    lines = ended.err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("aioproducer produce: line 2 is skipped: it is not JSON (Expecting value")
    assert stored(cluster, topic) == [(b"1", b'{"id":1}'), (b"2", b'{"id":2}')]


def test_a_file_with_only_bad_lines_is_a_failure(call, topic, tmp_path):
    (tmp_path / "rows.jsonl").write_text("nope\n")
    assert call("produce", topic, tmp_path / "rows.jsonl").code == FAILED


def test_an_empty_file_is_no_failure(call, topic, tmp_path):
    (tmp_path / "empty").touch()
    ended = call("produce", topic, tmp_path / "empty", "--json")
    assert (ended.code, json.loads(ended.out)["latency_ms"]) == (SUCCEEDED, {"p50": None, "p99": None, "max": None})


def failure(ended, code=FAILED):
    """Return the single line of a failure."""
    assert ended.code == code, ended
    (line,) = ended.err.splitlines()
    assert line.startswith("aioproducer")
    return line


def test_a_missing_file_and_a_folder_are_errors(call, topic, tmp_path):
    assert "nope.csv cannot be read: No such file or directory" in failure(call("produce", topic, "nope.csv"))
    assert "cannot be read: Is a directory" in failure(call("produce", topic, tmp_path))
    assert "--rejects /nope/x cannot be written: No such file" in failure(
        call("produce", topic, __file__, "--rejects", "/nope/x")
    )
    line = failure(call("produce", topic, __file__, "--rejects", __file__), USAGE)
    assert "would overwrite the input" in line


def test_a_missing_column_is_an_error(call, topic, tmp_path):
    (tmp_path / "rows.csv").write_text("carrier,flight\nAA,1\n")
    line = failure(call("produce", topic, tmp_path / "rows.csv", "--key", "carier"))
    assert "the first line has no column 'carier' (did you mean 'carrier'?); it has: carrier, flight" in line


def test_a_missing_topic_is_created_only_on_request(call, cluster, topic, tmp_path):
    (tmp_path / "rows").write_text("a\n")
    line = failure(call("produce", f"{topic}s", tmp_path / "rows"))
    assert f"there is no topic '{topic}s' (did you mean '{topic}'?): create it with --create" in line
    assert call("produce", f"{topic}s", tmp_path / "rows", "--create").code == SUCCEEDED
    assert call("produce", f"{topic}s", tmp_path / "rows", "--create").code == SUCCEEDED
    assert stored(cluster, f"{topic}s") == [(None, b"a")] * 2
    line = failure(call("produce", topic, tmp_path / "rows", "--partition", 2))
    assert f"topic {topic} has no partition 2: it has 2, numbered from 0" in line


def test_an_address_without_a_broker_is_an_error(call, topic):
    line = failure(call("produce", topic, __file__, "-b", "127.0.0.1:1", "--timeout", "0.3"))
    assert "No broker could be reached within 0.3 s. Nothing listens at 127.0.0.1:1 (connection refused)." in line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--key", "id"], "lines have no column 'id': set the file's format with --format"),
        (["--format", "csv", "--key-separator", ":"], "--key-separator is for lines, not for csv"),
        (["--delimiter", ";"], "--delimiter is for CSV, not for lines"),
        (["--format", "csv", "--delimiter", ";;"], "--delimiter takes one character, not ';;'"),
        (["--key-separator", ""], "--key-separator must not be empty"),
        (["--header", "x"], "--header takes NAME=VALUE, not 'x'"),
        (["-X", "linger.m=1"], "unknown configuration key: 'linger.m' (did you mean 'linger.ms'?)"),
        (["-X", "linger.ms=soon"], "linger.ms must be a whole number"),
        (["-X", "value.serializer=StringSerializer"], "the command line sends bytes unchanged"),
        (["--config", "nope.properties"], "the properties file nope.properties cannot be read"),
        (["-b", "localhost"], "the port is missing"),
        (["--partition", "-1"], "Invalid value for '--partition'"),
        (["--fromat", "csv"], "No such option '--fromat'."),
    ],
)
def test_errors_of_the_command_line_are_wrong_usage(call, topic, arguments, text):
    assert text in failure(call("produce", topic, "-", *arguments), USAGE)


def test_records_that_are_too_large_fail_and_the_others_are_sent(call, cluster, topic, tmp_path):
    (tmp_path / "rows").write_bytes(b"a\n" + b"x" * 3000 + b"\nb\n")
    ended = call("produce", topic, tmp_path / "rows", "-X", "max.request.size=2000", "--json")
    assert "1 of 3 records failed. " in failure(ended)
    assert "max_request_size" in ended.err
    assert json.loads(ended.out)["errors"] == {"RecordTooLargeError": 1}
    assert stored(cluster, topic) == [(None, b"a"), (None, b"b")]


def test_a_full_disk_of_the_broker_is_an_error(call, cluster, topic, tmp_path):
    """The broker returns KAFKA_STORAGE_ERROR until the records expire."""
    (tmp_path / "rows").write_bytes(b"a\n" * 10)
    cluster.fail("Produce", "KAFKA_STORAGE_ERROR", topic=topic, times=None)
    short = ["-X", "delivery.timeout.ms=1500", "-X", "request.timeout.ms=1000"]
    try:
        ended = call("produce", topic, tmp_path / "rows", "--json", *short)
    finally:
        cluster.clear_faults()
    assert ended.code == FAILED
    *lines, last = ended.err.splitlines()
    assert all(line.startswith("aioproducer produce: retrying a batch of") for line in lines)
    assert "10 of 10 records failed. " in last
    assert "Check the broker's disk" in last
    assert json.loads(ended.out)["failed"] == 10


def test_an_error_that_affects_all_records_ends_the_run(call, cluster, topic, tmp_path):
    (tmp_path / "rows").write_bytes(b"a\n" * 3_000_000)
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=topic, times=None)
    try:
        ended = call("produce", topic, tmp_path / "rows", "--json", "-X", "buffer.memory=500000")
    finally:
        cluster.clear_faults()
    line = failure(ended)
    assert "records failed; the rest of the input was not sent. " in line
    assert json.loads(ended.out)["records"] < 3_000_000


def test_debug_prints_the_traceback(call, topic):
    ended = call("produce", topic, "nope.csv", "--debug")
    assert ended.code == FAILED
    assert "Traceback (most recent call last)" in ended.err
    assert ended.err.splitlines()[-1] == "aioproducer: nope.csv cannot be read: No such file or directory"
