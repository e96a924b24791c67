"""Connecting and accepting over RDMA.

A broker is identified by host and port, as over TCP. The handshake (``handshake``) runs over a TCP connection to them,
which stays open beside the queue pair for as long as the connection lives (``control``).

RDMA itself neither encrypts nor authenticates the handshake and the data. The tokens only keep connections apart.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import secrets
from collections.abc import Callable
from typing import Final

from aioproducer.transport.base import Buffer, Listening, Transport, TransportHandler
from aioproducer.transport.rdma.channel import RdmaTransport
from aioproducer.transport.rdma.control import Control, ControlConnector, ControlListener
from aioproducer.transport.rdma.counters import Counters
from aioproducer.transport.rdma.executor import DevicePool, Link, RingSizes, SharedDevice
from aioproducer.transport.rdma.handshake import TOKEN_SIZE, Facts, HandshakeError, Kind, Message, Ready
from aioproducer.transport.rdma.ports import gid_of
from aioproducer.transport.rdma.verbs import Verbs

_logger = logging.getLogger(__name__)

_WAITING_PER_PERMIT: Final = 4
"""TCP connections per permitted queue pair. They cost a descriptor each, and clients that all connect at once need some
milliseconds each before they send HELLO."""
_WAIT_FOR_MEMORY: Final = 1.0
"""Seconds that a connection waits for the callers' memory to be registered; until then records are copied."""
_CROWDED_SHARE: Final = 0.1
"""Share of its timeout that a client has to send READY while others wait."""


def default_verbs() -> Verbs:
    """Return the verbs of this machine, by pyverbs.

    Raises:
        RdmaUnavailableError: pyverbs is not installed, or there is no device.
    """
    from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer

    verbs = PyverbsLayer()
    verbs.device_names()
    return verbs


class _Endpoint:
    """The common part of connector and listener: their device, and how a connection is prepared."""

    def __init__(
        self,
        verbs: Verbs | None,
        device: str | None,
        gid: str | None,
        sizes: RingSizes,
        zero_copy: bool,
        linger_timeout: float,
    ) -> None:
        if gid is not None:
            # Refuse an impossible address here, not at each connection.
            gid_of(gid)
        self.devices = DevicePool(default_verbs() if verbs is None else verbs, device, gid)
        self.counters = Counters()
        self.abandoned: set[asyncio.Future[None]] = set()
        """Connections that were not established or not accepted, and are not completely released."""
        self._sizes = sizes
        self._zero_copy = zero_copy
        self._linger_timeout = linger_timeout

    def transport(self, shared: SharedDevice, link: Link, control: Control, peer: str, facts: Facts) -> RdmaTransport:
        """Return the transport of a connection for which both sides are ready."""
        transport = RdmaTransport(
            self.devices,
            shared,
            link,
            control,
            peer,
            facts.ring,
            self.counters,
            zero_copy=self._zero_copy,
            linger_timeout=self._linger_timeout,
        )
        control.set_owner(transport)
        return transport

    def begin(self, peer: str, control: Control) -> _PendingConnection:
        return _PendingConnection(self, self._sizes, peer, control)


