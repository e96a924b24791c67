"""Commands as processes: pipes, signals, terminals, and a broker."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager

import pytest

from aioproducer.cli.exits import FAILED, SIGNALLED, SUCCEEDED
from aioproducer.wire.murmur2 import partition_for_key

pytestmark = pytest.mark.programs


def wait_for(condition, timeout=100.0):
    """Wait until the condition holds, at most ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_records_pass_from_a_pipe_through_a_topic_to_a_pipe(commands, topic):
    ended = commands.run("produce", topic, "-", "--key-separator", ":", input_=b"a:1\nb:2\na:3")
    assert (ended.code, ended.err) == (SUCCEEDED, "")
    assert "records:    3 acknowledged of 3" in ended.out
    ended = commands.run("consume", topic, "--key")
    assert sorted(ended.out.splitlines()) == ["a\t1", "a\t3", "b\t2"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_delivers_accepted_records_and_reports_it(commands, cluster, topic, number, code):
    """The input never ends, so the thread that waits for it is abandoned."""
    process = commands.start("produce", topic, "--key-separator", ":", "--json", "-X", "linger.ms=600000",
                             "-X", "delivery.timeout.ms=900000", stdin=subprocess.PIPE)  # fmt: skip
    lingering, other = sorted((b"key", b"other key"), key=lambda key: partition_for_key(key, 2))
    process.stdin.write(b"%b:first\n" % lingering)
    process.stdin.flush()
    # It is sent as soon as the topic is known. Those after it linger: only the signal sends them.
    wait_for(lambda: cluster.records(topic))
    # The last one fills a batch of the other partition. When it is stored, those before it are accepted.
    large = b"x" * 20_000
    process.stdin.write(b"%b:a\n%b:b\n%b:%b\n" % (lingering, lingering, other, large))
    process.stdin.flush()
    wait_for(lambda: cluster.records(topic, 1))
    assert [record.value for record in cluster.records(topic)] == [b"first", large]
    process.send_signal(number)
    out, err = process.stdout.read(), process.stderr.read().decode()
    process.stdin.close()
    assert process.wait(100) == code
    summary = json.loads(out)
    assert (summary["acknowledged"], summary["interrupted"]) == (4, True)
    # The acknowledgement of a stored record may come after the signal.
    assert re.match("aioproducer produce: interrupted: 4 records were accepted, delivering the last [234];", err), err
    assert [record.value for record in cluster.records(topic)] == [b"first", b"a", b"b", large]


@pytest.mark.parametrize(
    ("command", "closed", "code", "said"),
    [
        ("topics list", "1>&-", SUCCEEDED, ""),
        ("produce {topic} --json {file}", "1>&-", SUCCEEDED, ""),
        ("produce {topic} {file}", "1>&- 2>&-", SUCCEEDED, ""),
        ("consume {topic}", "1>&-", FAILED, "aioproducer: stdout cannot be written: Bad file descriptor\n"),
        ("consume {topic}", "0>&- 1>&-", FAILED, "aioproducer: stdout cannot be written: Bad file descriptor\n"),
    ],
)
def test_closed_standard_descriptors_are_not_reused(environment, topic, tmp_path, command, closed, code, said):
    """Daemons start commands like this: once records were produced with exit code 1, or written to a socket."""
    file = tmp_path / "records"
    file.write_bytes(b"a\nb\n")
    environment = {**os.environ, **environment}
    tool = [sys.executable, "-m", "aioproducer"]
    assert subprocess.run([*tool, "produce", topic, file], env=environment, stdout=subprocess.DEVNULL).returncode == 0
    line = command.format(topic=topic, file=file)
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" -m aioproducer {line} {closed}', sys.executable],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", said)


def test_a_second_signal_ends_the_command_at_once(commands, cluster, topic):
    cluster.fail("Produce", "KAFKA_STORAGE_ERROR", topic=topic, times=None)
    try:
        process = commands.start("produce", topic, stdin=subprocess.PIPE)
        process.stdin.write(b"a\n")
        process.stdin.flush()
        # The retry was reported.
        assert b"retrying a batch" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert b"interrupted: 1 record was accepted, delivering the last 1;" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 130
        process.stdin.close()
        assert "failed:     1 ProducerClosedError" in process.stdout.read().decode()
    finally:
        cluster.clear_faults()


def test_an_interrupted_perf_counts_sent_records(commands, cluster, topic):
    """It once reported 0 bytes."""
    process = commands.start("perf", topic, "--size", "100", "--keys", "1", "--rate", "1000", "--json")
    wait_for(lambda: len(cluster.records(topic)) > 100)
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == 130
    summary = json.loads(process.stdout.read())
    assert summary["bytes"] == (100 + len("key-0")) * summary["acknowledged"] > 0


def test_ctrl_c_ends_at_once_while_no_broker_answers(commands):
    process = commands.start("produce", "topic", "-b", "127.0.0.1:1", "--timeout", "600", "-v")
    assert b"Nothing listens" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == 130


def test_output_into_a_closed_pipe_ends_quietly(commands, topic):
    lines = b"".join(b"%d\n" % number for number in range(200_000))
    assert commands.run("produce", topic, "--json", input_=lines).code == 0
    process = commands.start("consume", topic)
    assert process.stdout.readline().strip().isdigit()
    process.stdout.close()
    assert process.wait(100) == SIGNALLED + signal.SIGPIPE
    assert process.stderr.read() == b""


