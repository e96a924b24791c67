"""A verbs layer without a card: devices and queue pairs in this process that behave as soft-RoCE's do.

For tests of code that uses ``aioproducer.transport.rdma.verbs``. Bytes move between registered memories when a write is
delivered, not when it is posted, so memory that is reused too early shows as wrong bytes. A sender waits for a receiver
that is not ready without a limit, as with ``rnr_retry`` 7, and this is counted. It refuses what a card refuses: keys,
bounds, rights, full queues, closing in the wrong order.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from aioproducer.transport.rdma.ports import gid_of
from aioproducer.transport.rdma.verbs import (
    CompletionStatus,
    QueuePairFacts,
    RdmaUnavailableError,
    VerbsError,
)
from aioproducer.transport.rdma.work_requests import Completion, Piece, Write

_MTU = 1024
_MAX_PIECES = 16


class LiveObjects(NamedTuple):
    """Numbers of objects of each kind that were made and not closed."""

    devices: int
    memory_regions: int
    queue_pairs: int


class SimulatedFabric:
    """A verbs layer (``Verbs``) and the network behind it: queue pairs of all its devices reach each other.

    Writes are delivered while they are posted. After ``hold``, ``step`` delivers them one after the other, and
    ``release`` all. Only ``poll`` returns completions.

    devices
        Name and address of each device.
    before
        Called with a verb's name before each verb that may block (``open``, ``register``, ``create_queue_pair``,
        ``connect``, ``to_error``, ``close``), in the calling thread: a test may inspect the thread, wait in it, or
        raise ``VerbsError`` to make the verb fail.
    receiver_not_ready
        How many writes found no receive posted.
    """

    def __init__(self, devices: dict[str, str] | None = None) -> None:
        self._addresses = dict(devices) if devices is not None else {"simulated0": "127.0.0.1"}
        self._lock = _FabricLock()
        self._keys = itertools.count(0x1001)
        self._numbers = itertools.count(17)
        self._holding = False
        self._refused = 0
        self._allowed = 0
        self._under_way: deque[SimulatedQueuePair] = deque()
        self._devices: set[SimulatedDevice] = set()
        self._regions: dict[int, SimulatedMemoryRegion] = {}
        self._queue_pairs: dict[int, SimulatedQueuePair] = {}
        self.before: Callable[[str], None] | None = None
        self.receiver_not_ready = 0

    def open(self, device: str | None, gid: str | None) -> SimulatedDevice:
        """As ``Verbs.open``."""
        self._begin("open")
        with self._lock:
            if not self._addresses:
                raise RdmaUnavailableError("there is no RDMA device: the simulated fabric was made without one")
            names = [name for name, address in self._addresses.items() if gid is None or gid_of(address) == gid_of(gid)]
            if device is not None and device not in self._addresses:
                raise RdmaUnavailableError(f"there is no RDMA device {device}; there are: {', '.join(self._addresses)}")
            found = next((name for name in names if device in (None, name)), None)
            if found is None:
                raise RdmaUnavailableError(f"no port of {device or 'any RDMA device'} has the address {gid}")
            opened = SimulatedDevice(self, found, gid_of(self._addresses[found]))
            self._devices.add(opened)
            return opened

    @property
    def live(self) -> LiveObjects:
        """Objects that were made and not closed."""
        with self._lock:
            return LiveObjects(len(self._devices), len(self._regions), len(self._queue_pairs))

    @property
    def queue_pairs(self) -> list[SimulatedQueuePair]:
        """The queue pairs that are not closed, oldest first."""
        with self._lock:
            return list(self._queue_pairs.values())

    def hold(self) -> None:
        """Deliver writes that are posted from now on only by ``step`` or ``release``."""
        with self._lock:
            self._holding = True

    def step(self, most: int = 1) -> int:
        """Deliver at most that many of the held writes, oldest first; return how many were delivered."""
        with self._lock:
            return self._deliver(most)

    def release(self) -> None:
        """Deliver the held writes, and from now on each write when it is posted."""
        with self._lock:
            self._holding = False
            self._deliver(None)

    def refuse_registrations(self, times: int, *, after: int = 0) -> None:
        """Let later registrations fail as if the limit of locked memory were reached."""
        with self._lock:
            self._allowed = after
            self._refused = times

    def cut(self, queue_pair: SimulatedQueuePair) -> None:
        """Cut a queue pair off in both directions, as if its process or machine had gone.

        It is not notified; a peer that writes to it gives up.
        """
        with self._lock:
            queue_pair._cut = True
            self._changed()

    def _begin(self, verb: str) -> None:
        if self.before is not None:
            self.before(verb)

    def _posted(self, queue_pair: SimulatedQueuePair) -> None:
        self._under_way.append(queue_pair)
        if not self._holding:
            self._deliver(None)

    def _deliver(self, most: int | None) -> int:
        delivered = 0
        progress = True
        while progress:
            progress = False
            waiting: deque[SimulatedQueuePair] = deque()
            while self._under_way and (most is None or delivered < most):
                queue_pair = self._under_way.popleft()
                if not queue_pair._sends:
                    # Flushed.
                    continue
                # If a write waits for its receiver, all later ones of the same queue pair wait too.
                if queue_pair in waiting or not queue_pair._deliver_one():
                    waiting.append(queue_pair)
                else:
                    delivered += 1
                    progress = bool(waiting)
            self._under_way.extendleft(reversed(waiting))
        return delivered

    def _changed(self) -> None:
        """Resume writes that waited for a queue pair: it has receives again, or accepts none any longer."""
        if not self._holding:
            self._deliver(None)


class _FabricLock:
    """The reentrant lock of every verb.

    Completion events are raised when it is released, because a woken thread acquires it at once.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._to_tell: list[SimulatedQueuePair] = []

    def schedule_event(self, queue_pair: SimulatedQueuePair) -> None:
        """Schedule an event of ``queue_pair`` for a completion; the caller holds the lock."""
        self._to_tell.append(queue_pair)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        to_tell: list[SimulatedQueuePair] = []
        if not self._depth:
            to_tell, self._to_tell = self._to_tell, to_tell
        self._lock.release()
        for queue_pair in to_tell:
            queue_pair._raise_event()


