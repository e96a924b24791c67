"""Verbs that may block run in a thread, never on the event loop.

A device is opened when the first connection needs it, and shared by all connections of a connector or listener on one
loop. After the last of them has gone, the device is closed and the thread ends: queue pairs first, then regions, then
memory, then the device. Completions need no thread: the loop itself watches their descriptor together with all others,
without the GIL, and handles them without switching threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import mmap
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from aioproducer.transport.rdma.handshake import MAX_RING_BYTES, MAX_SLOTS, MIN_CONTROLS, MIN_RING_BYTES, RingFacts
from aioproducer.transport.rdma.registration import RegisteredMemory
from aioproducer.transport.rdma.verbs import Device, QueuePairFacts, Verbs, VerbsError

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

RECEIVE_ID: Final = 1 << 62
"""The work request id of every receive; the ids of sends are smaller."""


@dataclass(frozen=True, slots=True)
class RingSizes:
    """The capacity of one side of a connection.

    ring_bytes
        Size of the receive ring, and of the send ring; each connection registers twice that.
    slots
        Messages with data that may wait in the receive ring; also the number of work requests with data.
    controls
        Messages without data (credits) that may be in transit in addition.
    """

    ring_bytes: int = 1024 * 1024
    slots: int = 128
    controls: int = 8

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("ring_bytes", self.ring_bytes, MIN_RING_BYTES, MAX_RING_BYTES),
            ("slots", self.slots, 1, MAX_SLOTS),
            ("controls", self.controls, MIN_CONTROLS, MAX_SLOTS),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} must be {least} to {most}, not {value}")

    @property
    def receive_depth(self) -> int:
        """Number of posted receives: one for each message that may arrive, and one for the goodbye."""
        return self.slots + self.controls + 1

    @property
    def send_reserve(self) -> int:
        """Work requests reserved for messages without data."""
        return self.controls + 1

    @property
    def send_depth(self) -> int:
        return self.slots + self.send_reserve


class Link:
    """The card's part of a connection: a queue pair and two rings. Made, connected and closed in the thread."""

    def __init__(self, device: Device, sizes: RingSizes) -> None:
        self.sizes = sizes
        with contextlib.ExitStack() as closing:
            # Anonymous memory of its own: whole pages without other data.
            self.receive_memory = mmap.mmap(-1, sizes.ring_bytes)
            self.receive_region = device.register(self.receive_memory, remote_write=True)
            closing.callback(self.receive_region.close)
            self.send_memory = mmap.mmap(-1, sizes.ring_bytes)
            self.send_region = device.register(self.send_memory, remote_write=False)
            closing.callback(self.send_region.close)
            self.queue_pair = device.create_queue_pair(send_depth=sizes.send_depth, receive_depth=sizes.receive_depth)
            closing.callback(self.queue_pair.close)
            self.facts = self.queue_pair.facts
            self._closing = closing.pop_all()

    @property
    def ring(self) -> RingFacts:
        """This side's receive ring, as the peer needs it."""
        region = self.receive_region
        return RingFacts(region.address, region.remote_key, region.length, self.sizes.slots, self.sizes.controls)

    def connect(self, peer: QueuePairFacts) -> None:
        """Get ready for the peer's messages; the peer may learn that it may send only after this."""
        self.queue_pair.post_receives([RECEIVE_ID] * self.sizes.receive_depth)
        self.queue_pair.request_notification()
        self.queue_pair.connect(peer)

    def close(self) -> None:
        """Destroy the queue pair, then the regions; the memory is freed with this object."""
        self._closing.close()


