"""Another process with its own queue pair, which prints lines of JSON.

``receive``: prints its facts, reads its peer's, connects, and prints the checksum of each received write.
``limited``: prints the error of registering a MiB for a user with a lower limit of locked memory.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import select
import sys
import zlib

from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer
from aioproducer.transport.rdma.verbs import QueuePairFacts, VerbsError

_MEMORY = 1 << 20
_NOBODY = 65534


def _tell(what: object) -> None:
    print(json.dumps(what), flush=True)


def encoded(facts: QueuePairFacts) -> list[object]:
    """Return facts in the form for a line of JSON."""
    return [facts.number, facts.gid.hex(), facts.packet_number, facts.mtu]


def decoded(facts: list[object]) -> QueuePairFacts:
    """Return facts from the form of ``encoded``."""
    number, gid, packet_number, mtu = facts
    assert isinstance(number, int)
    assert isinstance(gid, str)
    assert isinstance(packet_number, int)
    assert isinstance(mtu, int)
    return QueuePairFacts(number, bytes.fromhex(gid), packet_number, mtu)


def _receive() -> None:
    device = PyverbsLayer().open(None, None)
    memory = mmap.mmap(-1, _MEMORY)
    region = device.register(memory, remote_write=True)
    queue_pair = device.create_queue_pair(send_depth=1, receive_depth=8)
    queue_pair.post_receives(range(8))
    _tell([encoded(queue_pair.facts), region.address, region.remote_key])
    queue_pair.connect(decoded(json.loads(sys.stdin.readline())))
    _tell("connected")
    while True:
        queue_pair.request_notification()
        for completion in queue_pair.poll(8):
            _tell([completion.status, completion.immediate, zlib.crc32(memory[: completion.length])])
        select.select([queue_pair.completion_fd], [], [])
        queue_pair.clear_events()


def _limited() -> None:
    device = PyverbsLayer().open(None, None)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
    # Root has no limit of locked memory.
    os.setuid(_NOBODY)
    memory = mmap.mmap(-1, _MEMORY)
    try:
        device.register(memory, remote_write=True)
    except VerbsError as error:
        # Not registered, so nothing keeps it alive.
        memory.close()
        _tell([error.errno, str(error)])
    else:
        _tell("registered")


if __name__ == "__main__":
    {"receive": _receive, "limited": _limited}[sys.argv[1]]()
