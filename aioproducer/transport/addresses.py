"""Names and addresses of sockets, for connecting, listening and error texts."""

from __future__ import annotations

import asyncio
import errno
import socket

from aioproducer._common.texts import printable

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def peer_name(host: str, port: int) -> str:
    """Return printable ``host:port``, with an IPv6 address in brackets; host names may come from a broker."""
    host = printable(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_loop(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Raise ``RuntimeError`` if the loop cannot watch sockets."""
    try:
        loop.remove_reader(sock)
    except NotImplementedError:
        raise RuntimeError(
            f"{type(loop).__name__} cannot watch sockets (it has no add_reader): "
            "run on asyncio.SelectorEventLoop or uvloop"
        ) from None


async def resolve(
    loop: asyncio.AbstractEventLoop, host: str | None, port: int, peer: str, *, passive: bool = False
) -> list[tuple[socket.AddressFamily, Address]]:
    """Return the addresses of ``host``. A ``host`` that is an address needs neither a thread nor a loop iteration.

    With ``passive``, return addresses to listen at; ``None`` as ``host`` means all addresses of the machine.

    Raises:
        OSError: there is none; the text names ``peer``.
    """
    flags = socket.AI_PASSIVE if passive else 0
    try:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"cannot resolve the host of {peer}: {error.strerror}") from error
    except UnicodeError as error:
        raise not_a_host_name(peer, error) from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


def not_a_host_name(peer: str, error: UnicodeError) -> OSError:
    """Return the error for an impossible host name: one with an empty label, or with one of over 63 characters."""
    return OSError(errno.EINVAL, f"cannot resolve the host of {peer}: not a host name ({error})")


def with_peer(error: OSError, peer: str, hint: str = "") -> OSError:
    """Return a copy of ``error`` that names the peer; not chained, as the first traceback refers to the transport."""
    named = type(error)(error.errno, f"{peer}: {error.strerror or error}{hint}")
    vars(named).update(vars(error))
    return named
