"""Compiled. The metrics of connections and of the producer, under Kafka's names.

`Sensor` objects record values per batch, request, wait or failure, never per delivered record. The tables below map
each name to a sensor and a measure, and `ProducerMetrics.snapshot` reads them all. Rates, averages and maxima cover the
last ``metrics_num_samples`` windows of ``metrics_sample_window_ms``. They are computed as Kafka's ``Rate``, ``Avg`` and
``Max``: a rate without events is 0, an average or maximum without events is NaN.

Arguments named ``now`` are seconds of a monotonic clock. Times in results are milliseconds, or nanoseconds if the name
contains ``ns``; sizes are bytes.

All of these metrics have Kafka's recording level INFO, so ``metrics_recording_level`` excludes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aioproducer.errors import BufferExhaustedError, KafkaError

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

GaugeFunction: TypeAlias = Callable[[float], float]
"""Returns the current value; called with ``now`` in seconds."""


class _Sample:
    """The values of one window."""

    __slots__ = ("events", "last", "maximum", "start", "sum")

    def __init__(self, start: float) -> None:
        self.start = start
        self.last = start
        self.events = 0
        self.sum = 0.0
        self.maximum = -math.inf


# It holds only numbers and objects that hold numbers, so the garbage collector can skip it; each topic has five.
@cython.no_gc
@cython.cclass
class Sensor:
    """Values of one kind, over the last few windows and in total.

    A window starts with the first value after the previous window ended. As Kafka's ``SampledStat``, it keeps one
    window more than ``num_samples``: a window counts as long as its last value is recent.
    """

    __slots__ = ("_current", "_sample_window", "_samples", "_window_end", "_windows", "total", "total_events")

    def __init__(self, num_samples: int, sample_window: float) -> None:
        """``sample_window`` is in seconds."""
        self.total = 0.0
        self.total_events = 0
        self._windows = num_samples
        self._sample_window = sample_window
        # A tuple of these holds nothing that the garbage collector must traverse.
        self._samples: tuple[_Sample, ...] = ()
        self._current = _Sample(-math.inf)
        self._window_end = -math.inf

    def record(self, value: float, now: float) -> None:
        """Add one value."""
        if now >= self._window_end:
            self._begin_window(now)
        sample = self._current
        sample.last = now
        sample.events += 1
        sample.sum += value
        if value > sample.maximum:
            sample.maximum = value
        self.total += value
        self.total_events += 1

    def _begin_window(self, now: float) -> None:
        self._current = _Sample(now)
        self._window_end = now + self._sample_window
        self._samples = (*self._recent(now), self._current)[-(self._windows + 1) :]

    def _recent(self, now: float) -> list[_Sample]:
        oldest = now - self._windows * self._sample_window
        return [sample for sample in self._samples if sample.last > oldest]

    def average(self, now: float) -> float:
        """Return the mean of the recent values; NaN if there are none."""
        samples = self._recent(now)
        events = sum(sample.events for sample in samples)
        return sum(sample.sum for sample in samples) / events if events else math.nan

    def maximum(self, now: float) -> float:
        """Return the largest of the recent values; NaN if there are none."""
        return float(max((sample.maximum for sample in self._recent(now)), default=math.nan))

    def rate(self, now: float) -> float:
        """Return the sum of the recent values per second."""
        samples = self._recent(now)
        return sum(sample.sum for sample in samples) / self._covered(samples, now)

    def event_rate(self, now: float) -> float:
        """Return the number of recent values per second."""
        samples = self._recent(now)
        return sum(sample.events for sample in samples) / self._covered(samples, now)

    def _covered(self, samples: list[_Sample], now: float) -> float:
        """Return the seconds that ``samples`` cover: Kafka's ``Rate.windowSize``.

        Every window except the current one counts in full, even if it lies before the first value. Otherwise the first
        value would give a rate over almost no time.
        """
        elapsed = now - samples[0].start if samples else 0.0
        missing = self._windows - 1 - int(elapsed / self._sample_window)
        return max(elapsed + max(missing, 0) * self._sample_window, 0.001)

    def sum_of_values(self, now: float) -> float:
        """Return the sum of all values since the start."""
        return self.total

    def number_of_values(self, now: float) -> float:
        """Return the number of values since the start."""
        return float(self.total_events)

    def time_ratio(self, now: float) -> float:
        """Return the share of the recent time that values in nanoseconds make up."""
        return self.rate(now) / 1e9


class Totals:
    """Counters since the start that Kafka's metrics do not have.

    batches, records
        Number sent; retries do not count again.
    acked_batches, acked_records
        Number acknowledged.
    latency_sum_ms, latency_max_ms
        Time from an acknowledged batch's first record to the acknowledgement. A reader may set the maximum to 0 to
        start a new period.
    """

    __slots__ = ("acked_batches", "acked_records", "batches", "latency_max_ms", "latency_sum_ms", "records")

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.acked_batches = 0
        self.acked_records = 0
        self.latency_sum_ms = 0.0
        self.latency_max_ms = 0.0


class MetricSpec(NamedTuple):
    """A metric: its name, the attribute that holds its sensor, the measure of the sensor, and its meaning."""

    name: str
    sensor: str
    measure: Callable[[Sensor, float], float]
    description: str


def average(name: str, sensor: str, meaning: str) -> MetricSpec:
    """Return the spec of the mean of the recent values."""
    return MetricSpec(f"{name}-avg", sensor, Sensor.average, f"The average {meaning}.")


def maximum(name: str, sensor: str, meaning: str) -> MetricSpec:
    """Return the spec of the largest of the recent values."""
    return MetricSpec(f"{name}-max", sensor, Sensor.maximum, f"The largest {meaning}.")


def average_and_maximum(name: str, sensor: str, meaning: str) -> tuple[MetricSpec, MetricSpec]:
    """Return the specs of the mean and the largest of the recent values."""
    return average(name, sensor, meaning), maximum(name, sensor, meaning)


def meter(name: str, sensor: str, meaning: str) -> tuple[MetricSpec, MetricSpec]:
    """Return the specs of the sum of the values, per second and in total."""
    return (
        MetricSpec(f"{name}-rate", sensor, Sensor.rate, f"{meaning}, per second."),
        MetricSpec(f"{name}-total", sensor, Sensor.sum_of_values, f"{meaning}, in total."),
    )


def event_meter(name: str, sensor: str, meaning: str) -> tuple[MetricSpec, MetricSpec]:
    """Return the specs of the number of the values, per second and in total."""
    return (
        MetricSpec(f"{name}-rate", sensor, Sensor.event_rate, f"{meaning}, per second."),
        MetricSpec(f"{name}-total", sensor, Sensor.number_of_values, f"{meaning}, in total."),
    )


def total(name: str, sensor: str, meaning: str) -> MetricSpec:
    """Return the spec of the sum of all values."""
    return MetricSpec(f"{name}-total", sensor, Sensor.sum_of_values, meaning)


CONNECTION_METRICS: tuple[MetricSpec, ...] = (
    *event_meter("connection-creation", "connection_creation", "Connections opened"),
    *event_meter("connection-close", "connection_close", "Connections closed"),
    *event_meter("successful-authentication", "authentication_success", "Connections authenticated"),
    *event_meter("failed-authentication", "authentication_failure", "Connections that failed to authenticate"),
    *event_meter("successful-reauthentication", "reauthentication_success", "Sessions renewed on their connection"),
    *event_meter("failed-reauthentication", "reauthentication_failure", "Sessions that could not be renewed"),
    *average_and_maximum(
        "reauthentication-latency", "reauthentication_latency", "time in ms that the renewal of a session took"
    ),
    MetricSpec(
        "successful-authentication-no-reauth-total",
        "authentication_success",
        Sensor.number_of_values,
        "Connections authenticated, in total: Kafka's clients count all of them here too.",
    ),
    *event_meter("network-io", "network_io", "Reads and writes on all connections"),
    *meter("outgoing-byte", "outgoing_bytes", "Bytes written to all connections"),
    *meter("incoming-byte", "incoming_bytes", "Bytes read from all connections"),
    *event_meter("request", "request", "Requests sent"),
    *average_and_maximum("request-size", "request", "size in bytes of a request"),
    *event_meter("response", "response", "Responses received"),
)
"""What Kafka's groups ``producer-metrics`` and ``consumer-metrics`` have in common."""

