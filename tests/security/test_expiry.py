"""Warnings of certificates that expire. The time is the test's own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from pathlib import Path

import pytest

from aioproducer.security import renewal
from tests.security.authority import Authority
from tests.security.renewing import INTERVAL, START, Time, config_of, put, renewed, warnings
from tests.waiting import until


def expiring(authority: Authority, name: str, **left: float) -> tuple[str, bytes]:
    """The end of a certificate's validity as the log shows it, and its key store."""
    not_after = START + timedelta(**left)
    return f"{not_after:%Y-%m-%d %H:%M:%S} UTC", authority.issue(name, not_after).store


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ({"days": 8}, None),
        ({"days": 7, "seconds": 1}, None),
        ({"days": 7}, "expires on {end}, in 7 days"),
        ({"days": 1, "hours": 23}, "expires on {end}, in 1 day"),
        ({"minutes": 5}, "expires on {end}, in less than a day"),
        ({"minutes": -5}, "has expired on {end}, less than a day ago: connections that need it fail"),
        ({"days": -30}, "has expired on {end}, 30 days ago: connections that need it fail"),
    ],
)
async def test_certificates_that_expire_within_a_week_are_logged_once(
    left: dict[str, float],
    says: str | None,
    time: Time,
    authority: Authority,
    key_store: Path,
    log: pytest.LogCaptureFixture,
) -> None:
    end, store = expiring(authority, "orders", **left)
    put(key_store, store)
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    expected = (
        [] if says is None else [f"Certificate CN=orders (ssl.keystore.location {key_store}) {says.format(end=end)}"]
    )
    assert warnings(log) == expected
    time.passed += 0.5
    await source.current()
    assert warnings(log) == expected


def test_trusted_certificates_and_those_given_inline_are_warned_of(
    time: Time, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    root = Authority("root", START + timedelta(days=2))
    pair = root.issue("orders", START + timedelta(days=1))
    trust_store = tmp_path / "trust.pem"
    trust_store.write_bytes(root.pem + Authority("lasting").pem)
    renewed(
        time,
        config_of(
            ssl_truststore_location=str(trust_store),
            ssl_keystore_key=pair.key.decode(),
            ssl_keystore_certificate_chain=pair.pem.decode() + root.pem.decode(),
        ),
    )
    first, second = warnings(log)
    assert first.startswith("Certificate CN=orders (ssl.keystore.key and ssl.keystore.certificate.chain) expires on")
    # It is in both stores, and warned of once.
    assert second.startswith("Certificate CN=root (ssl.keystore.key")


def test_trusted_certificates_that_have_expired_are_counted_if_others_are_valid(
    time: Time, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """The bundles of systems and browsers have such certificates, and their users cannot remove them."""
    trust_store = tmp_path / "trust.pem"
    expired = Authority("first", START - timedelta(days=1)).pem + Authority("second", START - timedelta(days=9)).pem
    soon = Authority("soon", START + timedelta(days=1)).pem
    trust_store.write_bytes(expired + soon)
    renewed(time, config_of(ssl_truststore_location=str(trust_store)))
    assert "2 of 3 certificates in ssl.truststore.location" in log.text
    (warning,) = warnings(log)
    assert "CN=soon" in warning


def test_trusted_certificates_that_have_expired_are_warned_of_if_no_other_is_valid(
    time: Time, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    trust_store = tmp_path / "trust.pem"
    trust_store.write_bytes(Authority("only", START - timedelta(days=1)).pem)
    renewed(time, config_of(ssl_truststore_location=str(trust_store)))
    (warning,) = warnings(log)
    assert warning.startswith(f"Certificate CN=only (ssl.truststore.location {trust_store}) has expired on")


def test_an_expired_certificate_of_the_client_is_warned_of_also_if_it_is_trusted(
    time: Time, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    root = Authority("root", START - timedelta(days=1))
    trust_store, client = tmp_path / "trust.pem", tmp_path / "client.pem"
    trust_store.write_bytes(root.pem + Authority("lasting").pem)
    client.write_bytes(root.issue("orders").store)
    renewed(time, config_of(ssl_truststore_location=str(trust_store), ssl_keystore_location=str(client)))
    (warning,) = warnings(log)
    assert warning.startswith(f"Certificate CN=root (ssl.keystore.location {client}) has expired on")


async def test_a_trusted_certificate_that_expires_while_it_is_used_is_warned_of(
    time: Time, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    trust_store = tmp_path / "trust.pem"
    put(trust_store, Authority("lasting").pem + Authority("root", START + timedelta(days=1)).pem)
    source = renewed(time, config_of(ssl_truststore_location=str(trust_store)))
    time.passed = 2 * 86_400.0
    await source.current()
    assert [warning.split(") ")[1].split(" on ")[0] for warning in warnings(log)] == ["expires", "has expired"]


async def test_a_certificate_is_warned_of_at_a_check_when_its_last_week_begins_and_when_it_has_expired(
    time: Time, authority: Authority, key_store: Path, log: pytest.LogCaptureFixture
) -> None:
    _, store = expiring(authority, "orders", days=30)
    put(key_store, store)
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    for days in (22, 24, 26, 29, 30, 31):
        time.passed = days * 86_400.0
        await source.current()
    assert [warning.split(") ")[1].split(" on ")[0] for warning in warnings(log)] == ["expires", "has expired"]


async def test_a_renewed_certificate_ends_the_warnings_or_is_warned_of_itself(
    time: Time, authority: Authority, key_store: Path, log: pytest.LogCaptureFixture
) -> None:
    put(key_store, expiring(authority, "first", days=1)[1])
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    for name, days in (("second", 3), ("third", 90)):
        put(key_store, expiring(authority, name, days=days)[1])
        time.pass_interval()
        await source.current()
    time.passed = 2 * 86_400.0
    await source.current()
    assert [warning.split(" (")[0] for warning in warnings(log)] == ["Certificate CN=first", "Certificate CN=second"]


@pytest.mark.parametrize("interval", [INTERVAL, 0])
async def test_certificates_are_checked_while_no_connection_is_opened(
    interval: float,
    time: Time,
    authority: Authority,
    key_store: Path,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewal, "EXPIRY_PERIOD", 0.001)
    put(key_store, expiring(authority, "orders", days=30)[1])
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)), interval)
    await source.current()
    time.passed = 25 * 86_400.0
    await until(lambda: warnings(log))
    assert "CN=orders" in warnings(log)[0]


async def test_a_certificate_renewed_while_no_connection_is_opened_is_not_warned_of(
    time: Time, authority: Authority, key_store: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "EXPIRY_PERIOD", 0.001)
    put(key_store, expiring(authority, "orders", days=30)[1])
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    await source.current()
    put(key_store, expiring(authority, "orders", days=60)[1])
    time.passed = 25 * 86_400.0
    await until(lambda: "renewed certificates in" in log.text)
    assert not warnings(log)


async def test_the_timer_does_not_keep_the_context_alive(
    time: Time, authority: Authority, key_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    period = 0.00123
    count = 0
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(delay: float, *arguments: object, **others: object) -> asyncio.TimerHandle:
        nonlocal count
        count += delay == period
        return call_later(delay, *arguments, **others)  # type: ignore[arg-type]

    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", counted)
        patch.setattr(renewal, "EXPIRY_PERIOD", period)
        for _ in range(3):
            await source.current()
        assert count == 1
        gone = weakref.ref(source)
        del source
        gc.collect()
        assert gone() is None
        await asyncio.sleep(0.01)
        assert count == 1