class _PendingConnection:
    """A connection that is being established; it can be abandoned at any step."""

    def __init__(self, endpoint: _Endpoint, sizes: RingSizes, peer: str, control: Control) -> None:
        self.token = secrets.token_bytes(TOKEN_SIZE)
        self.control = control
        self.peer = peer
        self.permit: asyncio.Semaphore | None = None
        """Released once this object holds nothing of the card any longer."""
        self._endpoint = endpoint
        self._sizes = sizes
        self._shared: SharedDevice | None = None
        self._link: asyncio.Future[Link] | None = None

    async def prepare(self) -> None:
        """Create a queue pair and rings.

        Raises:
            OSError: the card or the system refused.
        """
        self._shared = await self._endpoint.devices.acquire()
        self._link = self._shared.make_link(self._sizes)
        await asyncio.shield(self._link)
        await self._shared.until_registered(_WAIT_FOR_MEMORY)

    def facts(self, kind: Kind, echo: bytes) -> Facts:
        """Return the facts to send to the peer."""
        assert self._link is not None
        link = self._link.result()
        return Facts(kind, self.token, echo, link.facts, link.ring)

    async def expect(self, kind: Kind) -> Facts:
        """Receive the peer's facts.

        Raises:
            HandshakeError: it sends another message.
        """
        message = await self.control.receive()
        if not isinstance(message, Facts) or message.kind is not kind:
            raise HandshakeError(
                errno.EPROTO, f"{self.peer}: RDMA handshake: unexpected message instead of {kind.name}"
            )
        if kind is Kind.WELCOME:
            self.check(message.echo)
        return message

    def check(self, echo: bytes) -> None:
        """Check that the peer repeated this connection's token.

        Raises:
            HandshakeError: it is another token.
        """
        if not secrets.compare_digest(echo, self.token):
            raise HandshakeError(
                errno.EPROTO, f"{self.peer}: RDMA handshake: wrong token: the message belongs to another connection"
            )

    async def connect(self, peer: Facts) -> None:
        """Connect the queue pair; the peer may write as soon as it receives the next message.

        Raises:
            VerbsError: the card refused.
        """
        assert self._shared is not None
        assert self._link is not None
        await asyncio.shield(self._shared.run(self._link.result().connect, peer.queue_pair))

    def finish(self, peer: Facts) -> RdmaTransport:
        """Return the transport, which owns everything from now on.

        Raises:
            HandshakeError: the peer has gone, refuses, or has sent an unexpected message.
        """
        self.control.check_no_more_messages()
        assert self._shared is not None
        assert self._link is not None
        transport = self._endpoint.transport(self._shared, self._link.result(), self.control, self.peer, peer)
        self._shared = None
        self._release_permit()
        return transport

    async def abandon(self) -> None:
        """Release everything, even if the caller is cancelled during that."""
        task = asyncio.get_running_loop().create_task(self._abandon())
        abandoned = self._endpoint.abandoned
        abandoned.add(task)
        task.add_done_callback(abandoned.discard)
        await asyncio.shield(task)

    async def _abandon(self) -> None:
        try:
            await self._close_link()
        finally:
            self._release_permit()
        await self.control.wait_lost()

    async def _close_link(self) -> None:
        # The rings' memory goes with the link: nothing may refer to the link afterwards.
        shared, self._shared = self._shared, None
        link, self._link = self._link, None
        if shared is None:
            return
        if link is not None:
            await asyncio.wait([link])
            if link.exception() is None:
                try:
                    await shared.run(link.result().close)
                except Exception as error:
                    _logger.error("Closing the RDMA connection to %s failed: %s", self.peer, error)
        await self._endpoint.devices.release(shared)

    def _release_permit(self) -> None:
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.release()


