"""``aioproducer topics``, ``perf``, ``config`` and the group itself, in this process."""

from __future__ import annotations

import json
import sys

import pytest

from aioproducer import __version__
from aioproducer.cli.exits import FAILED, SUCCEEDED, USAGE
from aioproducer.config.producer import CONFIG_DEF

pytestmark = pytest.mark.usefixtures("environment")


def test_topics_are_created_shown_and_deleted(call, cluster, topic):
    name = f"{topic}-made"
    ended = call("topics", "create", name, f"{name}-2", "-p", 3, "-r", 1, "--set", "retention.ms=5000")
    assert ended == (SUCCEEDED, "", "")
    assert {name, f"{name}-2"} <= set(call("topics", "list").out.split("\n"))
    assert name in json.loads(call("topics", "list", "--json", "--internal").out)
    lines = call("topics", "describe", name, topic).out.splitlines()
    assert lines[0] == f"{name}: 3 partitions, retention.ms=5000"
    assert " ".join(lines[1].split()) == "partition leader replicas in sync first offset end offset records"
    assert [line.split() for line in lines[2:5]] == [[str(each), "1", "1", "1", "0", "0", "0"] for each in range(3)]
    assert lines[5:7] == ["", f"{topic}: 2 partitions"]
    (described,) = json.loads(call("topics", "describe", name, "--json").out)
    assert described["configs"] == {"retention.ms": "5000"}
    assert [each["end_offset"] for each in described["partitions"]] == [0, 0, 0]
    assert f"{name}: " in call("topics", "describe").out

    again = call("topics", "create", name)
    assert (again.code, f"'{name}' already exists" in again.err) == (FAILED, True)
    assert call("topics", "create", name, "--if-not-exists").code == SUCCEEDED
    assert call("topics", "delete", name, f"{name}-2").code == SUCCEEDED
    gone = call("topics", "delete", name)
    assert (gone.code, f"There is no topic '{name}'" in gone.err) == (FAILED, True)
    assert call("topics", "delete", name, "--if-exists").code == SUCCEEDED
    assert f"There is no topic '{name}'" in call("topics", "describe", name).err
    assert name not in cluster.topics()


def test_perf_reports_every_second_and_the_total(call, topic, tmp_path):
    plot = tmp_path / "plot.svg"
    ended = call("perf", topic, "--duration", 1.3, "--rate", 500, "--size", 10, "--keys", 3, "--plot", plot)
    assert (ended.code, ended.err) == (SUCCEEDED, "")
    head, first, *_, total = ended.out.splitlines()
    assert head.split() == ["time", "records/s", "bytes/s", "p50", "ms", "p99", "ms"]
    # Later on a busy machine.
    assert float(first.split()[0].removesuffix("s")) >= 1
    assert total.startswith("total: ")
    assert "p99.9" in total
    assert b"<svg" in plot.read_bytes()


def test_the_json_of_perf_counts_the_stored_records(call, cluster, topic):
    ended = call("perf", topic, "-n", 200, "--size", 10, "--json")
    summary = json.loads(ended.out)
    assert (summary["acknowledged"], summary["bytes"], summary["failed"]) == (200, 2000, 0)
    assert summary["intervals"][-1]["latency_ms"]["p50"] > 0
    assert len(cluster.records(topic)) == 200
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=topic)
    ended = call("perf", topic, "-n", 1, "--json")
    assert (ended.code, "1 of 1 record failed" in ended.err) == (FAILED, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--plot", "x.nope"], "the file's extension must be one of"),
        (["--plot", "/nope/x.png"], "the folder /nope"),
    ],
)
def test_perf_checks_its_arguments_before_it_sends(call, cluster, topic, arguments, text):
    ended = call("perf", topic, *arguments)
    assert (ended.code, text in ended.err, cluster.records(topic)) == (FAILED, True, [])
    ended = call("perf", f"{topic}s", "-n", 1)
    assert (ended.code, "there is no topic" in ended.err) == (FAILED, True)


