"""The addresses of ports at which queue pairs can be made, and the choice among them.

Constants are libibverbs' binary interface.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from aioproducer.errors import ConfigurationError
from aioproducer.transport.rdma.verbs import RdmaUnavailableError

_PORT_ACTIVE = 4
_LINK_LAYER_ETHERNET = 2
_GID_TYPE_ROCE_V2 = 2
# 32 bytes each; the kernel accepts no table over 64 KiB.
_MAX_GIDS = 2000

MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""Sizes by libibverbs' codes."""


class Port(NamedTuple):
    """An address (GID) of an active port, at which queue pairs can be made.

    number
        The port's number, from 1.
    gid, gid_index
        The address and its index in the port's table.
    roce_v2
        Whether packets are UDP, which can be routed, or bare Ethernet.
    mtu
        ``active_mtu`` in bytes.
    """

    device: str
    number: int
    gid: bytes
    gid_index: int
    roce_v2: bool
    mtu: int


def choose_port(ports: Iterable[Port], gid: str | None, problems: Sequence[str]) -> Port:
    """Return the port with the address ``gid``, or the one that most peers can reach.

    A link-local address is the last resort: it means nothing without the name of an interface.

    Raises:
        RdmaUnavailableError: there is none; ``problems`` says what was found instead.
    """
    every = list(ports)
    candidates = every if gid is None else [port for port in every if port.gid == gid_of(gid)]
    if not candidates:
        seen = "; ".join([*dict.fromkeys(f"{port.device} has {gid_text(port.gid)}" for port in every), *problems])
        what = "no RDMA device has a port that can be used" if gid is None else f"no RDMA port has the address {gid}"
        raise RdmaUnavailableError(f"{what}: {seen or 'no port has an address'}")

    def rank(port: Port) -> tuple[bool, bool, bool, bool]:
        address = ipaddress.IPv6Address(port.gid)
        mapped = address.ipv4_mapped
        return (
            address.is_link_local or (mapped is not None and mapped.is_link_local),
            address.is_loopback or (mapped is not None and mapped.is_loopback),
            not port.roce_v2,
            mapped is None,
        )

    return min(candidates, key=rank)


def ports_of(name: str, context: Any, problems: list[str]) -> Iterator[Port]:
    """Yield the addresses of a device's active ports; the reasons for leaving out others are added to ``problems``."""
    states = {}
    for number in range(1, context.query_device().phys_port_cnt + 1):
        attributes = context.query_port(number)
        if attributes.link_layer != _LINK_LAYER_ETHERNET:
            problems.append(f"port {number} of {name} is InfiniBand, and only RoCE is supported")
        elif attributes.state != _PORT_ACTIVE:
            problems.append(f"port {number} of {name} is down (ip link set ... up)")
        else:
            states[number] = MTU_BYTES[attributes.active_mtu]
    for entry in context.query_gid_table(_MAX_GIDS):
        if entry.port_num in states:
            gid = gid_of(entry.gid_str())
            if any(gid):
                roce_v2 = entry.gid_type == _GID_TYPE_ROCE_V2
                yield Port(name, entry.port_num, gid, entry.gid_index, roce_v2, states[entry.port_num])


def gid_of(gid: str) -> bytes:
    """Return the 16 bytes of a GID's text; an IPv4 address stands for its mapping into IPv6.

    Raises:
        ConfigurationError: it is no address.
    """
    try:
        address = ipaddress.ip_address(gid)
    except ValueError:
        raise ConfigurationError(f"gid must be the IP address of an RDMA port, not {gid!r}") from None
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


def gid_text(gid: bytes) -> str:
    """Return the usual text of a GID: an IPv4 address if it is a mapped one."""
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def gid_words(gid: bytes) -> str:
    """Return a GID's text in the form that pyverbs accepts."""
    return ipaddress.IPv6Address(gid).exploded
