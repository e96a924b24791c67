"""The verbs by pyverbs, rdma-core's Python binding, version 44 or newer.

pyverbs holds the GIL in every call. Long calls are therefore kept short (memory is paged in before it is registered),
and an event is fetched only after it has arrived. Constants are libibverbs' binary interface, because the modules that
pyverbs defines their names in differ between versions.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import logging
import mmap
import os
import resource
import secrets
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from aioproducer.transport.rdma.ports import MTU_BYTES, Port, choose_port, gid_text, gid_words, ports_of
from aioproducer.transport.rdma.verbs import QueuePairFacts, RdmaUnavailableError, VerbsError
from aioproducer.transport.rdma.work_requests import Completion, Write

_QPT_RC = 2
_QPS_ERR = 6
_QP_STATE = 1
_WR_RDMA_WRITE_WITH_IMM = 1
_SEND_SIGNALED = 2
_SEND_SOLICITED = 4
_ACCESS_LOCAL_WRITE = 1
_ACCESS_REMOTE_WRITE = 2
_MTU_CODES = {size: code for code, size in MTU_BYTES.items()}

# 4.096 us * 2**14 for an acknowledgement, six retries: half a second until a dead peer is noticed. With seven it never
# is.
_TIMEOUT = 14
_RETRY_COUNT = 6
# A receiver that is not ready is retried forever (7), 0.64 ms apart (12): the transport's credits rule this out.
_RECEIVER_NOT_READY_RETRY = 7
_RECEIVER_NOT_READY_TIMER = 12
_HOP_LIMIT = 64

_MAX_PIECES = 16

# If a completion failed, only the id of its work request is defined. It must therefore distinguish receives from sends.
_RECEIVE_BIT = 1 << 63

# Linux 5.14; not in the mmap module of every supported Python.
_MADV_POPULATE_WRITE = 23

# A device or completion channel that another thread opens at that time would be mistaken for pyverbs' own.
_opening = threading.Lock()


def _after_fork() -> None:
    # Another thread, which does not exist in the child, may hold the lock.
    global _opening
    _opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class PyverbsLayer:
    """The RDMA devices of this machine (``Verbs``).

    Raises:
        RdmaUnavailableError: pyverbs cannot be imported; the text says why.
    """

    def __init__(self) -> None:
        self._pyverbs = _import_pyverbs()

    def open(self, device: str | None, gid: str | None) -> PyverbsDevice:
        """As ``Verbs.open``. ``None`` prefers RoCE v2, IPv4 addresses, and addresses that other machines can reach."""
        names = self.device_names()
        if device is not None and device not in names:
            raise RdmaUnavailableError(f"there is no RDMA device {device}; there are: {', '.join(names)}")
        opened: dict[str, Any] = {}
        ports: list[Port] = []
        problems: list[str] = []
        try:
            for name in [device] if device is not None else names:
                try:
                    opened[name] = self._open(name)
                    ports += ports_of(name, opened[name], problems)
                except (VerbsError, self._pyverbs.error) as error:
                    problems.append(str(error))
            chosen = choose_port(ports, gid, problems)
            context = opened.pop(chosen.device)
        finally:
            for other in opened.values():
                other.close()
        try:
            domain = self._pyverbs.pd.PD(context)
        except self._pyverbs.error as error:
            context.close()
            raise _failed(f"cannot make a protection domain of {chosen.device}", error) from error
        return PyverbsDevice(self._pyverbs, context, domain, chosen)

    def device_names(self) -> list[str]:
        """Return the names of all devices, at least one.

        Raises:
            RdmaUnavailableError: there is none; the text says what to do.
        """
        try:
            names = [_text(found.name) for found in self._pyverbs.device.get_device_list()]
        except self._pyverbs.error as error:
            raise RdmaUnavailableError(
                f"this machine has no RDMA: {error} (modprobe ib_uverbs, and the driver of the card or rdma_rxe; in a "
                "container, /sys/class/infiniband_verbs and /dev/infiniband have to be there)"
            ) from error
        if not names:
            raise RdmaUnavailableError(
                "there is no RDMA device: load the driver of the card, or create a software device "
                "(modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0)"
            )
        return names

    def _open(self, name: str) -> Any:
        try:
            with _opening:
                return self._pyverbs.device.Context(name=name)
        except self._pyverbs.error as error:
            raise _failed(f"cannot open {name}", error, "check the permissions of /dev/infiniband/uverbs*") from error


class PyverbsDevice:
    """As ``Device``."""

    def __init__(self, pyverbs: _Pyverbs, context: Any, domain: Any, port: Port) -> None:
        self._pyverbs = pyverbs
        self._context = context
        self._domain = domain
        self._port = port
        self._children: set[PyverbsMemoryRegion | PyverbsQueuePair] = set()
        self._closed = False

    @property
    def name(self) -> str:
        return self._port.device

    @property
    def gid(self) -> str:
        """The chosen address, as text."""
        return gid_text(self._port.gid)

    def register(
        self, memory: mmap.mmap, *, remote_write: bool, offset: int = 0, length: int | None = None
    ) -> PyverbsMemoryRegion:
        """As ``Device.register``."""
        self._check_open()
        access = _ACCESS_LOCAL_WRITE | _ACCESS_REMOTE_WRITE if remote_write else 0
        length = len(memory) - offset if length is None else length
        region = PyverbsMemoryRegion(self, memory, offset, length, access)
        self._children.add(region)
        return region

    def create_queue_pair(self, *, send_depth: int, receive_depth: int) -> PyverbsQueuePair:
        """As ``Device.create_queue_pair``."""
        self._check_open()
        queue_pair = PyverbsQueuePair(self, send_depth, receive_depth)
        self._children.add(queue_pair)
        return queue_pair

    def close(self) -> None:
        """As ``Device.close``."""
        if self._closed:
            return
        if self._children:
            kinds = sorted(type(child).__name__.removeprefix("Pyverbs") for child in self._children)
            raise VerbsError(errno.EBUSY, f"cannot close {self.name}: close its {', '.join(kinds)} first")
        with _verb(self._pyverbs, f"cannot close {self.name}"):
            self._domain.close()
            self._context.close()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise VerbsError(errno.EBADF, f"{self.name} is closed")


class PyverbsMemoryRegion:
    """As ``MemoryRegion``."""

    def __init__(self, device: PyverbsDevice, memory: mmap.mmap, offset: int, length: int, access: int) -> None:
        # Keeps the memory mapped as long as this object exists.
        self._first: ctypes.c_char | None = ctypes.c_char.from_buffer(memory, offset)
        self._device = device
        self._address = ctypes.addressof(self._first)
        self._length = length
        _page_in(self._address, self._length)
        pyverbs = device._pyverbs
        try:
            self._region = pyverbs.mr.MR(device._domain, self._length, access, address=self._address)
        except pyverbs.error as error:
            # Otherwise the traceback would keep it.
            self._first = None
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            limited = _code(error) in (errno.ENOMEM, errno.EAGAIN, errno.EPERM) and limit != resource.RLIM_INFINITY
            raise _failed(
                f"cannot register {self._length} bytes",
                error,
                f"the limit of locked memory is {limit} bytes (ulimit -l, LimitMEMLOCK= of a systemd unit)"
                if limited
                else None,
            ) from error
        self._local_key: int = self._region.lkey
        self._remote_key: int = self._region.rkey

    @property
    def address(self) -> int:
        return self._address

    @property
    def length(self) -> int:
        return self._length

    @property
    def local_key(self) -> int:
        return self._local_key

    @property
    def remote_key(self) -> int:
        return self._remote_key

    def close(self) -> None:
        """As ``MemoryRegion.close``."""
        if self._first is None:
            return
        with _verb(self._device._pyverbs, f"cannot deregister {self._length} bytes"):
            self._region.close()
        self._first = None
        self._device._children.discard(self)


class PyverbsQueuePair:
    """As ``QueuePair``."""

    def __init__(self, device: PyverbsDevice, send_depth: int, receive_depth: int) -> None:
        self._device = device
        self._pyverbs = device._pyverbs
        # pyverbs crashes when it uses a closed object.
        self._lock = threading.RLock()
        self._closed = False
        self._connected = False
        pyverbs, context = device._pyverbs, device._context
        made: list[Any] = []
        with _verb(pyverbs, f"cannot make a queue pair of {send_depth} sends and {receive_depth} receives"):
            try:
                self._channel, self._completion_fd = _completion_channel(pyverbs, context)
                made.append(self._channel)
                self._queue = pyverbs.cq.CQ(context, send_depth + receive_depth, channel=self._channel)
                made.append(self._queue)
                depths = pyverbs.qp.QPCap(
                    max_send_wr=send_depth, max_recv_wr=receive_depth, max_send_sge=_MAX_PIECES, max_recv_sge=1
                )
                attributes = pyverbs.qp.QPInitAttr(
                    qp_type=_QPT_RC, scq=self._queue, rcq=self._queue, cap=depths, sq_sig_all=0
                )
                self._pair = pyverbs.qp.QP(device._domain, attributes)
                made.append(self._pair)
                initial = pyverbs.qp.QPAttr(port_num=device._port.number)
                initial.qp_access_flags = _ACCESS_REMOTE_WRITE
                self._pair.to_init(initial)
            except BaseException:
                for thing in reversed(made):
                    thing.close()
                raise
        self._events = select.poll()
        self._events.register(self._completion_fd, select.POLLIN)
        port = device._port
        self._facts = QueuePairFacts(self._pair.qp_num, port.gid, secrets.randbits(24), port.mtu)
        # Posting copies. The same objects serve every request, because making them would cost more than all the rest.
        # pyverbs cannot make a request without a piece, but accepts a count of zero afterwards.
        self._pieces = [pyverbs.wr.SGE(0, 0, 0) for _ in range(_MAX_PIECES)]
        self._receive = pyverbs.wr.RecvWR(num_sge=1, sg=self._pieces)
        self._receive.num_sge = 0

    @property
    def facts(self) -> QueuePairFacts:
        return self._facts

    @property
    def max_pieces(self) -> int:
        return _MAX_PIECES

    @property
    def completion_fd(self) -> int:
        return self._completion_fd

    def connect(self, peer: QueuePairFacts) -> None:
        """As ``QueuePair.connect``."""
        pyverbs, port = self._pyverbs, self._device._port
        gid = gid_text(peer.gid)
        with self._lock, _verb(pyverbs, f"cannot connect a queue pair to {gid}, number {peer.number}"):
            self._check_open()
            if self._connected:
                raise VerbsError(errno.EINVAL, "cannot connect a queue pair that is connected")
            route = pyverbs.addr.GlobalRoute(
                dgid=pyverbs.addr.GID(gid_words(peer.gid)), sgid_index=port.gid_index, hop_limit=_HOP_LIMIT
            )
            attributes = pyverbs.qp.QPAttr(port_num=port.number)
            attributes.ah_attr = pyverbs.addr.AHAttr(gr=route, is_global=1, port_num=port.number)
            attributes.path_mtu = _MTU_CODES[min(port.mtu, peer.mtu)]
            attributes.dest_qp_num = peer.number
            attributes.rq_psn = peer.packet_number
            attributes.sq_psn = self._facts.packet_number
            attributes.min_rnr_timer = _RECEIVER_NOT_READY_TIMER
            attributes.rnr_retry = _RECEIVER_NOT_READY_RETRY
            attributes.timeout = _TIMEOUT
            attributes.retry_cnt = _RETRY_COUNT
            attributes.max_dest_rd_atomic = 1
            attributes.max_rd_atomic = 1
            self._pair.to_rtr(attributes)
            self._pair.to_rts(attributes)
            self._connected = True

    def post_receives(self, work_request_ids: Sequence[int]) -> None:
        """As ``QueuePair.post_receives``."""
        with self._lock, _verb(self._pyverbs, "cannot post a receive"):
            self._check_open()
            for work_request_id in work_request_ids:
                self._receive.wr_id = work_request_id | _RECEIVE_BIT
                self._pair.post_recv(self._receive)

    def post_write(self, write: Write) -> None:
        """As ``QueuePair.post_write``."""
        pieces = write.pieces
        if len(pieces) > _MAX_PIECES:
            raise VerbsError(errno.EINVAL, f"cannot post a write of {len(pieces)} pieces: at most {_MAX_PIECES}")
        with self._lock:
            self._check_open()
            if not self._connected:
                raise VerbsError(errno.EINVAL, "cannot post a write: the queue pair is not connected")
            for slot, piece in zip(self._pieces, pieces, strict=False):
                slot.addr, slot.length, slot.lkey = piece
            try:
                request = self._pyverbs.wr.SendWR(
                    wr_id=write.work_request_id,
                    opcode=_WR_RDMA_WRITE_WITH_IMM,
                    num_sge=len(pieces) or 1,
                    sg=self._pieces,
                    imm_data=socket.htonl(write.immediate),
                    send_flags=_SEND_SOLICITED | _SEND_SIGNALED if write.signaled else _SEND_SOLICITED,
                )
                if not pieces:
                    request.num_sge = 0
                request.set_wr_rdma(write.remote_key, write.remote_address)
                self._pair.post_send(request)
            except self._pyverbs.error as error:
                raise _failed("cannot post a write", error) from error

    def request_notification(self, solicited_only: bool = False) -> None:
        """As ``QueuePair.request_notification``."""
        with self._lock:
            self._check_open()
            try:
                self._queue.req_notify(solicited_only)
            except self._pyverbs.error as error:
                raise _failed("cannot request a notification", error) from error

    def clear_events(self) -> None:
        """As ``QueuePair.clear_events``."""
        with self._lock:
            self._check_open()
            try:
                while self._events.poll(0):
                    self._channel.get_cq_event(self._queue)
                    self._queue.ack_events(1)
            except self._pyverbs.error as error:
                raise _failed("cannot take a completion event", error) from error

    def poll(self, most: int) -> list[Completion]:
        """As ``QueuePair.poll``."""
        with self._lock:
            self._check_open()
            try:
                _, polled = self._queue.poll(most)
            except self._pyverbs.error as error:
                raise _failed("cannot poll for completions", error) from error
        return [_completion(found) for found in polled]

    def next_completions(self, most: int, solicited_only: bool) -> list[Completion]:
        """As ``QueuePair.next_completions``."""
        with self._lock:
            self.clear_events()
            self.request_notification(solicited_only)
            return self.poll(most)

    def to_error(self) -> None:
        """As ``QueuePair.to_error``."""
        with self._lock, _verb(self._pyverbs, "cannot put a queue pair into its error state"):
            self._check_open()
            attributes = self._pyverbs.qp.QPAttr()
            attributes.qp_state = _QPS_ERR
            self._pair.modify(attributes, _QP_STATE)

    def close(self) -> None:
        """As ``QueuePair.close``."""
        with self._lock, _verb(self._pyverbs, "cannot destroy a queue pair"):
            if self._closed:
                return
            self._closed = True
            self._pair.close()
            # Waits forever for events that were taken but not acknowledged; clear_events leaves none.
            self._queue.close()
            self._channel.close()
        self._device._children.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise VerbsError(errno.EBADF, f"queue pair {self._facts.number} is closed")


class _Pyverbs(NamedTuple):
    """The modules in use, and the exception that their calls raise."""

    device: Any
    pd: Any
    mr: Any
    cq: Any
    qp: Any
    wr: Any
    addr: Any
    error: type[Exception]


def _import_pyverbs() -> _Pyverbs:
    # pyverbs configures logging for the whole process on import. That is up to the program.
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return _Pyverbs(
            device=importlib.import_module("pyverbs.device"),
            pd=importlib.import_module("pyverbs.pd"),
            mr=importlib.import_module("pyverbs.mr"),
            cq=importlib.import_module("pyverbs.cq"),
            qp=importlib.import_module("pyverbs.qp"),
            wr=importlib.import_module("pyverbs.wr"),
            addr=importlib.import_module("pyverbs.addr"),
            error=importlib.import_module("pyverbs.pyverbs_error").PyverbsError,
        )
    except ModuleNotFoundError as missing:
        raise RdmaUnavailableError(
            f"RDMA needs pyverbs: {missing} (pip install aioproducer[rdma] with the headers of libibverbs, or Debian's "
            "and Ubuntu's python3-pyverbs and ibverbs-providers)"
        ) from missing
    except ImportError as broken:
        raise RdmaUnavailableError(
            f"pyverbs is there but cannot be loaded: {broken} (Debian, Ubuntu: apt install libibverbs1 librdmacm1 "
            "ibverbs-providers)"
        ) from broken
    finally:
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)


def _completion_channel(pyverbs: _Pyverbs, context: Any) -> tuple[Any, int]:
    """Return a completion channel and its file descriptor; it is non-blocking, so no call waits for an event."""
    with _opening:
        before = None if hasattr(pyverbs.cq.CompChannel, "fd") else _event_fds()
        channel = pyverbs.cq.CompChannel(context)
        # Before rdma-core 58 the channel does not expose it.
        fds = {channel.fd} if before is None else _event_fds() - before
    if len(fds) != 1:
        channel.close()
        raise VerbsError(errno.EMFILE, f"cannot find a completion channel's file descriptor: /proc shows {sorted(fds)}")
    (fd,) = fds
    os.set_blocking(fd, False)
    return channel, fd


def _event_fds() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[infinibandevent]":
                found.add(int(name))
        except FileNotFoundError:
            # Closed meanwhile, like the descriptor of the listing itself.
            continue
    return found


def _completion(found: Any) -> Completion:
    work_request_id: int = found.wr_id
    status: int = found.status
    received = bool(work_request_id & _RECEIVE_BIT)
    if received and not status:
        return Completion(
            work_request_id & ~_RECEIVE_BIT, status, received, found.byte_len, socket.ntohl(found.imm_data)
        )
    return Completion(work_request_id & ~_RECEIVE_BIT, status, received, 0, 0)


def _page_in(address: int, length: int) -> None:
    """Let the kernel map all pages now: ctypes lets other threads run meanwhile, pyverbs would not.

    A kernel that does not support this maps them when the memory is registered.
    """
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_POPULATE_WRITE)


@contextmanager
def _verb(pyverbs: _Pyverbs, what: str) -> Iterator[None]:
    """Convert errors of pyverbs into ``VerbsError``."""
    try:
        yield
    except pyverbs.error as error:
        raise _failed(what, error) from error


def _failed(what: str, error: Exception, hint: str | None = None) -> VerbsError:
    text = f"{what}: {error}" + (f"; {hint}" if hint else "")
    code = _code(error)
    return VerbsError(text) if code is None else VerbsError(code, text)


def _code(error: Exception) -> int | None:
    """Return ``errno`` if pyverbs knows it."""
    code: int = getattr(error, "error_code", -1)
    return None if code == -1 else abs(code)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