def test_perf_without_matplotlib_names_the_extra(call, topic, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ended = call("perf", topic, "--plot", "x.png")
    assert "--plot needs matplotlib.figure, which is not installed: pip install 'aioproducer[plot]'" in ended.err


def test_config_is_the_table_of_keys(call):
    ended = call("config")
    assert ended.code == SUCCEEDED
    assert len(ended.out.splitlines()) == 1 + len(CONFIG_DEF.keys)
    assert call("config", "linger").out.startswith("name: linger.ms\n")
    assert "default: 5\n" in call("config", "LINGER_MS").out
    keys = {key["name"]: key for key in json.loads(call("config", "--json").out)}
    assert keys.keys() == CONFIG_DEF.keys.keys()
    assert (keys["bootstrap.servers"]["required"], keys["acks"]["default"]) == (True, "all")
    ended = call("config", "linger.sm")
    assert (ended.code, "did you mean 'linger.ms'?" in ended.err) == (FAILED, True)


def test_every_command_has_help(call):
    assert call("--version").out == f"aioproducer, version {__version__}\n"
    top = call("--help")
    assert top.code == SUCCEEDED
    assert "Exit codes: 0 done; 1 failed; 2 wrong usage" in " ".join(top.out.split())
    for command in ("broker", "config", "consume", "doctor", "perf", "produce", "rdma-gateway", "topics"):
        assert f"\n  {command} " in top.out
        help_ = call(command, "--help")
        assert help_.code == SUCCEEDED
        assert "Exit codes:" in help_.out
        if command != "topics":
            assert f"  aioproducer {command}" in help_.out


def test_a_missing_and_an_unknown_command_are_wrong_usage(call):
    nothing = call()
    assert (nothing.code, "Usage: aioproducer" in nothing.err) == (USAGE, True)
    assert call("prodcue") == (USAGE, "", "aioproducer: No such command 'prodcue'. Try 'aioproducer --help'.\n")


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(13, "Permission denied", "x"), FAILED, "aioproducer: x: Permission denied\n"),
        (OSError(28, "No space left on device"), FAILED, "aioproducer: No space left on device\n"),
    ],
)
def test_unexpected_endings_of_a_command_have_an_exit_code(call, monkeypatch, raised, code, text):
    def end(*_):
        raise raised

    monkeypatch.setattr("aioproducer.cli.config.nearest", end)
    assert call("config", "nope") == (code, "", text)


def test_a_group_without_its_command_shows_its_help(call):
    ended = call("topics")
    assert (ended.code, "create" in ended.err) == (USAGE, True)


def test_without_click_the_extra_is_named(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "click", None)
    ended = call("config")
    assert ended.code == FAILED
    assert "needs click, which is not installed: pip install 'aioproducer[cli]'" in ended.err


def test_an_internal_error_is_one_line(call, monkeypatch):
    monkeypatch.setattr("aioproducer.cli.config.nearest", lambda *_: 1 / 0)
    ended = call("config", "nope")
    assert ended.code == FAILED
    assert (
        ended.err
        == "aioproducer: internal error: ZeroDivisionError('division by zero'). Run with --debug for a traceback, and "
        "report it.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--listen", "9092"], USAGE, "--listen takes HOST:PORT, not '9092'"),
        (["--listen", "::1:9092"], USAGE, "put an IPv6 address in brackets: [::1]:9092"),
        (["--listen", "localhost:65535", "--nodes", "2"], USAGE, "2 ports from 65535 on exceed the maximum 65535"),
        (["--listen", "0.0.0.0:0"], USAGE, "needs --advertise HOST, the name by which clients reach this machine"),
        (["--memory", "--data", "x"], USAGE, "--memory and --data exclude each other"),
        (
            ["-X", "num.partition=3"],
            USAGE,
            "unknown configuration key: 'num.partition' (did you mean 'num.partitions'?)",
        ),
        (["--listen", "127.0.0.1:0", "--data", "/proc/nope"], FAILED, "The broker cannot keep its records there"),
        (["--listen", "127.0.0.1:0", "--data", "/dev/null"], FAILED, "The broker cannot keep its records there"),
    ],
)
def test_a_broker_that_cannot_start_reports_why(call, arguments, code, text):
    ended = call("broker", *arguments)
    assert ended.code == code
    (line,) = ended.err.splitlines()
    assert text in line


def test_a_port_that_is_taken_and_a_folder_in_use_are_errors(call, cluster, tmp_path):
    address = cluster.bootstrap_servers
    ended = call("broker", "--listen", address)
    assert ended.code == FAILED
    assert f"cannot listen at {address}: Address already in use. Another program, or another broker, uses" in ended.err
    from aioproducer.testing import EmbeddedClusterThread

    with EmbeddedClusterThread(data_dir=tmp_path / "data"):
        ended = call("broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "data")
    assert ended.code == FAILED
    assert "is in use: another broker has locked its file .lock" in ended.err