PRODUCER_METRICS: tuple[MetricSpec, ...] = (
    *meter("record-send", "records_per_request", "Records sent, retries included"),
    average("records-per-request", "records_per_request", "number of records in a produce request"),
    *meter("record-retry", "record_retry", "Records sent again"),
    *meter("record-error", "record_error", "Records that ended in an error"),
    *average_and_maximum("record-size", "record_size", "size in bytes of the largest record of a batch"),
    *average_and_maximum("record-queue-time", "queue_time", "time in ms from a batch's first record to its sending"),
    *average_and_maximum("batch-size", "batch_size", "size in bytes of a sent batch"),
    *event_meter("batch-split", "batch_split", "Batches split because a broker found them too large"),
    average("compression-rate", "compression", "ratio of a batch's compressed to its uncompressed size"),
    *average_and_maximum("request-latency", "request_latency", "time in ms from a produce request to its response"),
    *average_and_maximum("produce-throttle-time", "throttle", "time in ms that a broker throttled a produce request"),
    *event_meter("buffer-exhausted", "buffer_exhausted", "Records rejected because the buffer stayed full"),
    total("bufferpool-wait-time-ns", "buffer_wait", "Nanoseconds that records waited for room in the buffer."),
    MetricSpec(
        "bufferpool-wait-ratio",
        "buffer_wait",
        Sensor.time_ratio,
        "Time that records waited for room, per time: above 1 if several wait at once.",
    ),
    total("flush-time-ns", "flush", "Nanoseconds spent in flush()."),
    total("txn-init-time-ns", "txn_init", "Nanoseconds spent in init_transactions()."),
    total("txn-begin-time-ns", "txn_begin", "Nanoseconds spent in begin_transaction()."),
    total("txn-send-offsets-time-ns", "txn_send_offsets", "Nanoseconds spent in send_offsets_to_transaction()."),
    total("txn-commit-time-ns", "txn_commit", "Nanoseconds spent in commit_transaction()."),
    total("txn-abort-time-ns", "txn_abort", "Nanoseconds spent in abort_transaction()."),
    *CONNECTION_METRICS,
    total("bytes-sent", "batch_size", "Bytes of record batches passed to a transport, retries included."),
    # Smaller pieces are copied because a send by reference costs more; they are not counted.
    total(
        "bytes-copied", "bytes_copied", "Bytes of record batches copied on their way to the network, if 512 or more."
    ),
)
"""Kafka's group ``producer-metrics``. The last two are not Kafka's: their quotient is the number of copies per byte."""

