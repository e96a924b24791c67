"""CPU time of the calls of the layer below a transport: a socket's calls, or verbs."""

from __future__ import annotations

import asyncio
import mmap
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from aioproducer.transport.rdma.verbs import Device, MemoryRegion, QueuePair, QueuePairFacts, Verbs
from aioproducer.transport.rdma.work_requests import Completion, Write
from aioproducer.transport.stream import StreamConnector
from bench.job import Measurement

T = TypeVar("T")


def clock_cost() -> float:
    """Return the nanoseconds that one reading of the thread's clock takes."""
    found = []
    for _ in range(200):
        began = time.thread_time_ns()
        for _ in range(9):
            time.thread_time_ns()
        found.append((time.thread_time_ns() - began) / 10)
    return statistics.median(found)


class Layer:
    """Number and total time of the calls by the thread that created this object."""

    def __init__(self) -> None:
        self.calls = 0
        self.nanoseconds = 0

    def begin(self) -> None:
        """Start counting."""
        self.calls = self.nanoseconds = 0

    def end(self) -> Measurement:
        """Return the counts so far."""
        return {"layer_calls": self.calls, "layer_ns": self.nanoseconds}

    def timed(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call ``function``."""
        began = time.thread_time_ns()
        try:
            return function(*arguments, **options)
        finally:
            self.nanoseconds += time.thread_time_ns() - began
            self.calls += 1


class _TimedSocket(socket.socket):
    # Like a socket, without a dictionary in which methods would be looked up first.
    __slots__ = ("layer",)
    layer: Layer

    def sendmsg(self, buffers: Iterable[Any], *arguments: Any) -> int:
        return self.layer.timed(super().sendmsg, buffers, *arguments)

    def send(self, buffer: Any, *arguments: Any) -> int:
        return self.layer.timed(super().send, buffer, *arguments)

    def recv_into(self, buffer: Any, *arguments: Any) -> int:
        return self.layer.timed(super().recv_into, buffer, *arguments)


class TimedConnector(StreamConnector):
    """TCP with timed ``send``, ``sendmsg`` and ``recv_into``."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._layer = layer

    async def _connect_socket(self, loop: asyncio.AbstractEventLoop, host: str, port: int, peer: str) -> socket.socket:
        made = await super()._connect_socket(loop, host, port, peer)
        timed = _TimedSocket(made.family, made.type, made.proto, fileno=made.detach())
        timed.layer = self._layer
        timed.setblocking(False)
        return timed


class TimedVerbs:
    """``verbs`` with timed calls, except for those that block; a ``Verbs``."""

    def __init__(self, verbs: Verbs, layer: Layer) -> None:
        self._verbs = verbs
        self._layer = layer

    def open(self, device: str | None, gid: str | None) -> Device:
        """As ``Verbs.open``."""
        return _TimedDevice(self._verbs.open(device, gid), self._layer)


class _TimedDevice:
    def __init__(self, device: Device, layer: Layer) -> None:
        self._device = device
        self._layer = layer

    @property
    def name(self) -> str:
        return self._device.name

    def register(
        self, memory: mmap.mmap, *, remote_write: bool, offset: int = 0, length: int | None = None
    ) -> MemoryRegion:
        return self._device.register(memory, remote_write=remote_write, offset=offset, length=length)

    def create_queue_pair(self, *, send_depth: int, receive_depth: int) -> QueuePair:
        made = self._device.create_queue_pair(send_depth=send_depth, receive_depth=receive_depth)
        return _TimedQueuePair(made, self._layer)

    def close(self) -> None:
        self._device.close()


class _TimedQueuePair:
    def __init__(self, pair: QueuePair, layer: Layer) -> None:
        self._pair = pair
        self._timed = layer.timed
        self.max_pieces = pair.max_pieces
        self.completion_fd = pair.completion_fd
        self.facts: QueuePairFacts = pair.facts

    def connect(self, peer: QueuePairFacts) -> None:
        self._pair.connect(peer)

    def post_receives(self, work_request_ids: Sequence[int]) -> None:
        self._timed(self._pair.post_receives, work_request_ids)

    def post_write(self, write: Write) -> None:
        self._timed(self._pair.post_write, write)

    def request_notification(self, solicited_only: bool = False) -> None:
        self._timed(self._pair.request_notification, solicited_only)

    def clear_events(self) -> None:
        self._timed(self._pair.clear_events)

    def poll(self, most: int) -> list[Completion]:
        return self._timed(self._pair.poll, most)

    def next_completions(self, most: int, solicited_only: bool) -> list[Completion]:
        return self._timed(self._pair.next_completions, most, solicited_only)

    def to_error(self) -> None:
        self._pair.to_error()

    def close(self) -> None:
        self._pair.close()