@pytest.mark.parametrize("command", [["topics", "list"], ["config"], ["config", "--json"], ["--help"]])
def test_any_output_into_a_closed_pipe_has_the_exit_code_of_sigpipe(commands, topic, command):
    read, write = os.pipe()
    os.close(read)
    ended = commands.end(commands.start(*command, stdout=write))
    os.close(write)
    assert (ended.code, ended.err) == (SIGNALLED + signal.SIGPIPE, "")


def test_ctrl_c_ends_a_consumer_with_a_full_output_pipe(commands, topic):
    lines = b"".join(b"%0100d\n" % number for number in range(20_000))
    assert commands.run("produce", topic, "--json", input_=lines).code == 0
    process = commands.start("consume", topic)
    # The pipe is full, or nearly, and nothing reads it.
    wait_for(lambda: _available(process.stdout.fileno()) > 50_000)
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == 130


def _available(descriptor):
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0)))[0]


def test_following_shows_records_as_they_arrive_until_ctrl_c(commands, topic):
    process = commands.start("consume", topic, "--follow", "-f", "jsonl", "--fields", "value")
    assert commands.run("produce", topic, input_=b"first\n").code == 0
    assert json.loads(process.stdout.readline()) == {"value": "first"}
    assert commands.run("produce", topic, input_=b"second\n").code == 0
    assert json.loads(process.stdout.readline()) == {"value": "second"}
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == 130
    assert process.stderr.read() == b""


def test_a_broker_keeps_its_records_over_a_restart(commands, tmp_path):
    """Stdout has only its address; stored records survive a restart; SIGTERM and SIGINT end it gracefully."""
    for number, expected in ((signal.SIGTERM, ["one"]), (signal.SIGINT, ["one", "two"])):
        broker = commands.start("broker", "--listen", "127.0.0.1:0", "--nodes", 2, "--data", "kept")
        address = broker.stdout.readline().decode().strip()
        assert len(address.split(",")) == 2
        value = expected[-1].encode() + b"\n"
        assert commands.run("produce", "t", "--create", "-b", address, input_=value).code == 0
        assert commands.run("consume", "t", "-b", address).out.split() == expected
        broker.send_signal(number)
        out, err = broker.communicate(timeout=100)
        assert (broker.returncode, out, err) == (0, b"", b"aioproducer broker: stopped; records are in kept\n")


def test_a_full_disk_under_a_broker_is_reported(commands, tmp_path):
    """A limit of 100 kB for each file lets writing fail as on a full disk."""
    import resource

    broker = commands.start(
        "broker", "--listen", "127.0.0.1:0", "--data", "small",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    address = broker.stdout.readline().decode().strip()
    ended = commands.run(
        "produce", "t", "--create", "-b", address, "-X", "delivery.timeout.ms=1500", "-X", "request.timeout.ms=1000",
        input_=b"x" * 1000 + b"\n" + (b"y" * 1000 + b"\n") * 300,
    )  # fmt: skip
    assert ended.code == 1
    assert "Check the broker's disk" in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
    broker.send_signal(signal.SIGTERM)
    _, err = broker.communicate(timeout=100)
    assert b"Traceback" not in err


class Terminal:
    """The other end of a pseudo-terminal, 60 columns wide."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        self.shown = b""

    def read(self, process):
        """Return all output of the process until it ends."""
        os.close(self.theirs)
        while True:
            ready, _, _ = select.select([self.ours], [], [], 30)
            assert ready
            try:
                data = os.read(self.ours, 65536)
            except OSError:
                break
            if not data:
                break
            self.shown += data
        return process.wait(100)


@contextmanager
def terminal():
    made = Terminal()
    try:
        yield made
    finally:
        os.close(made.ours)


def test_a_terminal_of_60_columns_shows_progress_that_fits(commands, topic, environment, tmp_path):
    (tmp_path / "rows").write_bytes(b"value\n" * 60_000)
    environment["TERM"] = "xterm-256color"
    with terminal() as screen:
        process = commands.start("produce", topic, "rows", stderr=screen.theirs)
        assert screen.read(process) == 0
    text = screen.shown.decode()
    assert "records" in text
    assert "/s" in text
    assert "%" in text
    assert all(len(line) <= 60 for line in _plain(text).replace("\r", "\n").split("\n"))
    # No progress without a terminal, or with --quiet.
    assert commands.run("produce", topic, "rows").err == ""


def _plain(text):
    import re

    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_tables_fit_into_60_columns(commands, environment):
    environment["TERM"] = "xterm-256color"
    with terminal() as screen:
        process = commands.start("config", "partitioner", stdout=screen.theirs)
        assert screen.read(process) == 0
    lines = _plain(screen.shown.decode()).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 60
    assert any("partitioner.class" in line for line in lines)
    # In a pipe nothing is truncated or wrapped.
    assert len(commands.run("config", "partitioner").out.splitlines()) < len(lines)


def test_parquet_is_not_written_to_a_terminal(commands, topic):
    with terminal() as screen:
        process = commands.start("consume", topic, "-f", "parquet", stdout=screen.theirs)
        assert screen.read(process) == 2
        assert b"parquet cannot be written to a terminal" in process.stderr.read()


def test_the_script_is_installed():
    from importlib.metadata import entry_points

    scripts = {point.name: point.value for point in entry_points(group="console_scripts")}
    assert scripts.get("aioproducer", "aioproducer.cli:main") == "aioproducer.cli:main"