TOPIC_METRICS: tuple[MetricSpec, ...] = (
    *meter("record-send", "records", "Records sent to the topic, retries included"),
    *meter("byte", "bytes", "Bytes of batches sent to the topic, retries included"),
    MetricSpec(
        "compression-rate", "compression", Sensor.average, "The average ratio of compressed to uncompressed batch size."
    ),
    *meter("record-retry", "retries", "Records of the topic sent again"),
    *meter("record-error", "errors", "Records of the topic that ended in an error"),
)
"""Kafka's group ``producer-topic-metrics``."""

NODE_METRICS: tuple[MetricSpec, ...] = (
    *event_meter("request", "request", "Requests sent to the broker"),
    *average_and_maximum("request-size", "request", "size in bytes of a request"),
    *meter("outgoing-byte", "outgoing_bytes", "Bytes written to the broker"),
    *event_meter("response", "response", "Responses received from the broker"),
    *meter("incoming-byte", "incoming_bytes", "Bytes read from the broker"),
    *average_and_maximum("request-latency", "latency", "time in ms from a Produce or Fetch request to its response"),
)
"""Kafka's groups ``producer-node-metrics`` and ``consumer-node-metrics``."""

GAUGES: dict[str, str] = {
    "requests-in-flight": "Requests that wait for a response.",
    "metadata-age": "Seconds since metadata was last received.",
    "waiting-threads": "Sends that wait for room in the buffer (threads in Kafka's client).",
    "buffer-total-bytes": "Size of the buffer in bytes (buffer_memory).",
    "buffer-available-bytes": "Bytes of the buffer that are not in use.",
    "connection-count": "Open connections.",
    "metadata-wait-time-ns-total": "Nanoseconds that sends waited for a topic's metadata.",
}
"""Gauges of the group ``producer-metrics``, by name, with their meaning; `ProducerMetrics.set_gauge` connects each."""

