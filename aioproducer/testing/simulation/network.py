"""A network in memory with latency and faults, for clients and for the brokers among themselves.

Every connection is a ``Link``. All that one side causes at the other passes its link in order, each time after a
latency. A frozen link holds it back; an endpoint that is stopped freezes all its links.

What one side does with data runs in its own context, not in that of the side which has sent them: a task that a broker
makes for a request does not belong to the process that has sent it.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextvars import Context, copy_context

from aioproducer.testing.simulation.trace import Trace
from aioproducer.transport.base import TransportHandler
from aioproducer.transport.memory import MemoryListener, MemoryNetwork, MemoryTransport

_TICK = 1e-7
"""Seconds between two events of one direction, at least: timers of equal times have no order."""


class SimulatedTransport(MemoryTransport):
    """One side of a link."""

    link: Link
    last_arrival = 0.0

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str, send_buffer_bytes: int, context: Context) -> None:
        super().__init__(loop, peer, send_buffer_bytes)
        self.context = context
        """In which the handler is called."""

    def _reach_other(self, callback: Callable[[], None]) -> None:
        self.link.carry(self, callback)

    def _deliver(self, data: memoryview) -> None:
        self.link.delivered(self, len(data))
        budget = self.link.bytes_until_cut
        if budget is None:
            self._hand_over(data)
            return
        self.link.bytes_until_cut = max(0, budget - len(data))
        if len(data) >= budget:
            with data:
                self._hand_over(data[:budget])
            self.link.cut()
        else:
            self._hand_over(data)

    def _hand_over(self, data: memoryview) -> None:
        # A copy, as a context cannot be entered twice.
        self.context.copy().run(super()._deliver, data)

    def _report_lost(self, exception: Exception | None) -> None:
        self.context.copy().run(super()._report_lost, exception)


class Link:
    """A connection from one endpoint to another."""

    def __init__(
        self,
        network: SimulatedNetwork,
        source: str,
        target: str,
        number: int,
        client: SimulatedTransport,
        server: SimulatedTransport,
    ) -> None:
        self.source = source
        self.target = target
        self.name = f"{source}>{target}#{number}"
        self.client = client
        self.server = server
        client.link = server.link = self
        self.bytes_until_cut: int | None = None
        """The link is cut behind this many more bytes, of both directions; ``None`` for never."""
        self.is_frozen = False
        self._network = network
        self._held: list[tuple[SimulatedTransport, Callable[[], None]]] = []

    @property
    def has_ended(self) -> bool:
        """Whether both sides have ended."""
        return self.client._has_ended() and self.server._has_ended()

    def carry(self, side: SimulatedTransport, callback: Callable[[], None]) -> None:
        """Run ``callback`` after the latency of the network, behind all that came before it."""
        if self.is_frozen:
            self._held.append((side, callback))
            return
        network = self._network
        latency = network.latency() + (network.slowness(self.source, self.target) if network.slow else 0.0)
        side.last_arrival = max(side.last_arrival + _TICK, network.loop.time() + latency)
        network.loop.call_at(side.last_arrival, self._arrived, side, callback, context=side.context)

    def _arrived(self, side: SimulatedTransport, callback: Callable[[], None]) -> None:
        if self.is_frozen:
            self._held.append((side, callback))
        else:
            callback()

    def delivered(self, side: SimulatedTransport, size: int) -> None:
        """Note that one side receives ``size`` bytes."""
        arrow = "<" if side is self.client else ">"
        self._network.note(f"{self.name} {arrow}{size}")

    def freeze(self) -> None:
        """Carry nothing until ``thaw``."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Carry what was held back, and all that comes."""
        self.is_frozen = False
        held, self._held = self._held, []
        for side, callback in held:
            self.carry(side, callback)

    def cut(self) -> None:
        """Reset both sides at once."""
        self._network.note(f"{self.name} cut")
        self._held.clear()
        self.client._connection_reset()
        self.server._connection_reset()

    def abandon(self) -> None:
        """Reset the server's side only: the client does not notice, as after a loss of power of the server's host."""
        self._network.note(f"{self.name} half-open")
        self.freeze()
        self.server._connection_reset()


