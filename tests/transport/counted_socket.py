"""Recording a transport's attempts to send and receive."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import Any


class CountedSocket:
    """Replaces a transport's socket, and records every call that sends or receives."""

    def __init__(self, of: socket.socket, calls: list[str]) -> None:
        self._of = of
        self._calls = calls

    def sendmsg(self, buffers: Any) -> int:
        self._calls.append("sendmsg")
        return self._of.sendmsg(buffers)

    def send(self, buffer: Any) -> int:
        self._calls.append("send")
        return self._of.send(buffer)

    def recv_into(self, buffer: Any) -> int:
        self._calls.append("recv_into")
        return self._of.recv_into(buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class CountedViews(deque[memoryview]):
    """Replaces a transport's queue of unsent data, and records every check of it, even if it is empty."""

    def __init__(self, of: deque[memoryview], calls: list[str]) -> None:
        super().__init__(of)
        self._calls = calls

    def __iter__(self) -> Iterator[memoryview]:
        self._calls.append("look")
        return super().__iter__()
