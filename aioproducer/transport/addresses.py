"""Names and addresses of sockets."""

from __future__ import annotations

import asyncio
import errno
import socket

from aioproducer._common.texts import printable

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def peer_name(host: str, port: int) -> str:
    """``host:port`` as people should read it, with an IPv6 address in brackets; brokers name hosts too."""
    host = printable(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_loop(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Raise ``RuntimeError`` where the loop cannot watch sockets."""
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
    """The addresses of ``host``; one that is an address already takes neither a thread nor a turn of the loop.

    With ``passive`` those to listen at, all of the machine's where ``host`` is ``None``.

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
    """What a name is answered with that cannot be one: an empty label, or one of more than 63 characters."""
    return OSError(errno.EINVAL, f"cannot resolve the host of {peer}: not a host name ({error})")


def with_peer(error: OSError, peer: str, hint: str = "") -> OSError:
    """The same error, saying with whom it happened. Not chained: the first one's traceback holds the transport."""
    named = type(error)(error.errno, f"{peer}: {error.strerror or error}{hint}")
    vars(named).update(vars(error))
    return named