class Endpoint(MemoryNetwork):
    """The network as one client or node has it; a ``Connector`` and a ``Listener``."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        super().__init__(send_buffer_bytes=network.send_buffer_bytes)
        self.name = name
        self.listeners = network.listeners
        self._network = network

    def listen(self, host: str, port: int, accept: Callable[[MemoryTransport], TransportHandler]) -> MemoryListener:
        self._network.owners[host] = self.name
        context = self._network.context
        return super().listen(host, port, lambda transport: context.copy().run(accept, transport))

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> MemoryTransport:
        """Connect after the latency of the network; while one of both ends is stopped, no connection is made."""
        network = self._network
        await asyncio.sleep(network.connect_latency())
        while waits := [network.stopped[name] for name in self._ends(host) if name in network.stopped]:
            await waits[0].wait()
        if self.name in network.killed:
            raise OSError(errno.ENETDOWN, f"the process {self.name} was killed")
        return await super().connect(host, port, handler, server_hostname=server_hostname)

    def _ends(self, host: str) -> tuple[str, str]:
        return self.name, self._network.owners.get(host, host)

    def _make_pair(self, host: str, port: int) -> tuple[MemoryTransport, MemoryTransport]:
        return self._network.make_link(*self._ends(host), f"{host}:{port}")


class SimulatedNetwork:
    """All endpoints and links.

    ``send_buffer_bytes``: as for ``MemoryNetwork``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, trace: Trace, *, send_buffer_bytes: int = 0) -> None:
        self.loop = loop
        self.send_buffer_bytes = send_buffer_bytes
        self.latency: Callable[[], float] = lambda: 0.0001
        """Seconds that a piece of data, or the end of a connection, takes to the other side."""
        self.connect_latency: Callable[[], float] = lambda: 0.0001
        """Seconds that connecting takes."""
        self.listeners: dict[tuple[str, int], MemoryListener] = {}
        self.owners: dict[str, str] = {}
        """By host: the endpoint that has listened there."""
        self.stopped: dict[str, asyncio.Event] = {}
        """Endpoints that neither send nor receive, with the event of their resumption."""
        self.slow: dict[str, float] = {}
        """Seconds that everything to or from an endpoint takes more."""
        self.killed: set[str] = set()
        """Endpoints of processes that were killed or have ended: they connect to nothing any longer."""
        self.context = copy_context()
        """Of the sides that accept connections, and of all that belongs to no process."""
        self._trace = trace
        self._links: list[Link] = []
        self._count = 0

    def note(self, text: str) -> None:
        """Add an event to the trace."""
        self._trace.note(self.loop.time(), text)

    def endpoint(self, name: str) -> Endpoint:
        """The network as the client or node ``name`` has it."""
        return Endpoint(self, name)

    def make_link(self, source: str, target: str, peer: str) -> tuple[SimulatedTransport, SimulatedTransport]:
        """Make a link, and return its client's and its server's side."""
        self._count += 1
        client = SimulatedTransport(self.loop, peer, self.send_buffer_bytes, copy_context())
        server = SimulatedTransport(self.loop, f"{source}:{self._count}", self.send_buffer_bytes, self.context.copy())
        link = Link(self, source, target, self._count, client, server)
        self.note(f"{link.name} connected")
        self._links.append(link)
        return client, server

    def links(self, endpoint: str | None = None) -> list[Link]:
        """Links with a side that has not ended, oldest first; with ``endpoint`` only its own."""
        self._links = [each for each in self._links if not each.has_ended]
        return [link for link in self._links if endpoint in (None, link.source, link.target)]

    def stop(self, endpoint: str) -> None:
        """Let an endpoint neither send nor receive, as a process that gets SIGSTOP."""
        if endpoint not in self.stopped:
            self.note(f"{endpoint} stops")
            self.stopped[endpoint] = asyncio.Event()
            for link in self.links(endpoint):
                link.freeze()

    def resume(self, endpoint: str) -> None:
        """Let a stopped endpoint continue with what was held back."""
        event = self.stopped.pop(endpoint, None)
        if event is not None:
            self.note(f"{endpoint} resumes")
            event.set()
            for link in self._links:
                ends = {link.source, link.target}
                if endpoint in ends and not ends & self.stopped.keys():
                    link.thaw()

    def kill(self, endpoint: str) -> None:
        """Reset the connections of an endpoint, and let it make no others."""
        self.resume(endpoint)
        self.killed.add(endpoint)
        for link in self.links(endpoint):
            link.cut()

    def leave(self, endpoint: str) -> None:
        """Close the connections that an endpoint has made, behind what it has sent, and let it make no others."""
        self.killed.add(endpoint)
        for link in self.links(endpoint):
            if link.source == endpoint:
                link.client.close()

    def slowness(self, source: str, target: str) -> float:
        """Seconds that data takes more between two endpoints."""
        return self.slow.get(source, 0.0) + self.slow.get(target, 0.0)

    def heal(self) -> None:
        """Resume every endpoint, and reset the links that are half-open or about to be cut."""
        self.slow.clear()
        for endpoint in list(self.stopped):
            self.resume(endpoint)
        for link in self.links():
            if link.is_frozen or link.bytes_until_cut is not None:
                link.cut()
