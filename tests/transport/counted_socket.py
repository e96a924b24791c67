"""What a transport asks of the system."""

from __future__ import annotations

import socket
from typing import Any


class CountedSocket:
    """In a socket's place in its transport: notes every call that sends or receives."""

    def __init__(self, of: socket.socket, calls: list[str]) -> None:
        self._of = of
        self._calls = calls

    def sendmsg(self, buffers: Any) -> int:
        self._calls.append("sendmsg")
        return self._of.sendmsg(buffers)

    def recv_into(self, buffer: Any) -> int:
        self._calls.append("recv_into")
        return self._of.recv_into(buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)
