"""Certificates in files, and a broker that demands them."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from aioproducer.security import renewal
from tests.security.authority import Authority
from tests.security.renewing import Reads, Time


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    # A machine that is busy with other tests may exceed the patience of a user.
    monkeypatch.setattr(renewal, "CHECK_PATIENCE", 30.0)
    return Time()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "aioproducer")
    return caplog


@pytest.fixture
def key_store(tmp_path: Path, authority: Authority) -> Path:
    path = tmp_path / "client.pem"
    path.write_bytes(authority.issue("old").store)
    return path


@pytest.fixture
def broker(tmp_path: Path, authority: Authority) -> ssl.SSLContext:
    """Demands a certificate of the authority."""
    return authority.broker_context(tmp_path, authority)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)