class SimulatedDevice:
    """As ``Device``."""

    def __init__(self, fabric: SimulatedFabric, name: str, gid: bytes) -> None:
        self._fabric = fabric
        self._name = name
        self._gid = gid
        self._children: set[SimulatedMemoryRegion | SimulatedQueuePair] = set()
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    def register(
        self, memory: mmap.mmap, *, remote_write: bool, offset: int = 0, length: int | None = None
    ) -> SimulatedMemoryRegion:
        """As ``Device.register``."""
        fabric = self._fabric
        fabric._begin("register")
        with fabric._lock:
            self._check_open()
            length = len(memory) - offset if length is None else length
            if fabric._refused and fabric._allowed:
                fabric._allowed -= 1
            elif fabric._refused:
                fabric._refused -= 1
                raise VerbsError(
                    errno.ENOMEM,
                    f"cannot register {length} bytes: the limit of locked memory is reached (ulimit -l)",
                )
            part = memoryview(memory)[offset : offset + length]
            region = SimulatedMemoryRegion(self, part, next(fabric._keys), remote_write)
            fabric._regions[region.remote_key] = region
            self._children.add(region)
            return region

    def create_queue_pair(self, *, send_depth: int, receive_depth: int) -> SimulatedQueuePair:
        """As ``Device.create_queue_pair``."""
        fabric = self._fabric
        fabric._begin("create_queue_pair")
        with fabric._lock:
            self._check_open()
            queue_pair = SimulatedQueuePair(self, next(fabric._numbers), send_depth, receive_depth)
            fabric._queue_pairs[queue_pair.facts.number] = queue_pair
            self._children.add(queue_pair)
            return queue_pair

    def close(self) -> None:
        """As ``Device.close``."""
        self._fabric._begin("close")
        with self._fabric._lock:
            if self._closed:
                return
            if self._children:
                kinds = sorted(type(child).__name__.removeprefix("Simulated") for child in self._children)
                raise VerbsError(errno.EBUSY, f"cannot close {self._name}: close its {', '.join(kinds)} first")
            self._closed = True
            self._fabric._devices.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise VerbsError(errno.EBADF, f"{self._name} is closed")


