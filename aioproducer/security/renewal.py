"""Certificates that are renewed on disk, used for the connections that are opened afterwards.

Kafka reloads the stores of brokers only, on request (KIP-226). A client that reads its files once fails when it
reconnects after its certificate has expired, although a valid one has long been on the disk.

The files are checked when a connection is opened, unless the last check is newer than the poll interval. No task has to
be ended for this, and no new connection uses files that are older than the interval.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, NamedTuple

from aioproducer._common.client_log import Log
from aioproducer._common.texts import counted
from aioproducer.errors import ConfigurationError
from aioproducer.security.certificates import Certificate, certificates_in
from aioproducer.security.tls import StoreFiles, client_context, open_stores, read_store_files, ssl_context_from

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig

_logger = logging.getLogger("aioproducer")

EXPIRY_NOTICE = 7 * 86_400.0
"""Seconds before the end of a certificate's validity from which on it is warned of."""

EXPIRY_PERIOD = 3600.0
"""Seconds between two checks of the certificates if no connection is opened."""

SETTLING_TIME = 1.0
"""Seconds after which changed files are checked again.

Not every tool replaces a file at once: a check may find half of it, and a chain that lacks its last certificate is not
recognizable. So after a change, files count as complete only when two checks have found the same.
"""

CHECK_PATIENCE = 2.0
"""Seconds that connections wait for a check.

Files on a network file system may take arbitrarily long. The certificates in use may still be valid then, so
connections go on with them.
"""


class _Listed(NamedTuple):
    """A certificate of a store."""

    source: str
    """The key that it came from."""
    is_trusted: bool
    """Whether it is the trust store's; else it is of the client's chain."""
    certificate: Certificate


class _Loaded(NamedTuple):
    """A context, and the files that it was made from."""

    context: ssl.SSLContext
    digest: bytes
    certificates: tuple[_Listed, ...]
    """Those of the client, then the trusted ones."""
    unreadable: tuple[str, ...]
    """Why some are not in ``certificates``."""


class _Checked(NamedTuple):
    """The result of a check."""

    digest: bytes | None
    """Of the files; ``None`` if they could not be read."""
    loaded: _Loaded | None
    """``None`` if nothing has changed, or if there was a problem."""
    problem: str | None


