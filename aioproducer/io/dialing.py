"""Connects to a broker: tries the addresses of its host name one after the other, each in a bounded time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from aioproducer._common.diagnosis import connection_failed
from aioproducer._common.texts import printable
from aioproducer.errors import ConnectionFailedError
from aioproducer.transport.addresses import peer_name

if TYPE_CHECKING:
    from random import Random

    from aioproducer._common.client_log import ClientLog
    from aioproducer.core.requests.authenticator import Login
    from aioproducer.core.requests.retry import ExponentialBackoff
    from aioproducer.record import Node
    from aioproducer.transport.base import Connector, Transport, TransportHandler


class NodeSettings(NamedTuple):
    """The configuration of every connection. Times are in seconds."""

    client_id: str
    log: ClientLog
    max_in_flight: int
    request_timeout: float
    reconnect_backoff: ExponentialBackoff
    setup_timeout: ExponentialBackoff
    max_idle: float
    uses_tls: bool
    check_cluster: bool
    # client.dns.lookup=resolve_canonical_bootstrap_servers_only
    canonical_bootstrap: bool = False
    # None: without SASL.
    login: Login | None = None


class Dialer:
    """Makes connections to one broker, at one host and port.

    Args:
        setups: number of attempts in a row that timed out; the next ones may take longer (KIP-601).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: Node,
        connector: Connector,
        settings: NodeSettings,
        random: Random,
        setups: int = 0,
    ) -> None:
        self.setups = setups
        self._loop = loop
        self._node = node
        self._connector = connector
        self._settings = settings
        self._random = random
        # Addresses left to try, each with the host name that the certificate must have.
        self._addresses: list[tuple[str, str]] = []

    @property
    def has_more(self) -> bool:
        """Whether the host name has untried addresses."""
        return bool(self._addresses)

    def forget_addresses(self) -> None:
        """Resolve the host name again next time: it may have other addresses by now."""
        self._addresses = []

    def moved(self, node: Node) -> Dialer:
        """Return a dialer for the broker's new address."""
        return Dialer(self._loop, node, self._connector, self._settings, self._random)

    async def connect(self, handler: TransportHandler) -> Transport:
        """Connect to the next address.

        Raises:
            KafkaError: the attempt failed; the text gives the reason.
        """
        host, port = self._node.host, self._node.port
        timeout = self._settings.setup_timeout.delay(self.setups, self._random)
        address = host
        try:
            async with asyncio.timeout(timeout) as deadline:
                if not self._addresses:
                    self._addresses = await self._resolve(host, port)
                address, name = self._addresses.pop(0)
                transport = await self._connector.connect(address, port, handler, server_hostname=name)
        except OSError as failure:
            # asyncio.TimeoutError is an OSError too, as is the error of a socket after its connection timed out.
            if deadline.expired():
                self.setups += 1
                raise ConnectionFailedError(
                    f"{_at(host, address, port)} did not accept a connection within {timeout * 1000:.0f} ms "
                    f"(socket_connection_setup_timeout_ms): check host, port and firewalls."
                ) from None
            broker = self._node.id if self._node.id >= 0 else None
            uses_tls = self._settings.uses_tls
            raise connection_failed(_at(host, address, port), failure, uses_tls=uses_tls, broker=broker) from None
        except Exception as failure:
            # The loop, the connector or the machine has failed. Further attempts may succeed.
            self._settings.log.exception("Connecting to broker %s failed", self._node)
            raise ConnectionFailedError(f"Connecting to {_at(host, address, port)} failed: {failure!r}") from None
        self.setups = 0
        return transport

    async def _resolve(self, host: str, port: int) -> list[tuple[str, str]]:
        """Return all addresses of ``host`` in the resolver's order, each with the name to verify."""
        addresses = await self._connector.resolve(host, port)
        if not self._settings.canonical_bootstrap or self._node.id >= 0:
            return [(address, host) for address in addresses]
        return [(address, (await self._loop.getnameinfo((address, port)))[0]) for address in addresses]


def _at(host: str, address: str, port: int) -> str:
    return peer_name(host, port) if address == host else f"{printable(host)} ({printable(address)}):{port}"
