"""Certificates renewed on disk, completely or in part: what new connections use. The test sets the time."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from aioproducer.errors import ConfigurationError
from aioproducer.security import renewal
from tests.security.authority import Authority, handshake, presented
from tests.security.renewing import INTERVAL, Reads, Time, config_of, put, renewed, warnings
from tests.waiting import until

PASSWORD = "geheim-17"


async def test_a_renewed_pair_is_used_after_the_interval(
    time: Time, authority: Authority, key_store: Path, broker: ssl.SSLContext, log: pytest.LogCaptureFixture
) -> None:
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    before = await source.current()
    put(key_store, authority.issue("new").store)
    time.passed = INTERVAL - 0.1
    assert await source.current() is before
    assert presented(before, broker) == "old"
    time.passed = INTERVAL
    after = await source.current()
    assert presented(after, broker) == "new"
    assert presented(before, broker) == "old"
    assert [record.getMessage() for record in log.records] == [
        f"New connections use the renewed certificates in ssl.keystore.location {key_store}"
    ]


async def test_files_that_stay_the_same_keep_the_context(
    time: Time, authority: Authority, key_store: Path, log: pytest.LogCaptureFixture
) -> None:
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    context = await source.current()
    for _ in range(3):
        time.pass_interval()
        os.utime(key_store, (time.passed, time.passed))
        assert await source.current() is context
    assert not log.records


@pytest.mark.parametrize("state", ["new certificate, old key", "new certificate, no key", "empty", "no PEM", "missing"])
async def test_the_old_pair_is_kept_and_warned_of_once_until_the_new_one_is_complete(
    state: str,
    time: Time,
    authority: Authority,
    key_store: Path,
    broker: ssl.SSLContext,
    log: pytest.LogCaptureFixture,
) -> None:
    old, new = authority.issue("old"), authority.issue("new")
    put(key_store, old.store)
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    content, reason = {
        "new certificate, old key": (old.key + new.pem, "the private key does not belong to the certificate"),
        "new certificate, no key": (new.pem, "there is no PEM private key in it"),
        "empty": (b"", "is neither PEM nor PKCS12"),
        "no PEM": (b"nothing", "is neither PEM nor PKCS12"),
        "missing": (None, "cannot be read: No such file or directory"),
    }[state]
    put(key_store, content)
    for _ in range(3):
        time.pass_interval()
        assert presented(await source.current(), broker) == "old"
    (warning,) = warnings(log)
    assert warning.startswith("Renewed certificates cannot be used; new connections use the previous ones until they")
    assert str(key_store) in warning
    assert reason in warning
    put(key_store, new.store)
    time.pass_interval()
    assert presented(await source.current(), broker) == "new"
    assert len(warnings(log)) == 1


async def test_each_problem_is_warned_of_and_again_after_it_was_solved(
    time: Time, authority: Authority, key_store: Path, log: pytest.LogCaptureFixture
) -> None:
    good = authority.issue("old").store
    put(key_store, good)
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    context = await source.current()
    for content in (b"nothing", authority.pem, b"nothing", good, b"nothing"):
        put(key_store, content)
        time.pass_interval()
        assert await source.current() is context
    assert ["neither PEM" in warning for warning in warnings(log)] == [True, False, True]


async def test_a_file_cut_anywhere_never_breaks_the_pair(
    time: Time, authority: Authority, key_store: Path, broker: ssl.SSLContext
) -> None:
    """The file is written in place, and each check sees a part of it: at least the key and the certificate, or none."""
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    new = authority.issue("new").store
    seen = []
    for length in range(0, len(new) + 1, 16):
        put(key_store, new[:length])
        time.pass_interval()
        seen.append(presented(await source.current(), broker))
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {"old", "new"}


async def test_changed_files_are_checked_again_soon_until_they_stay_the_same(
    time: Time, authority: Authority, key_store: Path, reads: Reads
) -> None:
    """A file that another program is writing may lack its last certificate, which no check can recognize."""
    new = authority.issue("new")
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    put(key_store, new.key + new.pem)
    time.pass_interval()
    half = await source.current()
    put(key_store, new.store)
    time.passed += renewal.SETTLING_TIME / 2
    assert await source.current() is half
    time.passed += renewal.SETTLING_TIME / 2
    whole = await source.current()
    assert whole is not half
    time.passed += renewal.SETTLING_TIME
    assert await source.current() is whole
    count = reads.count
    time.passed += INTERVAL - 1
    assert await source.current() is whole
    assert reads.count == count


async def test_a_swap_of_kubernetes_symbolic_links_is_noticed(
    time: Time, authority: Authority, tmp_path: Path, broker: ssl.SSLContext
) -> None:
    """Kubelet swaps the link ..data to a folder of the same files, which here have the same times and sizes as well."""
    pairs = {name: authority.issue(name) for name in ("old", "new")}
    mount = tmp_path / "mount"
    length = max(len(pair.store) for pair in pairs.values())
    for name, pair in pairs.items():
        folder = mount / f"..{name}"
        folder.mkdir(parents=True)
        (folder / "client.pem").write_bytes(pair.store.ljust(length, b"\n"))
        os.utime(folder / "client.pem", (1, 1))
    (mount / "..data").symlink_to("..old")
    (mount / "client.pem").symlink_to("..data/client.pem")
    source = renewed(time, config_of(authority, ssl_keystore_location=str(mount / "client.pem")))
    assert presented(await source.current(), broker) == "old"
    (mount / "..data_tmp").symlink_to("..new")
    (mount / "..data_tmp").rename(mount / "..data")
    time.pass_interval()
    assert presented(await source.current(), broker) == "new"


async def test_a_renewed_trust_store_is_used(time: Time, authority: Authority, tmp_path: Path) -> None:
    other = Authority("other")
    trust_store = tmp_path / "trust.pem"
    trust_store.write_bytes(authority.pem)
    source = renewed(time, config_of(ssl_truststore_location=str(trust_store)))
    broker = other.broker_context(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(await source.current(), broker)
    trust_store.write_bytes(authority.pem + other.pem)
    time.pass_interval()
    handshake(await source.current(), broker)


async def test_a_renewed_pkcs12_store_is_used(
    time: Time, authority: Authority, tmp_path: Path, broker: ssl.SSLContext
) -> None:
    key_store, trust_store = tmp_path / "client.p12", tmp_path / "trust.p12"
    put(key_store, authority.issue("old").pkcs12(PASSWORD.encode()))
    trust_store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            None, None, None, [authority.certificate], BestAvailableEncryption(PASSWORD.encode())
        )
    )
    source = renewed(
        time,
        config_of(
            ssl_keystore_location=str(key_store),
            ssl_keystore_password=PASSWORD,
            ssl_truststore_location=str(trust_store),
            ssl_truststore_password=PASSWORD,
        ),
    )
    assert presented(await source.current(), broker) == "old"
    put(key_store, authority.issue("new").pkcs12(PASSWORD.encode()))
    time.pass_interval()
    assert presented(await source.current(), broker) == "new"


@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
async def test_a_store_renewed_with_another_password_is_not_used_and_no_secret_is_logged(
    kind: str,
    time: Time,
    authority: Authority,
    tmp_path: Path,
    broker: ssl.SSLContext,
    log: pytest.LogCaptureFixture,
) -> None:
    key_store = tmp_path / "client"
    other_password = "anders-18"
    old, new = authority.issue("old"), authority.issue("new")

    def write(pair: object, password: str) -> None:
        assert pair in (old, new)
        made = old if pair is old else new
        secret = password.encode()
        put(key_store, made.encrypted_key(secret) + made.pem if kind == "PEM" else made.pkcs12(secret))

    write(old, PASSWORD)
    passwords = {"ssl_key_password": PASSWORD} if kind == "PEM" else {"ssl_keystore_password": PASSWORD}
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store), **passwords))
    write(new, other_password)
    time.pass_interval()
    assert presented(await source.current(), broker) == "old"
    (warning,) = warnings(log)
    assert f"ssl.{'key' if kind == 'PEM' else 'keystore'}.password" in warning
    assert "wrong" in warning
    write(new, PASSWORD)
    time.pass_interval()
    assert presented(await source.current(), broker) == "new"
    everything = log.text + repr(vars(source))
    secrets = [PASSWORD, other_password] + [line for line in new.key.decode().splitlines() if "-" not in line]
    assert not [secret for secret in secrets if secret in everything]


async def test_an_interval_of_0_reads_the_files_only_once(
    time: Time, authority: Authority, key_store: Path, broker: ssl.SSLContext, reads: Reads
) -> None:
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)), interval=0)
    put(key_store, authority.issue("new").store)
    time.passed = 1e9
    assert presented(await source.current(), broker) == "old"
    assert reads.count == 1


async def test_certificates_given_inline_are_never_read_again(time: Time, authority: Authority, reads: Reads) -> None:
    source = renewed(time, config_of(authority))
    time.pass_interval()
    await source.current()
    assert reads.count == 1


def test_files_that_are_wrong_at_the_start_are_an_error(time: Time, authority: Authority, key_store: Path) -> None:
    put(key_store, authority.pem)
    with pytest.raises(ConfigurationError, match="there is no PEM private key in it"):
        renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))


# Checks


async def test_many_connections_share_one_check_and_cancelling_one_does_not_affect_the_others(
    time: Time, authority: Authority, key_store: Path, reads: Reads, broker: ssl.SSLContext
) -> None:
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    assert reads.threads == {threading.get_ident()}
    put(key_store, authority.issue("new").store)
    time.pass_interval()
    reads.may_read.clear()
    calls = [asyncio.ensure_future(source.current()) for _ in range(50)]
    await until(lambda: reads.count == 2)
    calls[0].cancel()
    await until(calls[0].done)
    reads.may_read.set()
    contexts = set(await asyncio.gather(*calls[1:]))
    assert calls[0].cancelled()
    assert [presented(context, broker) for context in contexts] == ["new"]
    assert reads.count == 2


async def test_the_loop_runs_on_while_files_are_read_in_a_thread(
    time: Time, authority: Authority, key_store: Path, reads: Reads
) -> None:
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    time.pass_interval()
    reads.may_read.clear()
    reads.threads.clear()
    call = asyncio.ensure_future(source.current())
    # The file is being read all the while, and the loop turns.
    await until(lambda: reads.count == 2)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not call.done()
    assert threading.get_ident() not in reads.threads
    reads.may_read.set()
    await call


async def test_connections_do_not_wait_for_files_that_cannot_be_read_in_time(
    time: Time,
    authority: Authority,
    key_store: Path,
    broker: ssl.SSLContext,
    reads: Reads,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewal, "CHECK_PATIENCE", 0.01)
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    put(key_store, authority.issue("new").store)
    time.pass_interval()
    reads.may_read.clear()
    for _ in range(3):
        assert presented(await source.current(), broker) == "old"
        time.pass_interval()
    assert reads.count == 2
    (warning,) = warnings(log)
    assert warning.endswith(f"ssl.keystore.location {key_store} could not be read within 0.01 s")
    reads.may_read.set()
    await until(lambda: "renewed certificates in" in log.text)
    assert presented(await source.current(), broker) == "new"


async def test_the_old_pair_is_used_when_no_thread_can_be_started(
    time: Time, authority: Authority, key_store: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    context = await source.current()
    time.pass_interval()

    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
        for _ in range(2):
            assert await source.current() is context
    (warning,) = warnings(log)
    assert "no thread can be started" in warning


async def test_an_error_of_the_system_keeps_the_old_pair(
    time: Time, authority: Authority, key_store: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    context = await source.current()
    put(key_store, authority.issue("new").store)
    time.pass_interval()

    def refuse(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(renewal, "client_context", refuse)
        assert await source.current() is context
    assert "Too many open files" in warnings(log)[0]
    time.pass_interval()
    assert await source.current() is not context


def test_one_source_serves_several_loops_one_after_the_other(
    time: Time, authority: Authority, key_store: Path, broker: ssl.SSLContext, reads: Reads
) -> None:
    """The first loop ends while its check is under way."""
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    put(key_store, authority.issue("new").store)
    time.pass_interval()
    reads.may_read.clear()
    loop = asyncio.new_event_loop()
    first = loop.create_task(source.current())
    loop.run_until_complete(asyncio.sleep(0))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(first)
    loop.close()
    reads.may_read.set()
    time.pass_interval()
    assert presented(asyncio.run(source.current()), broker) == "new"
