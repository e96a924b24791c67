"""RDMA where it is available, TCP otherwise."""

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
    """The connector of ``transport="rdma,tcp"``.

    If ``rdma`` is ``None``, or unavailable when the first connection is made, TCP is used from then on, and the reason
    is logged once. TCP is also used if a broker does not speak RDMA, or if this machine's card makes no connection;
    that is logged the first time.
    """

    def __init__(self, rdma: RdmaConnector | None, stream: Connector, missing: str = "") -> None:
        self.rdma = rdma
        self._stream = stream
        self._logged: set[str] = set()
        self._counters = Counters() if rdma is None else rdma.counters
        if rdma is None:
            _logger.warning("No RDMA, connecting by TCP: %s", missing)

    @property
    def counters(self) -> Counters:
        """Totals over the connections by RDMA."""
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
                self._log_once(f"{host}:{port}", error)
            except VerbsError as error:
                # The card refused, for example because too little memory may be locked.
                self._log_once("", error)
        return await self._stream.connect(host, port, handler, server_hostname=server_hostname)

    def _log_once(self, where: str, error: OSError) -> None:
        if where not in self._logged:
            self._logged.add(where)
            _logger.warning("Connecting by TCP: %s", error.strerror)