class SimulatedMemoryRegion:
    """As ``MemoryRegion``."""

    def __init__(self, device: SimulatedDevice, memory: memoryview, key: int, remote_write: bool) -> None:
        # Keeps the memory mapped. A card does not, but relies on it.
        first = ctypes.c_char.from_buffer(memory)
        self._device = device
        self._address = ctypes.addressof(first)
        self._view = memory
        self._first: ctypes.c_char | None = first
        self._length = len(memory)
        self._key = key
        self._remote_write = remote_write

    @property
    def address(self) -> int:
        return self._address

    @property
    def length(self) -> int:
        return self._length

    @property
    def local_key(self) -> int:
        return self._key

    @property
    def remote_key(self) -> int:
        return self._key

    def close(self) -> None:
        """As ``MemoryRegion.close``."""
        fabric = self._device._fabric
        fabric._begin("close")
        with fabric._lock:
            if fabric._regions.pop(self._key, None) is not None:
                self._view.release()
                self._first = None
                self._device._children.discard(self)

    def _slice(self, device: SimulatedDevice, address: int, length: int) -> memoryview | None:
        """Return these bytes, or ``None`` if they are not in this region, or the region is another device's."""
        start = address - self._address
        if device is not self._device or start < 0 or start + length > self._length:
            return None
        return self._view[start : start + length]


class _State(Enum):
    INITIALIZED = auto()
    CONNECTED = auto()
    ERROR = auto()
    CLOSED = auto()


class _Notification(Enum):
    """Which completion raises an event."""

    NONE = auto()
    SOLICITED = auto()
    """A receive. Every write is solicited. Failed writes raise no event, as with soft-RoCE."""
    ANY = auto()


# Looked up with every message: in Python 3.11 an Enum's member costs a call.
_INITIALIZED, _CONNECTED, _ERROR, _CLOSED = _State.INITIALIZED, _State.CONNECTED, _State.ERROR, _State.CLOSED
_NONE, _SOLICITED, _ANY = _Notification.NONE, _Notification.SOLICITED, _Notification.ANY
_SUCCESS = CompletionStatus.SUCCESS


class _Posted(NamedTuple):
    work_request_id: int
    pieces: tuple[Piece, ...]
    remote_address: int
    remote_key: int
    immediate: int
    signaled: bool
    sequence: int


