"""Translates the addresses of brokers into those of their gateways."""

from __future__ import annotations

import logging
from collections.abc import Mapping

_logger = logging.getLogger(__name__)

Address = tuple[str, int]

REFUSED_SUFFIX = ".no-gateway.invalid"
"""Appended to the name of a broker without a gateway. No resolver has names of this kind (RFC 6761), so a client fails
at once, and its error shows the reason."""

_GREATEST_PORT = 65535
_REMEMBERED = 1000
"""Maximum addresses that are logged; further ones are only counted."""


class AddressMap:
    """Maps a broker's advertised address to that of its gateway.

    ``exact`` has pairs of host and port on both sides and comes first. An address that is one of its values already
    belongs to a gateway and stays. Any other address becomes the same host with ``port``, or with ``port_offset`` added
    to the broker's port, if one of the two is given.

    All other addresses have no gateway. With ``pass_unmapped`` they stay: clients that may use TCP reach that broker by
    TCP, others do not. Without it clients receive a name that does not exist (``REFUSED_SUFFIX``), so that no client
    changes its transport unnoticed. Each such address is logged once.

    Raises:
        ValueError: both ``port`` and ``port_offset`` are given.
    """

    def __init__(
        self,
        exact: Mapping[Address, Address],
        *,
        port: int | None = None,
        port_offset: int | None = None,
        pass_unmapped: bool = False,
    ) -> None:
        if port is not None and port_offset is not None:
            raise ValueError("port and port_offset exclude each other: give one of them")
        self._exact: dict[Address, Address] = {}
        self._gateways: set[Address] = set()
        self._port = port
        self._port_offset = port_offset
        self._pass_unmapped = pass_unmapped
        self._reported: set[Address] = set()
        self.unmapped = 0
        """Number of addresses without a gateway, each time that one occurred."""
        for broker, gateway in exact.items():
            self.add(broker, gateway)

    def add(self, broker: Address, gateway: Address) -> None:
        """Add the gateway of the broker that advertises itself as ``broker``."""
        self._exact[_key(*broker)] = gateway
        self._gateways.add(_key(*gateway))

    def translate(self, host: str, port: int) -> Address:
        """Return the address for clients; an empty one, which stands for no broker, stays."""
        if not host or port < 0:
            return host, port
        key = _key(host, port)
        gateway = self._exact.get(key)
        if gateway is not None:
            return gateway
        if key in self._gateways:
            return host, port
        if self._port is not None:
            return host, self._port
        if self._port_offset is not None and 0 < port + self._port_offset <= _GREATEST_PORT:
            return host, port + self._port_offset
        return self._without_gateway(host, port)

    def _without_gateway(self, host: str, port: int) -> Address:
        self.unmapped += 1
        told = (host, port) if self._pass_unmapped else (f"{host.replace(':', '-')}{REFUSED_SUFFIX}", port)
        if (host, port) not in self._reported and len(self._reported) < _REMEMBERED:
            self._reported.add((host, port))
            _logger.warning(
                "No gateway is known for the broker at %s:%d: clients receive %s:%d. Add it to the address map.",
                host,
                port,
                *told,
            )
        return told


def _key(host: str, port: int) -> Address:
    """Host names are compared without regard to case."""
    return host.lower(), port
