"""Reports records that failed: to the log, ``on_error``, ``on_record_failed`` and the metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer._common.texts import counted
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.errors import BufferExhaustedError, KafkaError, ProducerClosedError, WrongCallerError
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    from aioproducer._common.client_log import ClientLog
    from aioproducer.io.failed_records import FailedRecords
    from aioproducer.metrics import Metrics

OnError = Callable[[TopicPartition, int, KafkaError], None]

# At most this many rejected records are kept until they are reported; their awaiters have that long to come.
MAX_REJECTED_KEPT = 1000


class FailureReporter:
    """Counts, logs and reports failures of records, those of one pass of the loop together.

    Args:
        on_error: called with partition (-1 if none was chosen), number of records and error; its exceptions are logged.
        failed_records: reads the records back for ``on_record_failed``; None without such a hook.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        log: ClientLog,
        on_error: OnError | None,
        failed_records: FailedRecords | None,
    ) -> None:
        self.failed_records = failed_records
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._on_error = on_error
        # Rejected records that are not reported yet, by partition and kind of error.
        self._rejected: dict[tuple[TopicPartition, type[KafkaError]], _RejectedRecords] = {}

    def report(self, topic_partition: TopicPartition, count: int, unobserved: int, error: KafkaError) -> None:
        """Report ``count`` failed records, of which ``unobserved`` had neither an awaiter nor a callback."""
        self._log.log(
            logging.ERROR if unobserved else logging.DEBUG,
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
        """Count an error that ``send`` raises for a record that is not accepted, as Kafka's ``doSend`` does."""
        if not isinstance(error, WrongCallerError | ProducerClosedError):
            self._metrics.send_raised(error, self._loop.time())

    def record_rejected(self, pending: PendingRecord, error: KafkaError) -> None:
        """Report a record whose Delivery has failed without a batch, together with the others of this pass."""
        if isinstance(error, BufferExhaustedError):
            self._metrics.buffer_exhausted.record(1, self._loop.time())
        if not self._rejected:
            # One pass later than the next: by then the caller of ``send`` awaits the Delivery, if it ever does.
            self._loop.call_soon(self._loop.call_soon, self.report_rejected)
        kind = pending.where(), type(error)
        rejected = self._rejected.get(kind)
        if rejected is None:
            rejected = self._rejected[kind] = _RejectedRecords(error)
        rejected.add(pending)
        if self.failed_records is not None:
            self.failed_records.add(pending)

    def report_rejected(self) -> None:
        """Report the rejected records now."""
        rejected, self._rejected = self._rejected, {}
        for (topic_partition, _), records in rejected.items():
            self._metrics.records_failed(topic_partition.topic, records.count, self._loop.time())
            self.report(topic_partition, records.count, records.unobserved(), records.error)


class _RejectedRecords:
    """Records of one partition that failed with the same kind of error; a bounded number of them is kept."""

    __slots__ = ("_recent", "_unobserved", "count", "error")

    def __init__(self, error: KafkaError) -> None:
        self.error = error
        self.count = 0
        self._unobserved = 0
        self._recent: list[PendingRecord] = []

    def add(self, pending: PendingRecord) -> None:
        if len(self._recent) == MAX_REJECTED_KEPT:
            self.unobserved()
        self.count += 1
        self._recent.append(pending)

    def unobserved(self) -> int:
        """Return how many records have had neither an awaiter nor a callback so far."""
        self._unobserved += sum([not pending.observed for pending in self._recent])
        self._recent.clear()
        return self._unobserved