RDMA_GAUGES: dict[str, str] = {
    "rdma-bytes-sent-total": "Bytes of requests written by RDMA.",
    "rdma-bytes-copied-total": "Bytes of requests copied into a registered ring, headers included.",
    "rdma-writes-total": "RDMA writes posted, including those that carry only credits.",
    "rdma-completions-total": "Completions polled, of writes and of receives.",
    "rdma-signals-total": "RDMA writes that requested a completion.",
    "bytes-copied-total": "Over RDMA the same as rdma-bytes-copied-total.",
}
"""Further gauges of the group ``producer-metrics`` if the transport is RDMA; set as those of `GAUGES`."""

_NO_SELECTOR = "a measure of the Java client's select loop; several clients share an event loop"
_NO_TWO_PHASE_COMMITS = "Kafka does not enable two-phase commits"

CONNECTIONS_LEFT_OUT: dict[str, str] = {
    "io-ratio": _NO_SELECTOR,
    "io-time-ns-avg": _NO_SELECTOR,
    "io-time-ns-total": _NO_SELECTOR,
    "io-wait-ratio": _NO_SELECTOR,
    "io-wait-time-ns-avg": _NO_SELECTOR,
    "io-wait-time-ns-total": _NO_SELECTOR,
    "select-rate": _NO_SELECTOR,
    "select-total": _NO_SELECTOR,
}
"""Names of the Java clients' groups that do not exist here, with the reason."""

LEFT_OUT: dict[str, str] = {**CONNECTIONS_LEFT_OUT, "txn-prepare-time-ns-total": _NO_TWO_PHASE_COMMITS}
"""Names of the Java producer's group ``producer-metrics`` that do not exist here, with the reason."""


class MetricsSnapshot(dict[str, float]):
    """All metrics at one moment: ``snapshot["record-send-rate"]`` and so on for the group ``producer-metrics``.

    ``snapshot.topics["clicks"]["record-send-rate"]`` is in the group ``producer-topic-metrics``, by the topic's name.
    ``snapshot.nodes[1]["request-latency-avg"]`` is in the group ``producer-node-metrics``, by the broker's id.
    """

    def __init__(
        self,
        values: dict[str, float],
        topics: dict[str, dict[str, float]],
        nodes: dict[int, dict[str, float]],
    ) -> None:
        super().__init__(values)
        self.topics = topics
        self.nodes = nodes


@cython.no_gc
@cython.cclass
class TopicMetrics:
    """The sensors of one topic."""

    __slots__ = ("bytes", "compression", "errors", "records", "retries")

    def __init__(self, new_sensor: Callable[[], Sensor]) -> None:
        self.records = new_sensor()
        self.bytes = new_sensor()
        self.compression = new_sensor()
        self.retries = new_sensor()
        self.errors = new_sensor()


@cython.no_gc
@cython.cclass
class NodeMetrics:
    """The sensors of one broker."""

    __slots__ = ("incoming_bytes", "latency", "outgoing_bytes", "request", "response")

    def __init__(self, new_sensor: Callable[[], Sensor]) -> None:
        self.request = new_sensor()
        self.outgoing_bytes = new_sensor()
        self.response = new_sensor()
        self.incoming_bytes = new_sensor()
        self.latency = new_sensor()