class RdmaConnector:
    """Makes connections over RDMA; a ``Connector``.

    Args:
        verbs: the verbs layer; ``None`` for this machine's, by pyverbs.
        device: the device's name; ``None`` for the first that works.
        gid: the text of the GID that connections are made from; ``None`` for the first that works.
        ring_bytes: size of the receive ring and of the send ring; each connection registers twice that.
        slots: maximum number of messages in a ring.
        zero_copy: gather buffers that lie in registered memory from there; otherwise all data is copied once.
        linger_timeout: seconds that a closed connection waits, after everything was sent, for the peer to end its side.

    Raises:
        ConfigurationError: ``gid`` is no address.
        RdmaUnavailableError: no ``verbs`` were given, and pyverbs is not installed or this machine has no device.
    """

    def __init__(
        self,
        verbs: Verbs | None = None,
        *,
        device: str | None = None,
        gid: str | None = None,
        ring_bytes: int = RingSizes().ring_bytes,
        slots: int = RingSizes().slots,
        zero_copy: bool = True,
        linger_timeout: float = 1.0,
    ) -> None:
        self._endpoint = _Endpoint(verbs, device, gid, RingSizes(ring_bytes, slots), zero_copy, linger_timeout)
        self._stream = ControlConnector(linger_timeout=linger_timeout)

    @property
    def counters(self) -> Counters:
        """Totals over all connections so far."""
        return self._endpoint.counters

    def register(self, memory: mmap.mmap) -> None:
        """Gather buffers that lie in ``memory`` from there, without a copy.

        ``memory`` is registered with the device once, for as long as there are connections. Buffers are copied if that
        is refused or not yet done. This object does not keep ``memory`` alive, but an open device does.
        """
        self._endpoint.devices.register(memory)

    def unregister(self, memory: mmap.mmap) -> None:
        """Undo ``register``: nothing is sent from ``memory`` any longer."""
        self._endpoint.devices.unregister(memory)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return all addresses of ``host``, as for TCP; see ``Connector.resolve``."""
        return await self._stream.resolve(host, port)

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> RdmaTransport:
        """Connect to an RDMA listener; see ``Connector.connect``. ``server_hostname`` is not used: there is no TLS.

        Cancelling waits until nothing is left open.

        Raises:
            NotRdmaError: the server there does not speak RDMA.
            HandshakeError: the other side refused.
            RdmaUnavailableError: this machine has no RDMA device.
            OSError: no TCP connection could be made, or a call to the card failed.
        """
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        control = Control(peer, accepting=False)
        control.transport = await self._stream.connect(host, port, control)
        pending = self._endpoint.begin(peer, control)
        try:
            await pending.prepare()
            control.send(pending.facts(Kind.HELLO, bytes(TOKEN_SIZE)))
            facts = await pending.expect(Kind.WELCOME)
            await pending.connect(facts)
            control.send(Ready(facts.token))
            transport = pending.finish(facts)
        except BaseException as error:
            if isinstance(error, HandshakeError) or not isinstance(error, OSError) or control.is_lost:
                control.abort()
            else:
                control.refuse(f"the client could not prepare its side: {error}")
            await pending.abandon()
            raise
        transport.serve(handler)
        return transport


class RdmaListener:
    """Accepts connections over RDMA; a ``Listener``.

    The device is opened when listening begins, and closed after listening has ended and the last connection has gone.

    Args:
        verbs, device, gid, ring_bytes, slots, zero_copy, linger_timeout: as for ``RdmaConnector``.
        handshake_timeout: seconds that a client has for its handshake.
        max_handshakes: handshakes that may own a queue pair and rings, or have not released them yet. Four times as
            many clients may wait for that or be silent; for each further client the oldest of them is refused. While
            clients wait, a welcomed client has a tenth of ``handshake_timeout`` to send READY.
        backlog: connections that the system holds until they are accepted.
    """

    def __init__(
        self,
        verbs: Verbs | None = None,
        *,
        device: str | None = None,
        gid: str | None = None,
        ring_bytes: int = RingSizes().ring_bytes,
        slots: int = RingSizes().slots,
        zero_copy: bool = True,
        linger_timeout: float = 1.0,
        handshake_timeout: float = 10.0,
        max_handshakes: int = 64,
        backlog: int = 1024,
    ) -> None:
        self._endpoint = _Endpoint(verbs, device, gid, RingSizes(ring_bytes, slots), zero_copy, linger_timeout)
        self._stream = ControlListener(linger_timeout=linger_timeout, backlog=backlog)
        self._handshake_timeout = handshake_timeout
        self._max_handshakes = max_handshakes

    @property
    def counters(self) -> Counters:
        """Totals over all connections so far."""
        return self._endpoint.counters

    async def listen(self, host: str, port: int, accept: Callable[[Transport], TransportHandler]) -> RdmaListening:
        """Accept handshakes at ``host`` and ``port``; see ``Listener.listen``.

        Raises:
            RdmaUnavailableError: this machine has no RDMA device.
            OSError: the device could not be opened; the host is unknown or not of this machine; the port is taken.
        """
        shared = await self._endpoint.devices.acquire()
        listening = RdmaListening(self._endpoint, shared, accept, self._handshake_timeout, self._max_handshakes)
        try:
            listening.begin(await self._stream.listen(host, port, listening.shake_hands))
        except BaseException:
            await asyncio.shield(self._endpoint.devices.release(shared))
            raise
        return listening


class RdmaListening:
    """The address at which an ``RdmaListener`` listens; made by ``RdmaListener.listen``."""

    _tcp: Listening

    def __init__(
        self,
        endpoint: _Endpoint,
        shared: SharedDevice,
        accept: Callable[[Transport], TransportHandler],
        handshake_timeout: float,
        max_handshakes: int,
    ) -> None:
        self._endpoint = endpoint
        self._shared = shared
        self._accept = accept
        self._handshake_timeout = handshake_timeout
        self._max_waiting = max_handshakes * _WAITING_PER_PERMIT
        self._permits = asyncio.Semaphore(max_handshakes)
        """Held by handshakes that own parts of the card, or are about to; granted in order."""
        self._waiting_for_permit = 0
        self._handshakes: dict[asyncio.Task[None], Control] = {}
        """All handshakes in progress or ending."""
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Those of them without a permit so far, oldest first."""
        self._released: asyncio.Future[None] | None = None

    def begin(self, tcp: Listening) -> None:
        """Use ``tcp`` as the source of the handshakes' connections."""
        self._tcp = tcp

    @property
    def host(self) -> str:
        """The host that was given to ``listen``."""
        return self._tcp.host

    @property
    def port(self) -> int:
        """The port that accepts connections."""
        return self._tcp.port

    def close(self) -> None:
        """Stop accepting and end the handshakes; accepted connections stay open."""
        if self._released is None:
            self._tcp.close()
            for task in self._handshakes:
                self._refuse(task, "the server stops")
            self._released = self._endpoint.devices.release(self._shared)

    async def wait_closed(self) -> None:
        """Wait until everything that ``close`` ended is gone, including the device if no connection uses it."""
        await self._tcp.wait_closed()
        for tasks in (self._handshakes, self._endpoint.abandoned):
            if tasks:
                await asyncio.wait(tasks)
        if self._released is not None:
            await asyncio.shield(self._released)

    def shake_hands(self, tcp: Transport) -> TransportHandler:
        """Start the handshake on an accepted TCP connection, and return the connection's handler."""
        control = Control(tcp.peer, accepting=True)
        control.transport = tcp
        if len(self._waiting) >= self._max_waiting:
            # A working client needs milliseconds: the oldest connection is most likely a silent one.
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._refuse(oldest, "too many handshakes at once: try again")
        pending = self._endpoint.begin(tcp.peer, control)
        task = self._shared.loop.create_task(self._shake_hands(pending, tcp.peer), name=f"rdma-handshake-{tcp.peer}")
        self._handshakes[task] = control
        self._waiting[task] = None
        task.add_done_callback(self._handshake_ended)
        return control

    def _refuse(self, task: asyncio.Task[None], reason: str) -> None:
        """Give up a handshake with a reason: after HELLO, a client takes silence for a port without RDMA."""
        if not task.done():
            self._handshakes[task].refuse(reason)
            task.cancel()

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        control = self._handshakes.pop(task)
        self._waiting.pop(task, None)
        if task.cancelled():
            # Not in the coroutine, which never runs if it is cancelled before its first step.
            control.abort()
        else:
            task.result()

    async def _shake_hands(self, pending: _PendingConnection, peer: str) -> None:
        control = pending.control
        try:
            async with asyncio.timeout(self._handshake_timeout):
                transport = await self._negotiate(pending)
        except TimeoutError:
            _logger.info("%s: no RDMA handshake within %s s", peer, self._handshake_timeout)
            control.refuse(f"no handshake within {self._handshake_timeout} s")
        except HandshakeError as error:
            _logger.info("The RDMA handshake failed: %s", error)
            if not control.is_lost:
                control.refuse(str(error.strerror))
        except OSError as error:
            _logger.warning("%s: preparing an RDMA connection failed: %s", peer, error)
            if not control.is_lost:
                control.refuse(f"the server could not prepare its side: {error.strerror or error}")
        except asyncio.CancelledError:
            control.abort()
            await pending.abandon()
            raise
        except Exception:
            _logger.exception("The RDMA handshake with %s failed", peer)
            control.refuse("the server failed")
        else:
            self._hand_over(transport)
            return
        await pending.abandon()

    async def _negotiate(self, pending: _PendingConnection) -> RdmaTransport:
        facts = await pending.expect(Kind.HELLO)
        await self._acquire_permit(pending)
        await pending.prepare()
        await pending.connect(facts)
        pending.control.send(pending.facts(Kind.WELCOME, facts.token))
        ready = await self._receive_ready(pending)
        if not isinstance(ready, Ready):
            raise HandshakeError(errno.EPROTO, f"{pending.peer}: RDMA handshake: unexpected message instead of READY")
        pending.check(ready.echo)
        return pending.finish(facts)

    async def _acquire_permit(self, pending: _PendingConnection) -> None:
        """Wait until another queue pair may be created.

        Raises:
            HandshakeError: the client has gone.
        """
        self._waiting_for_permit += 1
        try:
            await self._permits.acquire()
        finally:
            self._waiting_for_permit -= 1
        pending.permit = self._permits
        task = asyncio.current_task()
        assert task is not None
        self._waiting.pop(task, None)
        if pending.control.is_lost:
            raise pending.control.ended_early()

    async def _receive_ready(self, pending: _PendingConnection) -> Message:
        """Receive the last message of a welcomed client.

        Raises:
            HandshakeError: it is silent, and others wait for its permit.
        """
        share = self._handshake_timeout * _CROWDED_SHARE
        while True:
            try:
                async with asyncio.timeout(share):
                    return await pending.control.receive()
            except TimeoutError:
                if self._waiting_for_permit:
                    raise HandshakeError(
                        errno.ETIMEDOUT, f"{pending.peer} has not sent READY for {share:g} s, and others wait"
                    ) from None

    def _hand_over(self, transport: RdmaTransport) -> None:
        """Let ``accept`` choose a handler for a connection, then start serving it."""
        try:
            handler = self._accept(transport)
        except Exception:
            _logger.exception("The connection from %s was not accepted", transport.peer)
            transport.abort()
            lost: asyncio.Future[None] = self._shared.loop.create_future()
            self._endpoint.abandoned.add(lost)
            lost.add_done_callback(self._endpoint.abandoned.discard)
            handler = _RejectedHandler(lost)
        transport.serve(handler)


class _RejectedHandler:
    """The handler of a connection that was not accepted; ``lost`` is done when it is completely released."""

    def __init__(self, lost: asyncio.Future[None]) -> None:
        self._lost = lost

    def data_received(self, data: Buffer) -> None:
        """Cannot happen: it was aborted."""

    def write_completed(self, count: int) -> None:
        """Cannot happen: nothing was written."""

    def connection_lost(self, exception: Exception | None) -> None:
        """Report that the aborted connection is released."""
        self._lost.set_result(None)