class SharedDevice:
    """An opened device, the callers' memory that is registered with it, and the thread for calls that may block.

    It belongs to the loop in which it is made. Every method but ``_open`` and ``_close`` is called there.
    """

    def __init__(self, verbs: Verbs, name: str | None, gid: str | None, memories: list[mmap.mmap]) -> None:
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.memories: dict[int, RegisteredMemory] = {}
        """Memory that can be gathered from, by its ``id``; kept alive here."""
        self._registering: dict[int, RegisteredMemory] = {}
        self._all_registered = asyncio.Event()
        self._all_registered.set()
        self._to_register = list(memories)
        """Memory to register once the device is opened."""
        self._not_deregistered: list[RegisteredMemory] = []
        self._device: Device | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="aioproducer-verbs")
        self.opening = self.run(self._open, verbs, name, gid)
        self.opening.add_done_callback(self._opened)

    @property
    def device(self) -> Device:
        assert self._device is not None
        return self._device

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call ``function`` in the thread, after the calls submitted before."""
        return asyncio.wrap_future(self._executor.submit(function, *args, **kwargs), loop=self.loop)

    def make_link(self, sizes: RingSizes) -> asyncio.Future[Link]:
        return self.run(lambda: Link(self.device, sizes))

    def register(self, memory: mmap.mmap) -> None:
        """Register memory in the thread; its buffers are copied until that is done.

        Connections that are made meanwhile wait for some of its parts, not for all: registering continues after them.
        """
        if self._device is None:
            self._to_register.append(memory)
        elif self.users and id(memory) not in self.memories and id(memory) not in self._registering:
            registered = self._registering[id(memory)] = RegisteredMemory(self._device, memory)
            self._all_registered.clear()
            self._register_more(registered)

    async def until_registered(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until no memory is being registered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_registered.wait()

    def unregister(self, memory: mmap.mmap) -> None:
        """Deregister memory from which nothing is sent any longer."""
        self._to_register = [other for other in self._to_register if other is not memory]
        registered = self.memories.pop(id(memory), None) or self._registering.pop(id(memory), None)
        if registered is not None and self.users:
            self._notify_registered()
            self.run(self._deregister, registered)

    def _opened(self, opening: asyncio.Future[None]) -> None:
        # If the tasks that wait for it are cancelled, no other code retrieves the exception.
        if opening.cancelled() or opening.exception() is not None:
            return
        memories, self._to_register = self._to_register, []
        for memory in memories:
            self.register(memory)

    def _register_more(self, registered: RegisteredMemory) -> None:
        self.run(registered.register_more).add_done_callback(functools.partial(self._registered_more, registered))

    def _registered_more(self, registered: RegisteredMemory, registering: asyncio.Future[bool]) -> None:
        error = registering.exception()
        key = id(registered.memory)
        if self._registering.get(key) is not registered:
            # Unregistered meanwhile: the parts so far are deregistered by a later call in the thread.
            return
        if error is None and not registering.result():
            self._register_more(registered)
            return
        del self._registering[key]
        self._notify_registered()
        if error is None:
            self.memories[key] = registered
        else:
            _logger.warning(
                "%d bytes of record memory are not registered for RDMA, so records are copied once: %s",
                len(registered.memory),
                error if isinstance(error, VerbsError) else repr(error),
            )

    def _notify_registered(self) -> None:
        if not self._registering:
            self._all_registered.set()

    def close(self) -> asyncio.Future[None]:
        """Close the device and end the thread; the future is done when both are gone."""
        closed: asyncio.Future[None] = self.loop.create_future()

        def end(closing: asyncio.Future[None]) -> None:
            # The thread has nothing left to do, so joining it takes only as long as the thread needs to end.
            self._executor.shutdown()
            error = closing.exception()
            if error is not None:
                _logger.error("Closing the RDMA device failed: %s", error)
            if not closed.done():
                closed.set_result(None)

        memories = [*self.memories.values(), *self._registering.values()]
        self.memories.clear()
        self._registering.clear()
        self._all_registered.set()
        closing = self.run(self._close, memories)
        # The thread ends even if the loop is closed before the thread could report it.
        self._executor.shutdown(wait=False)
        closing.add_done_callback(end)
        return closed

    # In the thread

    def _open(self, verbs: Verbs, name: str | None, gid: str | None) -> None:
        self._device = verbs.open(name, gid)

    def _deregister(self, registered: RegisteredMemory) -> None:
        try:
            registered.close()
        except Exception as error:
            _logger.error("Deregistering %d bytes of record memory failed: %s", len(registered.memory), error)
            # The card may still read the memory.
            self._not_deregistered.append(registered)

    def _close(self, memories: list[RegisteredMemory]) -> None:
        with contextlib.ExitStack() as closing:
            if self._device is not None:
                closing.callback(self._device.close)
                self._device = None
            for registered in memories:
                closing.callback(registered.close)
        self._not_deregistered.clear()


class DevicePool:
    """The devices of one connector or listener: one for each loop that uses it, for as long as it does."""

    def __init__(self, verbs: Verbs, name: str | None, gid: str | None) -> None:
        self._verbs = verbs
        self._name = name
        self._gid = gid
        self._shared: dict[asyncio.AbstractEventLoop, SharedDevice] = {}
        self._memories: list[weakref.ref[mmap.mmap]] = []

    def register(self, memory: mmap.mmap) -> None:
        """Register ``memory`` with every open device, and with every device opened later. Only those keep it alive."""
        if any(known() is memory for known in self._memories):
            return
        self._memories = [known for known in self._memories if known() is not None]
        self._memories.append(weakref.ref(memory))
        for shared in self._on_open_loops():
            shared.loop.call_soon_threadsafe(shared.register, memory)

    def unregister(self, memory: mmap.mmap) -> None:
        """Undo ``register``, when nothing is sent from ``memory`` any longer."""
        self._memories = [known for known in self._memories if known() not in (None, memory)]
        for shared in self._on_open_loops():
            shared.loop.call_soon_threadsafe(shared.unregister, memory)

    def _on_open_loops(self) -> list[SharedDevice]:
        return [shared for shared in self._shared.values() if not shared.loop.is_closed()]

    async def acquire(self) -> SharedDevice:
        """Return an opened device, to be passed to ``release`` once.

        Raises:
            RdmaUnavailableError: there is none.
            VerbsError: it could not be opened.
        """
        loop = asyncio.get_running_loop()
        shared = self._shared.get(loop)
        if shared is None:
            memories = [memory for known in self._memories if (memory := known()) is not None]
            shared = self._shared[loop] = SharedDevice(self._verbs, self._name, self._gid, memories)
        shared.users += 1
        try:
            await asyncio.shield(shared.opening)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                # The next call tries again.
                self._remove(shared)
            await asyncio.shield(self.release(shared))
            raise
        return shared

    def release(self, shared: SharedDevice) -> asyncio.Future[None]:
        """Give back a device; the future is done when, after the last user, it is completely closed."""
        shared.users -= 1
        if shared.users:
            released: asyncio.Future[None] = shared.loop.create_future()
            released.set_result(None)
            return released
        self._remove(shared)
        return shared.close()

    def _remove(self, shared: SharedDevice) -> None:
        if self._shared.get(shared.loop) is shared:
            del self._shared[shared.loop]