class ConnectionMetrics:
    """The metrics of a client's connections; ``now`` is always in seconds of the same monotonic clock.

    ``num_samples`` and ``sample_window_ms`` are Kafka's ``metrics.num.samples`` and ``metrics.sample.window.ms``. An
    event that concerns several sensors has a method. One that concerns a single sensor is recorded directly:
    ``metrics.connection_close.record(1, now)``.
    """

    def __init__(self, num_samples: int = 2, sample_window_ms: int = 30_000) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, not {num_samples}")
        if sample_window_ms < 1:
            raise ValueError(f"sample_window_ms must be at least 1, not {sample_window_ms}")
        self._num_samples = num_samples
        self._sample_window = sample_window_ms / 1000
        self._nodes: dict[int, NodeMetrics] = {}
        # How many connections record values of a broker.
        self._node_users: dict[int, int] = {}
        self.connection_creation = self._new_sensor()
        self.connection_close = self._new_sensor()
        self.authentication_success = self._new_sensor()
        self.authentication_failure = self._new_sensor()
        self.reauthentication_success = self._new_sensor()
        self.reauthentication_failure = self._new_sensor()
        self.reauthentication_latency = self._new_sensor()
        self.network_io = self._new_sensor()
        self.outgoing_bytes = self._new_sensor()
        self.incoming_bytes = self._new_sensor()
        self.request = self._new_sensor()
        self.response = self._new_sensor()
        self.bytes_copied = self._new_sensor()

    def _new_sensor(self) -> Sensor:
        return Sensor(self._num_samples, self._sample_window)

    def node(self, node_id: int) -> NodeMetrics:
        """Return the broker's sensors, which the first call creates."""
        sensors = self._nodes.get(node_id)
        if sensors is None:
            sensors = self._nodes[node_id] = NodeMetrics(self._new_sensor)
        return sensors

    def hold_node(self, node_id: int) -> NodeMetrics:
        """Return the broker's sensors for a connection to it; they stay until ``forget_node`` is called as often."""
        self._node_users[node_id] = self._node_users.get(node_id, 0) + 1
        return self.node(node_id)

    def forget_node(self, node_id: int) -> None:
        """Drop the sensors of a broker that left the cluster, or of a bootstrap address, with its last connection."""
        users = self._node_users.pop(node_id, 1) - 1
        if users > 0:
            self._node_users[node_id] = users
        else:
            self._nodes.pop(node_id, None)

    def request_sent(self, node: NodeMetrics, size: int, now: float) -> None:
        """Record that a request of any kind was passed to the transport: ``size`` bytes with its frame."""
        self.request.record(size, now)
        node.request.record(size, now)

    def response_received(self, node: NodeMetrics, size: int, now: float) -> None:
        """Record a response of any kind: ``size`` bytes with its frame."""
        self.response.record(size, now)
        node.response.record(size, now)

    def bytes_written(self, node: NodeMetrics, size: int, now: float) -> None:
        """Record one write of ``size`` bytes to the broker."""
        self.outgoing_bytes.record(size, now)
        self.network_io.record(size, now)
        node.outgoing_bytes.record(size, now)

    def bytes_read(self, node: NodeMetrics, size: int, now: float) -> None:
        """Record one read of ``size`` bytes from the broker."""
        self.incoming_bytes.record(size, now)
        self.network_io.record(size, now)
        node.incoming_bytes.record(size, now)

    def measure_nodes(self, now: float) -> dict[int, dict[str, float]]:
        """Return the values of every broker at ``now``, by its id."""
        return {node_id: measure(NODE_METRICS, sensors, now) for node_id, sensors in self._nodes.items()}


