"""The executor and fork: a child begins with nothing, and the parent goes on. Each in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from aioproducer.testing import EmbeddedClusterThread

TOPIC = "forked"

_BEGIN = """
import gc, os, sys, threading, warnings
if {loop!r} == "asyncio":
    sys.modules["uvloop"] = None
# Python 3.12 and later warn of any fork of a process with threads.
warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
from aioproducer.errors import ProducerClosedError, WrongCallerError
from aioproducer.spark import close_executor, executor_producer, run
from aioproducer.spark.executor import Executor
config = {{"bootstrap.servers": {servers!r}, "linger.ms": 0}}

def send(*values):
    with executor_producer(config) as producer:
        for value in values:
            producer.send({topic!r}, value, partition=0)

async def connections_made():
    return (await Executor.current().producer(config)).metrics()["connection-creation-total"]

def ended_well(child):
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        yield running


@pytest.fixture(params=["asyncio", "uvloop"])
def stored(request: pytest.FixtureRequest, cluster: EmbeddedClusterThread) -> Iterator[Scripts]:
    cluster.create_topic(TOPIC, 1)
    yield Scripts(cluster, request.param)
    cluster.delete_topic(TOPIC)


class Scripts:
    """Runs scripts that send to the cluster, and must end with nothing to say."""

    def __init__(self, cluster: EmbeddedClusterThread, loop: str) -> None:
        self._cluster = cluster
        self._begin = _BEGIN.format(loop=loop, servers=cluster.bootstrap_servers, topic=TOPIC)

    def values_of(self, script: str) -> list[bytes]:
        """What is in the topic when the script has ended."""
        command = [sys.executable, "-W", "error", "-c", self._begin + script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return [record.value or b"" for record in self._cluster.records(TOPIC)]


def test_a_child_begins_anew_and_the_parent_goes_on(stored: Scripts) -> None:
    script = """
send(b"1")
before = run(connections_made())
child = os.fork()
if child == 0:
    # The parent's thread is not here, and what it left must not be touched by what the child collects.
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
    gc.collect()
    send(b"2", b"3")
    close_executor()
    gc.collect()
    send(b"4")
    sys.exit(0)
ended_well(child)
send(b"5")
assert run(connections_made()) == before
"""
    assert stored.values_of(script) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_child_that_does_nothing_ends_cleanly(stored: Scripts) -> None:
    script = """
send(b"1")
child = os.fork()
if child == 0:
    sys.exit(0)
ended_well(child)
send(b"2")
"""
    assert stored.values_of(script) == [b"1", b"2"]


def test_a_child_that_ended_complained_of_the_parents_tasks(stored: Scripts) -> None:
    script = """
with executor_producer(config) as producer:
    producer.send("forked", b"1")
    # Nothing is on its way any more, nor is there a timer that would keep the task that waits for rows.
    producer.flush()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    ended_well(child)
"""
    assert stored.values_of(script) == [b"1"]


def test_what_the_parent_made_is_refused_in_the_child(stored: Scripts) -> None:
    script = """
async def work():
    pass

def refused(call):
    try:
        call()
    except WrongCallerError as error:
        assert "belongs to the parent process: call executor_producer() or run() again" in str(error), error
    else:
        raise AssertionError("not refused")

with executor_producer(config) as producer:
    producer.send("forked", b"1")
    executor = Executor.current()
    child = os.fork()
    if child == 0:
        for call in (
            lambda: producer.send("forked", b"x"),
            lambda: producer.send_many("forked", [b"x"]),
            producer.flush,
            producer.statistics,
            lambda: executor.run(work()),
        ):
            refused(call)
        executor.close()
        gc.collect()
        # The `with` is left by an exception, which comes out as it is.
        sys.exit(0)
    ended_well(child)
    producer.send("forked", b"2")
"""
    assert stored.values_of(script) == [b"1", b"2"]


def test_forked_while_another_thread_makes_the_executor(stored: Scripts) -> None:
    """The lock that it holds would never be released in the child."""
    script = """
from aioproducer.spark import executor as module
held, go_on = threading.Event(), threading.Event()

def hold():
    with module._current_lock:
        held.set()
        go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    send(b"1")
    sys.exit(0)
ended_well(child)
go_on.set()
thread.join()
send(b"2")
"""
    assert stored.values_of(script) == [b"1", b"2"]


def test_children_of_children_and_of_multiprocessing(stored: Scripts) -> None:
    script = """
import multiprocessing
send(b"1")
child = os.fork()
if child == 0:
    send(b"2")
    grandchild = os.fork()
    if grandchild == 0:
        send(b"3")
        sys.exit(0)
    ended_well(grandchild)
    send(b"4")
    sys.exit(0)
ended_well(child)
process = multiprocessing.get_context("fork").Process(target=send, args=(b"5",))
process.start()
process.join()
assert process.exitcode == 0
send(b"6")
"""
    assert stored.values_of(script) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_workers_that_end_by_os_exit_lose_nothing_that_was_flushed(stored: Scripts) -> None:
    script = """
send(b"1")
for number in (2, 3):
    child = os.fork()
    if child == 0:
        send(b"%d" % number)
        os._exit(0)
    ended_well(child)
"""
    assert stored.values_of(script) == [b"1", b"2", b"3"]
