"""Connecting and accepting over RDMA.

A broker is known by host and port as ever: the handshake (``handshake``) is made over a TCP connection to them, which
stays open beside the queue pair for as long as the connection lives (``control``).

Neither the handshake nor what is written later is encrypted or authenticated by RDMA itself; the tokens keep apart
what belongs to different connections, no more.
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

_WAITING_PER_PLACE: Final = 4
"""TCP connections, to one that may have a queue pair: they cost a descriptor, and clients who all come at once need
some milliseconds each before they say HELLO."""
_WAIT_FOR_MEMORY: Final = 1.0
"""Seconds that a connection waits for the callers' memory to be registered: the first records would be copied."""
_CROWDED_SHARE: Final = 0.1
"""What a client has of its time for READY while others wait."""


def default_verbs() -> Verbs:
    """The verbs of this machine, by pyverbs.

    Raises:
        RdmaUnavailableError: pyverbs is not installed, or there is no device.
    """
    from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer

    verbs = PyverbsLayer()
    verbs.device_names()
    return verbs


class _Endpoint:
    """What connector and listener have in common: their device, and how a connection is made ready."""

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
            # What is no address at all is said here, and not at each connection.
            gid_of(gid)
        self.devices = DevicePool(default_verbs() if verbs is None else verbs, device, gid)
        self.counters = Counters()
        self.given_up: set[asyncio.Future[None]] = set()
        """Connections that were not made, or not accepted, and something of which is left."""
        self._sizes = sizes
        self._zero_copy = zero_copy
        self._linger_timeout = linger_timeout

    def transport(self, shared: SharedDevice, link: Link, control: Control, peer: str, facts: Facts) -> RdmaTransport:
        """The transport of a connection that both sides are ready for."""
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
        control.belong_to(transport)
        return transport

    def making(self, peer: str, control: Control) -> _Making:
        return _Making(self, self._sizes, peer, control)


class _Making:
    """A connection that is being made; whatever of it there is can be given up."""

    def __init__(self, endpoint: _Endpoint, sizes: RingSizes, peer: str, control: Control) -> None:
        self.token = secrets.token_bytes(TOKEN_SIZE)
        self.control = control
        self.peer = peer
        self.place: asyncio.Semaphore | None = None
        """What is released once nothing of the card is held here any more."""
        self._endpoint = endpoint
        self._sizes = sizes
        self._shared: SharedDevice | None = None
        self._link: asyncio.Future[Link] | None = None

    async def prepare(self) -> None:
        """Have a queue pair and rings.

        Raises:
            OSError: the card or the system would not.
        """
        self._shared = await self._endpoint.devices.acquire()
        self._link = self._shared.make_link(self._sizes)
        await asyncio.shield(self._link)
        await self._shared.until_registered(_WAIT_FOR_MEMORY)

    def facts(self, kind: Kind, echo: bytes) -> Facts:
        """What the peer is told."""
        assert self._link is not None
        link = self._link.result()
        return Facts(kind, self.token, echo, link.facts, link.ring)

    async def expect(self, kind: Kind) -> Facts:
        """The peer's facts.

        Raises:
            HandshakeError: it says something else.
        """
        message = await self.control.receive()
        if not isinstance(message, Facts) or message.kind is not kind:
            raise HandshakeError(errno.EPROTO, f"{self.peer}: RDMA handshake: {kind.name} was to come")
        if kind is Kind.WELCOME:
            self.check(message.echo)
        return message

    def check(self, echo: bytes) -> None:
        """
        Raises:
            HandshakeError: that is not this connection's token.
        """
        if not secrets.compare_digest(echo, self.token):
            raise HandshakeError(
                errno.EPROTO, f"{self.peer}: RDMA handshake: wrong token: it answers another connection than this one"
            )

    async def connect(self, peer: Facts) -> None:
        """Connect the queue pair; the peer may write as soon as it is told.

        Raises:
            VerbsError: the card would not.
        """
        assert self._shared is not None
        assert self._link is not None
        await asyncio.shield(self._shared.run(self._link.result().connect, peer.queue_pair))

    def finish(self, peer: Facts) -> RdmaTransport:
        """The transport, whose everything is from now on.

        Raises:
            HandshakeError: the peer has gone meanwhile, refuses, or says what it should not.
        """
        self.control.check_silent()
        assert self._shared is not None
        assert self._link is not None
        transport = self._endpoint.transport(self._shared, self._link.result(), self.control, self.peer, peer)
        self._shared = None
        self._leave_place()
        return transport

    async def give_up(self) -> None:
        """Leave nothing of it, also where the caller is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(self._give_up())
        given_up = self._endpoint.given_up
        given_up.add(task)
        task.add_done_callback(given_up.discard)
        await asyncio.shield(task)

    async def _give_up(self) -> None:
        try:
            await self._close_link()
        finally:
            self._leave_place()
        await self.control.until_lost()

    async def _close_link(self) -> None:
        # The rings' memory goes with the link: nothing may refer to that afterwards.
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

    def _leave_place(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            place.release()


class RdmaConnector:
    """Makes connections over RDMA; a ``Connector``.

    Args:
        verbs: the verbs layer; ``None`` for this machine's, by pyverbs.
        device: the device's name; ``None`` for the first that works.
        gid: the text of the GID that connections are made from; ``None`` for the first that works.
        ring_bytes: of the receive ring and of the send ring of each connection: twice that is registered for it.
        slots: messages that a ring takes at a time.
        zero_copy: gather buffers that lie in registered memory from there; else everything is copied once.
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
        """What all connections together have done so far."""
        return self._endpoint.counters

    def register(self, memory: mmap.mmap) -> None:
        """Let buffers that lie in ``memory`` be gathered from there, without a copy.

        It is registered with the device once, for as long as there are connections. Where that is refused, or not yet
        done, buffers are copied. This object does not keep ``memory`` alive, but an open device does.
        """
        self._endpoint.devices.register(memory)

    def unregister(self, memory: mmap.mmap) -> None:
        """Undo ``register``: nothing is sent from ``memory`` any more."""
        self._endpoint.devices.unregister(memory)

    async def resolve(self, host: str, port: int) -> list[str]:
        """All addresses of ``host``, as for TCP; see ``Connector.resolve``."""
        return await self._stream.resolve(host, port)

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> RdmaTransport:
        """Connect to an RDMA listener; see ``Connector.connect``. ``server_hostname`` has no use: there is no TLS.

        Cancelling leaves nothing open, and waits until it is so.

        Raises:
            NotRdmaError: what listens there does not speak RDMA.
            HandshakeError: the other side would not.
            RdmaUnavailableError: this machine has no RDMA device.
            OSError: no TCP connection could be made, or the card would not.
        """
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        control = Control(peer, accepting=False)
        control.transport = await self._stream.connect(host, port, control)
        making = self._endpoint.making(peer, control)
        try:
            await making.prepare()
            control.say(making.facts(Kind.HELLO, bytes(TOKEN_SIZE)))
            facts = await making.expect(Kind.WELCOME)
            await making.connect(facts)
            control.say(Ready(facts.token))
            transport = making.finish(facts)
        except BaseException as error:
            if isinstance(error, HandshakeError) or not isinstance(error, OSError) or control.is_lost:
                control.abort()
            else:
                control.refuse(f"the client could not make its side: {error}")
            await making.give_up()
            raise
        transport.serve(handler)
        return transport