class RenewedContext:
    """The SSL context of a client, with certificates that may be renewed; an ``SslContextSource``.

    Key and certificates are replaced together. If they do not match or cannot be read, the last context that could be
    made is kept, each distinct problem is logged once as a warning, and the next check tries again.

    A certificate of the client or of the trust store is warned of when it expires within a week, and when it has
    expired. Of the trusted ones that had expired before they were read, only the number is logged if others are valid:
    in the bundles of systems and browsers there are always some.

    Args:
        config: its ``ssl`` keys are used.
        poll_interval: seconds between two checks of the files; 0: they are read only once.
        clock, wall_clock: the time in seconds, monotonic and since the epoch.

    Raises:
        ConfigurationError: the ``ssl`` keys or the files are wrong now.
    """

    def __init__(
        self,
        config: ProducerConfig,
        poll_interval: float,
        log: Log = _logger,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        has_files = config.ssl_keystore_location is not None or config.ssl_truststore_location is not None
        self._poll_interval = poll_interval if poll_interval > 0 and has_files else math.inf
        self._log = log
        self._clock = clock
        self._wall_clock = wall_clock
        self._problems: set[str] = set()
        """The problems that were logged since the files were last in order."""
        self._expiry_warnings: set[tuple[bytes, bool]] = set()
        """Certificates that were warned of, and whether they had expired then."""
        self._check: asyncio.Future[_Checked] | None = None
        self._check_began = 0.0
        self._watched_loop: asyncio.AbstractEventLoop | None = None
        self._next_check = clock() + self._poll_interval
        files = read_store_files(config)
        self._last_digest: bytes | None = files.digest()
        self._use(_load(config, files))
        self._warn_of_expiry()

    async def current(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        If the poll interval has passed since the last check, the files are checked before, in a thread. Concurrent
        calls share one check. Cancelling a call does not affect the others.
        """
        loop = asyncio.get_running_loop()
        self._watch_expiry(loop)
        self._check_if_due(loop)
        check = self._check
        if check is not None:
            patience = self._check_began + CHECK_PATIENCE - self._clock()
            if patience > 0:
                await asyncio.wait([check], timeout=patience)
            if not check.done():
                self._warn_once(f"{self._locations()} could not be read within {CHECK_PATIENCE:g} s")
        return self._loaded.context

    # Checks

    def _check_if_due(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._check is not None and self._check.get_loop() is not loop:
            # That loop has ended before the check.
            self._check = None
        now = self._clock()
        if self._check is not None or now < self._next_check:
            return
        self._check_began = now
        self._next_check = now + self._poll_interval
        try:
            check = loop.run_in_executor(None, _check_files, self._config, self._loaded.digest)
        except RuntimeError as error:
            # The system has no more threads, or the loop is about to end.
            self._warn_once(f"no thread can be started to read {self._locations()}: {error}")
            return
        self._check = check
        check.add_done_callback(self._checked, context=Context())

    def _checked(self, check: asyncio.Future[_Checked]) -> None:
        if check is not self._check:
            return
        self._check = None
        if check.cancelled():
            return
        digest, loaded, problem = check.result()
        if digest != self._last_digest:
            self._last_digest = digest
            self._next_check = min(self._next_check, self._check_began + SETTLING_TIME)
        if problem is not None:
            self._warn_once(problem)
        else:
            self._problems.clear()
        if loaded is not None:
            self._use(loaded)
            self._log.info("New connections use the renewed certificates in %s", self._locations())
        self._warn_of_expiry()

    def _use(self, loaded: _Loaded) -> None:
        self._loaded = loaded
        present = {listed.certificate.fingerprint for listed in loaded.certificates}
        self._expiry_warnings = {warning for warning in self._expiry_warnings if warning[0] in present}
        for problem in loaded.unreadable:
            self._log.warning("Certificates may expire without a warning: %s", problem)
        self._pass_over_expired()

    def _pass_over_expired(self) -> None:
        now = self._wall_clock()
        own = {listed.certificate.fingerprint for listed in self._loaded.certificates if not listed.is_trusted}
        trusted = [listed for listed in self._loaded.certificates if listed.is_trusted]
        expired = [listed for listed in trusted if listed.certificate.not_after <= now]
        warnings = {(listed.certificate.fingerprint, True) for listed in expired} - self._expiry_warnings
        warnings = {warning for warning in warnings if warning[0] not in own}
        if warnings and len(expired) < len(trusted):
            self._expiry_warnings |= warnings
            count = len(expired)
            self._log.info("%d of %d certificates in %s have expired", count, len(trusted), expired[0].source)

    def _locations(self) -> str:
        """Return the files, with their keys."""
        given = (
            ("ssl.keystore.location", self._config.ssl_keystore_location),
            ("ssl.truststore.location", self._config.ssl_truststore_location),
        )
        return " and ".join([f"{key} {location}" for key, location in given if location is not None])

    def _warn_once(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.add(problem)
            self._log.warning(
                "Renewed certificates cannot be used; new connections use the previous ones until they can: %s", problem
            )

    # Expiry

    def _watch_expiry(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the certificates each hour from now on, as long as this object and the loop exist.

        Connections may last for weeks. A certificate that is not renewed in this time should be known of before they
        have to be opened again. The timer holds a weak reference only, so it needs no end: it stops after the client is
        gone.
        """
        if self._watched_loop is not loop:
            self._watched_loop = loop
            _watch(loop, weakref.ref(self))

    def _look(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Check the files, and warn of certificates that expire; return False if another loop does this now."""
        if self._watched_loop is not loop:
            return False
        self._check_if_due(loop)
        if self._check is None:
            self._warn_of_expiry()
        return True

    def _warn_of_expiry(self) -> None:
        now = self._wall_clock()
        for source, _, certificate in self._loaded.certificates:
            left = certificate.not_after - now
            warning = (certificate.fingerprint, left <= 0)
            if left > EXPIRY_NOTICE or warning in self._expiry_warnings:
                continue
            self._expiry_warnings.add(warning)
            if left > 0:
                text = "Certificate %s (%s) expires on %s, in %s"
            else:
                text = "Certificate %s (%s) has expired on %s, %s ago: connections that need it fail"
            self._log.warning(text, certificate.subject, source, certificate.end, _days(abs(left)))


def _watch(loop: asyncio.AbstractEventLoop, this: weakref.ref[RenewedContext]) -> None:
    def look() -> None:
        renewed = this()
        if renewed is not None and renewed._look(loop):
            _watch(loop, this)

    # With the caller's context, the timer would keep the objects in it alive.
    loop.call_later(EXPIRY_PERIOD, look, context=Context())


def _days(seconds: float) -> str:
    days = int(seconds // 86_400)
    return counted(days, "day") if days else "less than a day"


def _check_files(config: ProducerConfig, used: bytes) -> _Checked:
    """Read the files, and make a context if they differ from ``used``; may block.

    Contents are compared, by their hashes: the files are small, and read seldom. Times and sizes may stay the same when
    a volume of Kubernetes is swapped behind its symbolic link or a copy keeps its times, and may change when nothing
    else does.
    """
    digest = None
    try:
        files = read_store_files(config)
        digest = files.digest()
        return _Checked(digest, None if digest == used else _load(config, files), None)
    except ConfigurationError as error:
        problem = str(error)
    except Exception as error:
        # Such as an OSError: no more descriptors.
        problem = repr(error)
    return _Checked(digest, None, problem)


def _load(config: ProducerConfig, files: StoreFiles) -> _Loaded:
    """Make a context from ``files``; may block.

    Raises:
        ConfigurationError: as ``client_context``.
    """
    stores = open_stores(config, files)
    context = client_context(config, stores)
    sources: list[tuple[str, bool, bytes]] = []
    if stores.client is not None:
        sources.append((stores.client.source, False, stores.client.chain))
    if stores.trusted is not None:
        sources.append((stores.trusted.source, True, stores.trusted.pem))
    certificates: list[_Listed] = []
    unreadable: list[str] = []
    for source, is_trusted, pem in sources:
        try:
            for certificate in certificates_in(pem):
                certificates.append(_Listed(source, is_trusted, certificate))
                # Lets the loop's thread run: it would wait for 5 ms (sys.getswitchinterval) for the GIL.
                time.sleep(0)
        except ValueError as error:
            unreadable.append(f"{source}: {error}")
    return _Loaded(context, files.digest(), tuple(certificates), tuple(unreadable))


def context_source_from(
    config: ProducerConfig, poll_interval: float, log: Log = _logger
) -> ssl.SSLContext | RenewedContext | None:
    """Return the context for connections of ``config``, or its source; ``None`` without TLS.

    An ``ssl_context``, given or made by ``ssl_engine_factory_class``, is never replaced. Reads files, so it may block.

    Args:
        poll_interval: ``ssl.certificate.poll.interval.ms`` in seconds.

    Raises:
        ConfigurationError: the ``ssl`` keys are wrong, or the files that they name.
    """
    context = config.ssl_context if config.ssl_context is not None else config.ssl_engine_factory_class
    stores = (
        config.ssl_keystore_location,
        config.ssl_keystore_certificate_chain,
        config.ssl_truststore_location,
        config.ssl_truststore_certificates,
    )
    if not config.uses_tls or context is not None or all(store is None for store in stores):
        return ssl_context_from(config)
    return RenewedContext(config, poll_interval, log)
