"""Behaviour that a script in one process cannot show: other processes, limits, devices that appear and vanish."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioproducer.transport.rdma.executor import RegisteredMemory
from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer
from aioproducer.transport.rdma.verbs import CompletionStatus, RdmaUnavailableError
from aioproducer.transport.rdma.work_requests import Write
from tests.rdma import peer, script

_ROOT = Path(__file__).parents[2]


@contextmanager
def _process(role: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rdma.peer", role],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_other_threads_run_while_memory_is_registered_and_deregistered(verbs: PyverbsLayer) -> None:
    """pyverbs holds the GIL, so registering 64 MiB at once would block all other threads."""
    # A pause of the machine shows too, but not each time; a held GIL does.
    assert any(_longest_silence(verbs) < 1 / 4 for _ in range(5))


def _longest_silence(verbs: PyverbsLayer) -> float:
    """Return the longest pause of another thread, as a share of the time of registering."""
    memory = mmap.mmap(-1, 64 * 1024 * 1024)
    device = verbs.open(None, None)
    done = threading.Event()

    def register() -> None:
        registered = RegisteredMemory(device, memory)
        while not registered.register_more():
            pass
        registered.close()
        done.set()

    thread = threading.Thread(target=register)
    began = last = time.perf_counter()
    thread.start()
    silences = []
    while not done.is_set():
        time.sleep(0)
        now = time.perf_counter()
        silences.append(now - last)
        last = now
    thread.join()
    device.close()
    memory.close()
    print(f"{(last - began) * 1000:.0f} ms, in which the longest silence was {max(silences) * 1000:.1f} ms")
    return max(silences) / (last - began)


def _line(process: subprocess.Popen[str]) -> object:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_writing_to_a_killed_process_fails_within_seconds(verbs: PyverbsLayer) -> None:
    """Writing to another process works until it is killed."""
    stage = script.Stage(verbs)
    data = os.urandom(100_000)
    with _process("receive") as process, stage.device() as device:
        memory = mmap.mmap(-1, len(data))
        memory[:] = data
        region = device.register(memory, remote_write=False)
        queue_pair = device.create_queue_pair(send_depth=4, receive_depth=4)
        try:
            line = _line(process)
            assert isinstance(line, list)
            facts, address, key = line
            queue_pair.connect(peer.decoded(facts))
            assert process.stdin is not None
            print(json.dumps(peer.encoded(queue_pair.facts)), file=process.stdin)
            assert _line(process) == "connected"
            piece = (region.address, len(data), region.local_key)
            queue_pair.post_write(Write(1, [piece], address, key, 77, signaled=True))
            assert stage.wait(queue_pair, 1)[0].status == CompletionStatus.SUCCESS
            assert _line(process) == [0, 77, zlib.crc32(data)]

            process.kill()
            process.wait()
            began = time.monotonic()
            queue_pair.post_write(Write(2, [piece], address, key, signaled=True))
            (completion,) = stage.wait(queue_pair, 1)
            assert completion.status == CompletionStatus.TRANSPORT_RETRY_EXCEEDED
            assert time.monotonic() - began < 10
        finally:
            queue_pair.close()
            region.close()
            memory.close()


def test_the_limit_of_locked_memory_is_named(guest_verbs: PyverbsLayer) -> None:
    with _process("limited") as process:
        line = _line(process)
    assert isinstance(line, list)
    code, text = line
    assert code == errno.ENOMEM
    assert "cannot register 1048576 bytes" in text
    assert "the limit of locked memory is 65536 bytes (ulimit -l" in text


def test_many_queue_pairs_have_separate_completion_channels(verbs: PyverbsLayer) -> None:
    """Each one's completion channel is found among those of the others."""
    device = verbs.open(None, None)
    before = len(os.listdir("/proc/self/fd"))
    made = [device.create_queue_pair(send_depth=16, receive_depth=64) for _ in range(50)]
    assert len({queue_pair.completion_fd for queue_pair in made}) == 50
    assert not any(os.get_blocking(queue_pair.completion_fd) for queue_pair in made)
    for queue_pair in made:
        queue_pair.close()
    assert len(os.listdir("/proc/self/fd")) == before
    device.close()


def test_logging_is_left_alone(verbs: PyverbsLayer) -> None:
    """pyverbs calls logging.basicConfig on import."""
    program = (
        "import logging; from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer; PyverbsLayer(); "
        "print(logging.root.handlers, logging.root.level)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == "[] 30\n"


def test_a_port_that_is_down_is_named_in_the_error(guest_verbs: PyverbsLayer) -> None:
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    try:
        with pytest.raises(RdmaUnavailableError, match=r"port 1 of rxe0 is down \(ip link set \.\.\. up\)"):
            guest_verbs.open(None, None)
    finally:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    _until_usable(guest_verbs)


def test_a_missing_device_is_an_error(guest_verbs: PyverbsLayer) -> None:
    subprocess.run(["rdma", "link", "delete", "rxe0"], check=True)
    try:
        with pytest.raises(RdmaUnavailableError, match=r"there is no RDMA device: .*modprobe rdma_rxe; rdma link add"):
            guest_verbs.open(None, None)
    finally:
        subprocess.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "lo"], check=True)
    _until_usable(guest_verbs)


def _until_usable(verbs: PyverbsLayer) -> None:
    """Wait for a port's addresses, which the kernel assigns some time after the port is up."""
    for _ in range(100):
        try:
            device = verbs.open(None, "127.0.0.1")
        except RdmaUnavailableError:
            time.sleep(0.1)
        else:
            device.close()
            return
    verbs.open(None, "127.0.0.1").close()