class RdmaListener:
    """Accepts connections over RDMA; a ``Listener``.

    The device is opened when listening begins, and closed when that has ended and the last connection has gone.

    Args:
        verbs, device, gid, ring_bytes, slots, zero_copy, linger_timeout: as for ``RdmaConnector``.
        handshake_timeout: seconds that a client has for its handshake.
        max_handshakes: so many may have a queue pair and rings, or what is left of them. Four times as many clients may
            wait for that, or have said nothing yet: for another one the oldest of these is refused. While somebody
            waits, a client has a tenth of ``handshake_timeout`` for its last word.
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
        """What all connections together have done so far."""
        return self._endpoint.counters

    async def listen(self, host: str, port: int, accept: Callable[[Transport], TransportHandler]) -> RdmaListening:
        """Take handshakes at ``host`` and ``port``; see ``Listener.listen``.

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
    """Where an ``RdmaListener`` listens; made by ``RdmaListener.listen``."""

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
        self._most_waiting = max_handshakes * _WAITING_PER_PLACE
        self._places = asyncio.Semaphore(max_handshakes)
        """Of those who have something of the card, or are about to; first come, first served."""
        self._wanting_places = 0
        self._handshakes: dict[asyncio.Task[None], Control] = {}
        """All that go on, or end."""
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Those of them who had no place yet, oldest first."""
        self._released: asyncio.Future[None] | None = None

    def begin(self, tcp: Listening) -> None:
        """The handshakes' connections come from there."""
        self._tcp = tcp

    @property
    def host(self) -> str:
        """As it was given to ``listen``."""
        return self._tcp.host

    @property
    def port(self) -> int:
        """The port that connections come to."""
        return self._tcp.port

    def close(self) -> None:
        """Accept no more, and end the handshakes; connections that were accepted stay."""
        if self._released is None:
            self._tcp.close()
            for task in self._handshakes:
                self._refuse(task, "the server stops")
            self._released = self._endpoint.devices.release(self._shared)

    async def wait_closed(self) -> None:
        """Wait until nothing of what ``close`` ended is left; nor of the device, where no connection needs it."""
        await self._tcp.wait_closed()
        for tasks in (self._handshakes, self._endpoint.given_up):
            if tasks:
                await asyncio.wait(tasks)
        if self._released is not None:
            await asyncio.shield(self._released)

    def shake_hands(self, tcp: Transport) -> TransportHandler:
        """Take a TCP connection; what comes of it shows later."""
        control = Control(tcp.peer, accepting=True)
        control.transport = tcp
        if len(self._waiting) >= self._most_waiting:
            # Who is in earnest needs milliseconds: the oldest is most likely one who says nothing.
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._refuse(oldest, "too many connections are being made at once: try again")
        making = self._endpoint.making(tcp.peer, control)
        task = self._shared.loop.create_task(self._shake_hands(making, tcp.peer), name=f"rdma-handshake-{tcp.peer}")
        self._handshakes[task] = control
        self._waiting[task] = None
        task.add_done_callback(self._handshake_ended)
        return control

    def _refuse(self, task: asyncio.Task[None], reason: str) -> None:
        """Give a handshake up, with a word: to a client that has said HELLO silence means that this is no RDMA."""
        if not task.done():
            self._handshakes[task].refuse(reason)
            task.cancel()

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        control = self._handshakes.pop(task)
        self._waiting.pop(task, None)
        if task.cancelled():
            # Here, and not in the coroutine, which never runs where it is cancelled at once.
            control.abort()
        else:
            task.result()

    async def _shake_hands(self, making: _Making, peer: str) -> None:
        control = making.control
        try:
            async with asyncio.timeout(self._handshake_timeout):
                transport = await self._agree(making)
        except TimeoutError:
            _logger.info("%s: no RDMA handshake within %s s", peer, self._handshake_timeout)
            control.refuse(f"no handshake within {self._handshake_timeout} s")
        except HandshakeError as error:
            _logger.info("The RDMA handshake failed: %s", error)
            if not control.is_lost:
                control.refuse(str(error.strerror))
        except OSError as error:
            _logger.warning("%s: no RDMA connection can be made: %s", peer, error)
            if not control.is_lost:
                control.refuse(f"the server could not make its side: {error.strerror or error}")
        except asyncio.CancelledError:
            control.abort()
            await making.give_up()
            raise
        except Exception:
            _logger.exception("The RDMA handshake with %s failed", peer)
            control.refuse("the server failed")
        else:
            self._give(transport)
            return
        await making.give_up()

    async def _agree(self, making: _Making) -> RdmaTransport:
        facts = await making.expect(Kind.HELLO)
        await self._take_place(making)
        await making.prepare()
        await making.connect(facts)
        making.control.say(making.facts(Kind.WELCOME, facts.token))
        ready = await self._last_word(making)
        if not isinstance(ready, Ready):
            raise HandshakeError(errno.EPROTO, f"{making.peer}: RDMA handshake: READY was to come")
        making.check(ready.echo)
        return making.finish(facts)

    async def _take_place(self, making: _Making) -> None:
        """Wait until another queue pair may be made.

        Raises:
            HandshakeError: the client has gone meanwhile.
        """
        self._wanting_places += 1
        try:
            await self._places.acquire()
        finally:
            self._wanting_places -= 1
        making.place = self._places
        task = asyncio.current_task()
        assert task is not None
        self._waiting.pop(task, None)
        if making.control.is_lost:
            raise making.control.ended_early()

    async def _last_word(self, making: _Making) -> Message:
        """What a client says that was welcomed.

        Raises:
            HandshakeError: it says nothing, and others wait for its place.
        """
        share = self._handshake_timeout * _CROWDED_SHARE
        while True:
            try:
                async with asyncio.timeout(share):
                    return await making.control.receive()
            except TimeoutError:
                if self._wanting_places:
                    raise HandshakeError(
                        errno.ETIMEDOUT, f"{making.peer} has not said READY for {share:g} s, and others wait"
                    ) from None

    def _give(self, transport: RdmaTransport) -> None:
        """Find a handler for a connection, and let it begin."""
        try:
            handler = self._accept(transport)
        except Exception:
            _logger.exception("The connection from %s was not accepted", transport.peer)
            transport.abort()
            lost: asyncio.Future[None] = self._shared.loop.create_future()
            self._endpoint.given_up.add(lost)
            lost.add_done_callback(self._endpoint.given_up.discard)
            handler = _Nobody(lost)
        transport.serve(handler)


class _Nobody:
    """The handler of a connection that was not accepted; ``lost`` is done when nothing of that is left."""

    def __init__(self, lost: asyncio.Future[None]) -> None:
        self._lost = lost

    def data_received(self, data: Buffer) -> None:
        """Cannot happen: it was aborted."""

    def write_completed(self, count: int) -> None:
        """Cannot happen: nothing was written."""

    def connection_lost(self, exception: Exception | None) -> None:
        """It was meant to be."""
        self._lost.set_result(None)
