"""Shared by the tests of renewed certificates: clocks that the test moves, and reads of files that wait."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aioproducer.config import ProducerConfig
from aioproducer.security import RenewedContext, renewal
from aioproducer.security.tls import StoreFiles, read_store_files
from tests.security.authority import Authority

START = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL = 60.0


class Time:
    """The two clocks of a ``RenewedContext``, which only the test moves."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed

    def wall(self) -> float:
        return START.timestamp() + self.passed

    def pass_interval(self) -> None:
        self.passed += INTERVAL


def config_of(authority: Authority | None = None, **given: object) -> ProducerConfig:
    if authority is not None:
        given["ssl_truststore_certificates"] = authority.pem.decode()
    return ProducerConfig.from_mapping({"bootstrap_servers": "a:1", "security_protocol": "SSL", **given})


def renewed(time: Time, config: ProducerConfig, interval: float = INTERVAL) -> RenewedContext:
    return RenewedContext(config, interval, clock=time.monotonic, wall_clock=time.wall)


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]


def put(path: Path, content: bytes | None) -> None:
    """Write the file in place; ``None``: remove it."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


class Reads:
    """Counts and delays reads of the files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.threads: set[int] = set()
        self.may_read = threading.Event()
        self.may_read.set()
        monkeypatch.setattr(renewal, "read_store_files", self._read)

    def _read(self, config: ProducerConfig) -> StoreFiles:
        self.count += 1
        self.threads.add(threading.get_ident())
        assert self.may_read.wait(20)
        return read_store_files(config)
