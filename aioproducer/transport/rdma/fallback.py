"""RDMA where it is to be had, TCP where not."""

from __future__ import annotations

import logging
import mmap

from aioproducer.transport.base import Connector, Transport, TransportHandler
from aioproducer.transport.rdma.connecting import RdmaConnector
from aioproducer.transport.rdma.counters import Counters
from aioproducer.transport.rdma.handshake import NotRdmaError
from aioproducer.transport.rdma.verbs import RdmaUnavailableError, VerbsError

_logger = logging.getLogger(__name__)


class FallbackConnector:
    """What ``transport="rdma,tcp"`` stands for; a ``Connector``.

    ``rdma`` is ``None``, or found to be unavailable when a connection is to be made: TCP from then on, and one log line
    says why. Where a broker does not speak RDMA, or this machine's card makes no connection, TCP is used, and a line
    says so the first time.
    """

    def __init__(self, rdma: RdmaConnector | None, stream: Connector, missing: str = "") -> None:
        self.rdma = rdma
        self._stream = stream
        self._told: set[str] = set()
        self._counters = Counters() if rdma is None else rdma.counters
        if rdma is None:
            _logger.warning("No RDMA, connecting by TCP: %s", missing)

    @property
    def counters(self) -> Counters:
        """Of the connections by RDMA."""
        return self._counters

    def register(self, memory: mmap.mmap) -> None:
        """As ``RdmaConnector.register``."""
        if self.rdma is not None:
            self.rdma.register(memory)

    def unregister(self, memory: mmap.mmap) -> None:
        """As ``RdmaConnector.unregister``."""
        if self.rdma is not None:
            self.rdma.unregister(memory)

    async def resolve(self, host: str, port: int) -> list[str]:
        """As ``Connector.resolve``."""
        return await self._stream.resolve(host, port)

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> Transport:
        """As ``Connector.connect``."""
        if self.rdma is not None:
            try:
                return await self.rdma.connect(host, port, handler, server_hostname=server_hostname)
            except RdmaUnavailableError as error:
                if self.rdma is not None:
                    self.rdma = None
                    _logger.warning("No RDMA, connecting by TCP: %s", error)
            except NotRdmaError as error:
                self._tell(f"{host}:{port}", error)
            except VerbsError as error:
                # This machine's card would not, such as for want of memory that may be locked.
                self._tell("", error)
        return await self._stream.connect(host, port, handler, server_hostname=server_hostname)

    def _tell(self, where: str, error: OSError) -> None:
        if where not in self._told:
            self._told.add(where)
            _logger.warning("Connecting by TCP: %s", error.strerror)