class ProducerMetrics(ConnectionMetrics):
    """All metrics of one producer."""

    def __init__(self, num_samples: int = 2, sample_window_ms: int = 30_000) -> None:
        super().__init__(num_samples, sample_window_ms)
        self._gauges: dict[str, GaugeFunction] = {}
        self._topics: dict[str, TopicMetrics] = {}
        self.totals = Totals()
        self.records_per_request = self._new_sensor()
        self.record_retry = self._new_sensor()
        self.record_error = self._new_sensor()
        self.record_size = self._new_sensor()
        self.queue_time = self._new_sensor()
        self.batch_size = self._new_sensor()
        self.batch_split = self._new_sensor()
        self.compression = self._new_sensor()
        self.request_latency = self._new_sensor()
        self.throttle = self._new_sensor()
        self.buffer_exhausted = self._new_sensor()
        self.buffer_wait = self._new_sensor()
        self.flush = self._new_sensor()
        self.txn_init = self._new_sensor()
        self.txn_begin = self._new_sensor()
        self.txn_send_offsets = self._new_sensor()
        self.txn_commit = self._new_sensor()
        self.txn_abort = self._new_sensor()

    def topic(self, name: str) -> TopicMetrics:
        """Return the topic's sensors, which the first call creates."""
        sensors = self._topics.get(name)
        if sensors is None:
            sensors = self._topics[name] = TopicMetrics(self._new_sensor)
        return sensors

    def forget_topic(self, name: str) -> None:
        """Drop the sensors of a topic that is no longer in use; if it is used again they start at 0."""
        self._topics.pop(name, None)

    def set_gauge(self, name: str, function: GaugeFunction) -> None:
        """Set the function that reads a gauge of `GAUGES` or `RDMA_GAUGES`; the snapshot omits gauges without one.

        Raises:
            KeyError: there is no such gauge.
        """
        if name not in GAUGES and name not in RDMA_GAUGES:
            raise KeyError(f"unknown gauge {name!r}: use one of {', '.join([*GAUGES, *RDMA_GAUGES])}")
        self._gauges[name] = function

    def batch_sent(
        self,
        topic: str,
        records: int,
        size: int,
        compression_ratio: float,
        queue_time_ms: float,
        max_record_size: int,
        attempt: int,
        now: float,
    ) -> None:
        """Record that a batch went into a produce request, for the first time (``attempt`` 1) or again.

        ``size`` is the size on the wire, with header and after compression. ``compression_ratio`` is the compressed
        size divided by the uncompressed one, 1.0 without compression. ``queue_time_ms`` starts at the batch's creation.
        """
        if attempt == 1:
            self.totals.batches += 1
            self.totals.records += records
        self.batch_size.record(size, now)
        self.queue_time.record(queue_time_ms, now)
        self.compression.record(compression_ratio, now)
        self.record_size.record(max_record_size, now)
        of_topic = self.topic(topic)
        of_topic.records.record(records, now)
        of_topic.bytes.record(size, now)
        of_topic.compression.record(compression_ratio, now)

    def batch_acked(self, records: int, latency_ms: float) -> None:
        """Record that a batch was acknowledged, ``latency_ms`` after its first record."""
        totals = self.totals
        totals.acked_batches += 1
        totals.acked_records += records
        totals.latency_sum_ms += latency_ms
        if latency_ms > totals.latency_max_ms:
            totals.latency_max_ms = latency_ms

    def request_filled(self, records: int, now: float) -> None:
        """Record the number of records in a produce request, over all its batches."""
        self.records_per_request.record(records, now)

    def records_retried(self, topic: str, records: int, now: float) -> None:
        """Record that a batch returns to its queue after a retriable error."""
        self.record_retry.record(records, now)
        self.topic(topic).retries.record(records, now)

    def records_failed(self, topic: str, records: int, now: float) -> None:
        """Record that records failed."""
        self.record_error.record(records, now)
        self.topic(topic).errors.record(records, now)

    def send_raised(self, error: KafkaError, now: float) -> None:
        """Record that ``send`` raised ``error``; no topic counts the record, as in ``KafkaProducer.doSend``."""
        self.record_error.record(1, now)
        if isinstance(error, BufferExhaustedError):
            self.buffer_exhausted.record(1, now)

    def produce_response(self, node: NodeMetrics, latency_ms: float, throttle_time_ms: float, now: float) -> None:
        """Record a produce response; ``throttle_time_ms`` is the value in the response, also if it is 0."""
        self.request_latency.record(latency_ms, now)
        self.throttle.record(throttle_time_ms, now)
        node.latency.record(latency_ms, now)

    def snapshot(self, now: float) -> MetricsSnapshot:
        """Return the value of every metric at ``now``."""
        values = measure(PRODUCER_METRICS, self, now)
        for name, gauge in self._gauges.items():
            values[name] = float(gauge(now))
        topics = {name: measure(TOPIC_METRICS, sensors, now) for name, sensors in self._topics.items()}
        return MetricsSnapshot(values, topics, self.measure_nodes(now))


def measure(
    specs: tuple[MetricSpec, ...], sensors: ConnectionMetrics | TopicMetrics | NodeMetrics, now: float
) -> dict[str, float]:
    """Return the value of every metric of ``specs`` at ``now``, by its name."""
    return {spec.name: spec.measure(getattr(sensors, spec.sensor), now) for spec in specs}