class SimulatedQueuePair:
    """As ``QueuePair``."""

    def __init__(self, device: SimulatedDevice, number: int, send_depth: int, receive_depth: int) -> None:
        self._device = device
        self._fabric = device._fabric
        self._facts = QueuePairFacts(number, device._gid, number * 1000, _MTU)
        self._send_depth = send_depth
        self._receive_depth = receive_depth
        self._state = _INITIALIZED
        self._peer: QueuePairFacts | None = None
        self._sends: deque[_Posted] = deque()
        self._receives: deque[int] = deque()
        self._completions: deque[tuple[Completion, int]] = deque()
        # Numbers of writes: posted, and those that no longer occupy the send queue.
        self._posted = 0
        self._retired = 0
        self._receives_held = 0
        self._not_ready_counted = -1
        self._notification = _NONE
        self._cut = False
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        # Held while the descriptors are written to, and while both are closed.
        self._event_lock = threading.Lock()

    @property
    def facts(self) -> QueuePairFacts:
        return self._facts

    @property
    def max_pieces(self) -> int:
        return _MAX_PIECES

    @property
    def completion_fd(self) -> int:
        return self._readable

    def connect(self, peer: QueuePairFacts) -> None:
        """As ``QueuePair.connect``."""
        self._fabric._begin("connect")
        with self._fabric._lock:
            self._check_open()
            if self._state is not _INITIALIZED:
                raise VerbsError(errno.EINVAL, f"cannot connect a queue pair that is {self._state.name.lower()}")
            self._state = _CONNECTED
            self._peer = peer
            self._fabric._changed()

    def post_receives(self, work_request_ids: Sequence[int]) -> None:
        """As ``QueuePair.post_receives``."""
        with self._fabric._lock:
            self._check_open()
            for work_request_id in work_request_ids:
                if self._receives_held == self._receive_depth:
                    raise VerbsError(errno.ENOMEM, f"the receive queue is full ({self._receive_depth} receives)")
                self._receives_held += 1
                self._receives.append(work_request_id)
            if self._state is not _ERROR:
                self._fabric._changed()

    def post_write(self, write: Write) -> None:
        """As ``QueuePair.post_write``."""
        pieces = tuple(write.pieces)
        with self._fabric._lock:
            self._check_open()
            if self._state is _INITIALIZED:
                raise VerbsError(errno.EINVAL, "cannot post a write: the queue pair is not connected")
            if len(pieces) > _MAX_PIECES:
                raise VerbsError(errno.EINVAL, f"cannot post a write of {len(pieces)} pieces: at most {_MAX_PIECES}")
            if not 0 <= write.immediate < 1 << 32:
                raise OverflowError(f"immediate has 32 bits: {write.immediate:#x}")
            if self._posted - self._retired == self._send_depth:
                raise VerbsError(errno.ENOMEM, f"the send queue is full ({self._send_depth} writes)")
            self._posted += 1
            posted = _Posted(
                write.work_request_id,
                pieces,
                write.remote_address,
                write.remote_key,
                write.immediate,
                write.signaled,
                self._posted,
            )
            self._sends.append(posted)
            if self._state is _ERROR:
                self._flush()
            else:
                self._fabric._posted(self)

    def request_notification(self, solicited_only: bool = False) -> None:
        """As ``QueuePair.request_notification``."""
        with self._fabric._lock:
            self._check_open()
            if not solicited_only:
                self._notification = _ANY
            elif self._notification is _NONE:
                self._notification = _SOLICITED

    def clear_events(self) -> None:
        """As ``QueuePair.clear_events``."""
        with self._fabric._lock:
            self._check_open()
            try:
                while os.read(self._readable, 4096):
                    pass
            except BlockingIOError:
                pass

    def poll(self, most: int) -> list[Completion]:
        """As ``QueuePair.poll``."""
        with self._fabric._lock:
            self._check_open()
            polled: list[Completion] = []
            while self._completions and len(polled) < most:
                completion, sequence = self._completions.popleft()
                if completion.received:
                    self._receives_held -= 1
                else:
                    self._retired = max(self._retired, sequence)
                polled.append(completion)
            return polled

    def next_completions(self, most: int, solicited_only: bool) -> list[Completion]:
        """As ``QueuePair.next_completions``."""
        with self._fabric._lock:
            self.clear_events()
            self.request_notification(solicited_only)
            return self.poll(most)

    def to_error(self) -> None:
        """As ``QueuePair.to_error``; a test calls it to simulate a card that gives up."""
        self._fabric._begin("to_error")
        with self._fabric._lock:
            self._check_open()
            self._fail()
            self._fabric._changed()

    def close(self) -> None:
        """As ``QueuePair.close``; a test calls it to simulate the queue pair of a killed process."""
        self._fabric._begin("close")
        with self._fabric._lock:
            if self._state is _CLOSED:
                return
            self._state = _CLOSED
            self._sends.clear()
            del self._fabric._queue_pairs[self._facts.number]
            self._fabric._under_way = deque(other for other in self._fabric._under_way if other is not self)
            self._device._children.discard(self)
            with self._event_lock:
                os.close(self._readable)
                os.close(self._writable)
            self._fabric._changed()

    def _check_open(self) -> None:
        if self._state is _CLOSED:
            raise VerbsError(errno.EBADF, f"queue pair {self._facts.number} is closed")

    def _deliver_one(self) -> bool:
        """Carry out the oldest write; return ``False`` if it has to wait for its receiver."""
        write = self._sends[0]
        assert self._peer is not None
        peer = self._fabric._queue_pairs.get(self._peer.number)
        if peer is None or self._cut or peer._cut:
            return self._fail_with(write, CompletionStatus.TRANSPORT_RETRY_EXCEEDED)
        if peer._state is _INITIALIZED:
            return False
        # A queue pair drops packets that are not from its peer.
        if peer._state is not _CONNECTED or peer._peer != self._facts:
            return self._fail_with(write, CompletionStatus.TRANSPORT_RETRY_EXCEEDED)
        sources = [self._source(piece) for piece in write.pieces]
        known = [source for source in sources if source is not None]
        if len(known) != len(sources):
            return self._fail_with(write, CompletionStatus.LOCAL_OPERATION_ERROR)
        if not peer._receives:
            if self._not_ready_counted != write.sequence:
                self._not_ready_counted = write.sequence
                self._fabric.receiver_not_ready += 1
            return False
        length = sum(len(source) for source in known)
        target = peer._target(write.remote_address, length, write.remote_key)
        if length and target is None:
            refused = CompletionStatus.REMOTE_ACCESS_ERROR
            peer._complete(Completion(peer._receives.popleft(), refused, True, 0, 0))
            peer._fail()
            return self._fail_with(write, refused)
        written = 0
        for source in known:
            assert target is not None or not source
            if target is not None:
                target[written : written + len(source)] = source
            written += len(source)
        received = peer._receives.popleft()
        peer._complete(Completion(received, _SUCCESS, True, length, write.immediate))
        self._sends.popleft()
        if write.signaled:
            self._complete(Completion(write.work_request_id, _SUCCESS, False, 0, 0), write.sequence)
        return True

    def _source(self, piece: Piece) -> memoryview | None:
        address, length, local_key = piece
        region = self._fabric._regions.get(local_key)
        return None if region is None else region._slice(self._device, address, length)

    def _target(self, address: int, length: int, key: int) -> memoryview | None:
        region = self._fabric._regions.get(key)
        return None if region is None or not region._remote_write else region._slice(self._device, address, length)

    def _fail_with(self, write: _Posted, status: CompletionStatus) -> bool:
        self._sends.popleft()
        self._complete(Completion(write.work_request_id, status, False, 0, 0), write.sequence)
        self._fail()
        return True

    def _fail(self) -> None:
        self._state = _ERROR
        self._flush()

    def _flush(self) -> None:
        flushed = CompletionStatus.WORK_REQUEST_FLUSHED
        while self._sends:
            write = self._sends.popleft()
            self._complete(Completion(write.work_request_id, flushed, False, 0, 0), write.sequence)
        while self._receives:
            self._complete(Completion(self._receives.popleft(), flushed, True, 0, 0))

    def _complete(self, completion: Completion, sequence: int = 0) -> None:
        self._completions.append((completion, sequence))
        wanted = self._notification
        if wanted is _ANY or (wanted is _SOLICITED and completion.received):
            self._notification = _NONE
            self._fabric._lock.schedule_event(self)

    def _raise_event(self) -> None:
        """Raise an event; the caller does not hold the fabric's lock."""
        with self._event_lock:
            if self._state is not _CLOSED:
                os.write(self._writable, b"\0")
