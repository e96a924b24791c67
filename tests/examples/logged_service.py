"""An example's service in a separate process, with its address in its log."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from queue import Queue


class LoggedService:
    """A running service.

    Args:
        announcement: the part of a log line that has the address as its first group.
    """

    def __init__(self, command: list[str], bootstrap_servers: str, announcement: str) -> None:
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "BOOTSTRAP_SERVERS": bootstrap_servers},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._announcement = re.compile(announcement)
        self._addresses: Queue[str] = Queue()
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()
        self.url = self._addresses.get(timeout=60)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if address := self._announcement.search(line):
                self._addresses.put(address[1])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.listener.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
