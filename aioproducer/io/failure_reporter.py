"""Reports records that failed: to the log, ``on_error``, ``on_record_failed`` and the metrics."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aioproducer._common.texts import counted
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.errors import (
    BufferExhaustedError,
    KafkaError,
    ProducerClosedError,
    WrongCallerError,
)
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    from aioproducer._common.client_log import ClientLog
    from aioproducer.io.failed_records import FailedRecords
    from aioproducer.metrics import ProducerMetrics

OnError = Callable[[TopicPartition, int, KafkaError], None]

# At most this many rejected records are kept until they are reported; until then a caller may await their Deliveries.
MAX_REJECTED_KEPT = 1000

# Records are reported together if they have the same partition and the same kind of error.
_Kind = tuple[TopicPartition, type[KafkaError]]


class FailureReporter:
    """Counts, logs and reports failures of records, those of one kind together.

    The reporter counts two groups of records that failed without a batch. The sender has those that failed while they
    waited reported a few at a time, when no more of them fail (``report_failures``). Records that ``send`` rejected
    are reported two iterations of the loop later, when their caller has had the chance to await them.

    Args:
        on_error: called with partition (-1 if none was chosen), number of records and error; its exceptions are logged.
        failed_records: reads the records back for ``on_record_failed``; None without such a hook.
        on_failure: called at once with the error of each failure: it concerns the transaction.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: ProducerMetrics,
        log: ClientLog,
        on_error: OnError | None,
        failed_records: FailedRecords | None,
        on_failure: Callable[[KafkaError], None] | None = None,
    ) -> None:
        self.failed_records = failed_records
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._on_error = on_error
        self._on_failure = on_failure
        self.unreported: OrderedDict[_Kind, _FailedRecords] = OrderedDict()
        """Records that failed while they waited and are not reported yet."""
        # Rejected records that are not reported yet.
        self._rejected: dict[_Kind, _FailedRecords] = {}

    def report(self, topic_partition: TopicPartition, count: int, unobserved: int, error: KafkaError) -> None:
        """Report ``count`` failed records, of which ``unobserved`` had neither an awaiter nor a callback."""
        if self._on_failure is not None:
            self._on_failure(error)
        # The commit of a transaction raises the failure, and the caller of an abort knows of it.
        self._log.log(
            logging.ERROR if unobserved and self._on_failure is None else logging.DEBUG,
            "%s for %s failed, %d of them unobserved (no await, no callback): %s",
            counted(count, "record"),
            topic_partition,
            unobserved,
            error,
        )
        if self._on_error is not None:
            try:
                self._on_error(topic_partition, count, error.fresh())
            except (Exception, asyncio.CancelledError):
                self._log.exception("on_error failed")

    def record_raised(self, error: KafkaError) -> None:
        """Count an error that ``send`` raises instead of accepting a record, as Kafka's ``doSend`` does."""
        if not isinstance(error, WrongCallerError | ProducerClosedError):
            self._metrics.send_raised(error, self._loop.time())
            if self._on_failure is not None and isinstance(error, BufferExhaustedError):
                self._on_failure(error)

    def record_waiting(self, records: Sequence[PendingRecord], error: KafkaError, now: float) -> None:
        """Count records that have failed with one error while they waited, for ``report_failures``."""
        for pending in records:
            # Their callers have had the chance to await them.
            self._count(self.unreported, pending, error, now).add_observed(pending.observed)
        if self.failed_records is not None:
            for pending in records:
                self.failed_records.add(pending)

    def record_rejected(self, pending: PendingRecord, error: KafkaError) -> None:
        """Count a record that ``send`` rejected; report it with the others of this iteration of the loop."""
        if not self._rejected:
            # Two iterations later: by then the caller of ``send`` awaits the Delivery, if it ever does.
            self._loop.call_soon(self._loop.call_soon, self.report_rejected)
        self._count(self._rejected, pending, error, self._loop.time()).add(pending)
        if self.failed_records is not None:
            self.failed_records.add(pending)

    def _count(
        self, tally: dict[_Kind, _FailedRecords], pending: PendingRecord, error: KafkaError, now: float
    ) -> _FailedRecords:
        """Record the metric of a full buffer, and return the entry of ``tally`` that the record belongs to."""
        if isinstance(error, BufferExhaustedError):
            self._metrics.buffer_exhausted.record(1, now)
        if self._on_failure is not None:
            self._on_failure(error)
        kind = pending.where(), type(error)
        failed = tally.get(kind)
        if failed is None:
            failed = tally[kind] = _FailedRecords(error)
        return failed

    def report_failures(self, now: float, limit: int | None = None) -> bool:
        """Report records that failed while they waited, at most ``limit`` kinds; return whether there are more."""
        unreported = self.unreported
        left = len(unreported) if limit is None else limit
        while unreported and left:
            left -= 1
            (topic_partition, _), failed = unreported.popitem(last=False)
            self._report_counted(topic_partition, failed, now)
        return bool(unreported)

    def report_rejected(self) -> None:
        """Report the rejected records now."""
        rejected, self._rejected = self._rejected, {}
        for (topic_partition, _), failed in rejected.items():
            self._report_counted(topic_partition, failed, self._loop.time())

    def _report_counted(self, topic_partition: TopicPartition, failed: _FailedRecords, now: float) -> None:
        self._metrics.records_failed(topic_partition.topic, failed.count, now)
        self.report(topic_partition, failed.count, failed.unobserved(), failed.error)


class _FailedRecords:
    """Records of one partition that failed with the same kind of error; a bounded number of them is kept."""

    __slots__ = ("_recent", "_unobserved", "count", "error")

    def __init__(self, error: KafkaError) -> None:
        self.error = error
        self.count = 0
        self._unobserved = 0
        self._recent: list[PendingRecord] = []

    def add_observed(self, observed: bool) -> None:
        """Count a record, which is not kept."""
        self.count += 1
        self._unobserved += not observed

    def add(self, pending: PendingRecord) -> None:
        """Count a record, and keep it until ``unobserved`` checks it."""
        if len(self._recent) == MAX_REJECTED_KEPT:
            self.unobserved()
        self.count += 1
        self._recent.append(pending)

    def unobserved(self) -> int:
        """Return how many records have had neither an awaiter nor a callback so far."""
        self._unobserved += sum([not pending.observed for pending in self._recent])
        self._recent.clear()
        return self._unobserved
