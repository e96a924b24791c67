"""Metrics: Kafka's statistics, Kafka's names, and what is recorded where."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.metrics import (
    GAUGES,
    LEFT_OUT,
    NODE_METRICS,
    PRODUCER_METRICS,
    TOPIC_METRICS,
    MetricSpec,
    MetricsSnapshot,
    ProducerMetrics,
    Sensor,
)
from tests.kafka.java import run_java

OURS = {"bytes-sent-total", "bytes-copied-total"}


class TestSensor:
    def test_without_values_rates_are_zero_and_the_others_nan(self) -> None:
        sensor = Sensor(2, 30.0)
        assert (sensor.rate(5.0), sensor.event_rate(5.0), sensor.total, sensor.total_events) == (0.0, 0.0, 0.0, 0)
        assert math.isnan(sensor.average(5.0))
        assert math.isnan(sensor.maximum(5.0))

    def test_values_are_summed_averaged_and_compared(self) -> None:
        sensor = Sensor(2, 30.0)
        for value in (4.0, 10.0, 1.0):
            sensor.record(value, 100.0)
        assert (sensor.average(101.0), sensor.maximum(101.0), sensor.total, sensor.total_events) == (5.0, 10.0, 15.0, 3)

    def test_negative_values_have_a_maximum_too(self) -> None:
        sensor = Sensor(2, 30.0)
        sensor.record(-3.0, 1.0)
        assert sensor.maximum(1.0) == -3.0

    def test_a_rate_counts_at_least_the_windows_before_the_current_one(self) -> None:
        """Kafka's Rate: 60 values in the first second of two windows of 30 s are 60 in 31 s, not 60 a second."""
        sensor = Sensor(2, 30.0)
        for _ in range(60):
            sensor.record(2.0, 100.0)
        assert sensor.event_rate(101.0) == 60 / 31
        assert sensor.rate(101.0) == 120 / 31
        assert sensor.event_rate(130.0) == 60 / 30

    def test_a_single_window_of_zero_length_does_not_divide_by_zero(self) -> None:
        sensor = Sensor(1, 30.0)
        sensor.record(1.0, 100.0)
        assert sensor.rate(100.0) == 1000.0

    def test_old_values_are_forgotten_but_stay_in_the_total(self) -> None:
        sensor = Sensor(2, 30.0)
        sensor.record(9.0, 0.0)
        sensor.record(1.0, 59.0)
        assert sensor.maximum(59.0) == 9.0
        assert sensor.maximum(60.0) == 1.0
        assert sensor.maximum(118.0) == 1.0
        assert math.isnan(sensor.maximum(119.0))
        assert (sensor.rate(119.0), sensor.total) == (0.0, 10.0)

    def test_nanoseconds_are_converted_to_a_ratio_of_the_time(self) -> None:
        sensor = Sensor(2, 10.0)
        sensor.record(5e9, 0.0)
        assert sensor.time_ratio(10.0) == 0.5

    @given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 1000)), min_size=1), st.floats(0, 50))
    def test_exactly_the_recent_values_count(self, events: list[tuple[float, int]], later: float) -> None:
        """Compared with a list of all events: values in the last windows count, and none older than one more."""
        sensor = Sensor(2, 5.0)
        now = 0.0
        history: list[tuple[float, int]] = []
        for pause, value in events:
            now += pause
            sensor.record(value, now)
            history.append((now, value))
        now += later
        must = [value for time, value in history if time > now - 10.0]
        may = [value for time, value in history if time > now - 15.0 - 1e-9]
        assert sensor.total == sum(value for _, value in history)
        if must:
            assert max(must) <= sensor.maximum(now) <= max(may)
        elif not may:
            assert math.isnan(sensor.maximum(now))
        assert sum(must) / 20.0 <= sensor.rate(now) * 1.01


class TestTables:
    @pytest.mark.parametrize("specs", [PRODUCER_METRICS, TOPIC_METRICS, NODE_METRICS])
    def test_names_are_unique_and_described(self, specs: tuple[MetricSpec, ...]) -> None:
        names = [spec.name for spec in specs]
        assert len(set(names)) == len(names)
        assert not set(names) & set(GAUGES)
        assert all(spec.description.endswith(".") for spec in specs)

    def test_left_out_metrics_do_not_exist(self) -> None:
        assert not set(LEFT_OUT) & {spec.name for spec in PRODUCER_METRICS}

    def test_every_sensor_of_a_group_is_read_by_some_metric(self) -> None:
        metrics = ProducerMetrics()
        sensors = {name for name in dir(metrics) if isinstance(getattr(metrics, name), Sensor)}
        assert sensors == {spec.sensor for spec in PRODUCER_METRICS}
        assert set(metrics.topic("t").__slots__) == {spec.sensor for spec in TOPIC_METRICS}
        assert set(metrics.node(1).__slots__) == {spec.sensor for spec in NODE_METRICS}


def changed(metrics: ProducerMetrics, before: MetricsSnapshot, now: float) -> dict[str, float]:
    after = metrics.snapshot(now)
    return {name: value for name, value in after.items() if not (math.isnan(value) or value == before[name])}


class TestMetrics:
    def test_a_batch_counts_for_the_producer_and_its_topic(self) -> None:
        metrics = ProducerMetrics()
        metrics.batch_sent("clicks", 10, 600, 0.5, 4.0, 120, 1, 10.0)
        metrics.batch_sent("clicks", 30, 1000, 1.0, 8.0, 80, 1, 10.0)
        metrics.batch_sent("views", 1, 100, 1.0, 0.0, 40, 1, 10.0)
        metrics.records_per_request.record(41, 10.0)
        snapshot = metrics.snapshot(40.0)
        expected = {
            "record-send-total": 41,
            "record-send-rate": 41 / 30,
            "records-per-request-avg": 41,
            "record-size-avg": 80,
            "record-size-max": 120,
            "record-queue-time-avg": 4,
            "record-queue-time-max": 8,
            "batch-size-avg": 1700 / 3,
            "batch-size-max": 1000,
            "compression-rate-avg": 2.5 / 3,
            "bytes-sent-total": 1700,
        }
        assert {name: snapshot[name] for name in expected} == pytest.approx(expected)
        assert snapshot.topics["clicks"] == pytest.approx(
            {
                "record-send-rate": 40 / 30,
                "record-send-total": 40,
                "byte-rate": 1600 / 30,
                "byte-total": 1600,
                "compression-rate": 0.75,
                "record-retry-rate": 0,
                "record-retry-total": 0,
                "record-error-rate": 0,
                "record-error-total": 0,
            }
        )
        assert snapshot.topics["views"]["byte-total"] == 100

    def test_retries_and_errors_count_records(self) -> None:
        metrics = ProducerMetrics()
        before = metrics.snapshot(0.0)
        metrics.records_retried("clicks", 10, 0.0)
        metrics.records_failed("clicks", 3, 0.0)
        metrics.batch_split.record(1, 0.0)
        assert changed(metrics, before, 30.0) == {
            "record-retry-rate": 10 / 30,
            "record-retry-total": 10,
            "record-error-rate": 3 / 30,
            "record-error-total": 3,
            "batch-split-rate": 1 / 30,
            "batch-split-total": 1,
        }
        topic = metrics.snapshot(30.0).topics["clicks"]
        assert (topic["record-retry-total"], topic["record-error-total"]) == (10, 3)

    def test_a_request_and_its_response_count_for_the_producer_and_the_broker(self) -> None:
        metrics = ProducerMetrics()
        before = metrics.snapshot(0.0)
        metrics.request_sent(metrics.node(1), 500, 0.0)
        metrics.bytes_written(metrics.node(1), 300, 0.0)
        metrics.bytes_written(metrics.node(1), 200, 0.0)
        metrics.bytes_read(metrics.node(1), 60, 0.0)
        metrics.response_received(metrics.node(1), 60, 0.0)
        metrics.produce_response(metrics.node(1), 12.0, 3.0, 0.0)
        assert changed(metrics, before, 30.0) == {
            "request-rate": 1 / 30,
            "request-total": 1,
            "request-size-avg": 500,
            "request-size-max": 500,
            "response-rate": 1 / 30,
            "response-total": 1,
            "network-io-rate": 3 / 30,
            "network-io-total": 3,
            "outgoing-byte-rate": 500 / 30,
            "outgoing-byte-total": 500,
            "incoming-byte-rate": 60 / 30,
            "incoming-byte-total": 60,
            "request-latency-avg": 12,
            "request-latency-max": 12,
            "produce-throttle-time-avg": 3,
            "produce-throttle-time-max": 3,
        }
        assert metrics.snapshot(30.0).nodes == {
            1: {
                "request-rate": 1 / 30,
                "request-total": 1,
                "request-size-avg": 500,
                "request-size-max": 500,
                "outgoing-byte-rate": 500 / 30,
                "outgoing-byte-total": 500,
                "response-rate": 1 / 30,
                "response-total": 1,
                "incoming-byte-rate": 2,
                "incoming-byte-total": 60,
                "request-latency-avg": 12,
                "request-latency-max": 12,
            }
        }

    def test_waits_are_nanoseconds(self) -> None:
        metrics = ProducerMetrics()
        before = metrics.snapshot(0.0)
        metrics.buffer_wait.record(3_000_000_000, 0.0)
        metrics.flush.record(5_000, 0.0)
        metrics.bytes_copied.record(11, 0.0)
        assert changed(metrics, before, 30.0) == {
            "bufferpool-wait-time-ns-total": 3_000_000_000,
            "bufferpool-wait-ratio": 0.1,
            "flush-time-ns-total": 5_000,
            "bytes-copied-total": 11,
        }

    @pytest.mark.parametrize(
        ("sensor", "name"),
        [
            ("buffer_exhausted", "buffer-exhausted"),
            ("connection_creation", "connection-creation"),
            ("connection_close", "connection-close"),
            ("authentication_success", "successful-authentication"),
            ("authentication_failure", "failed-authentication"),
            ("reauthentication_success", "successful-reauthentication"),
            ("reauthentication_failure", "failed-reauthentication"),
        ],
    )
    def test_events_are_counted(self, sensor: str, name: str) -> None:
        metrics = ProducerMetrics()
        before = metrics.snapshot(0.0)
        for _ in range(3):
            getattr(metrics, sensor).record(1, 0.0)
        expected = {f"{name}-rate": 0.1, f"{name}-total": 3}
        if sensor == "authentication_success":
            # Kafka's clients count every authentication here as well.
            expected["successful-authentication-no-reauth-total"] = 3
        assert changed(metrics, before, 30.0) == expected

    def test_gauges_are_read_by_each_snapshot(self) -> None:
        metrics = ProducerMetrics()
        assert "metadata-age" not in metrics.snapshot(5.0)
        metrics.set_gauge("metadata-age", lambda now: now - 3)
        assert metrics.snapshot(5.0)["metadata-age"] == 2.0
        assert metrics.snapshot(6.0)["metadata-age"] == 3.0

    def test_an_unknown_gauge_is_rejected(self) -> None:
        with pytest.raises(KeyError, match="unknown gauge 'record-age': use one of requests-in-flight, metadata-age"):
            ProducerMetrics().set_gauge("record-age", lambda now: 0.0)

    def test_idle_topics_and_brokers_are_forgotten(self) -> None:
        metrics = ProducerMetrics()
        metrics.batch_sent("clicks", 10, 600, 1.0, 4.0, 120, 1, 0.0)
        metrics.bytes_written(metrics.node(1), 600, 0.0)
        metrics.forget_topic("clicks")
        metrics.forget_topic("never seen")
        metrics.forget_node(1)
        metrics.forget_node(2)
        snapshot = metrics.snapshot(0.0)
        assert (snapshot.topics, snapshot.nodes) == ({}, {})
        assert snapshot["batch-size-max"] == 600

    def test_a_snapshot_is_a_dict_of_floats_that_does_not_change(self) -> None:
        metrics = ProducerMetrics()
        metrics.batch_sent("clicks", 10, 600, 1.0, 4.0, 120, 1, 0.0)
        snapshot = metrics.snapshot(0.0)
        metrics.batch_sent("clicks", 10, 600, 1.0, 4.0, 120, 1, 0.0)
        assert snapshot["bytes-sent-total"] == 600
        assert {type(value) for value in snapshot.values()} == {float}
        copied = pickle.loads(pickle.dumps(snapshot))
        assert (copied.topics, copied.nodes) == (snapshot.topics, snapshot.nodes)

    def test_windows_use_the_configured_count_and_length(self) -> None:
        metrics = ProducerMetrics(num_samples=3, sample_window_ms=1000)
        metrics.flush.record(1, 0.0)
        metrics.request_latency.record(5, 0.0)
        assert metrics.snapshot(2.5)["request-latency-max"] == 5
        assert math.isnan(metrics.snapshot(3.0)["request-latency-max"])

    @pytest.mark.parametrize(("num_samples", "sample_window_ms"), [(0, 1000), (1, 0)])
    def test_window_count_and_length_must_be_at_least_one(self, num_samples: int, sample_window_ms: int) -> None:
        with pytest.raises(ValueError, match="must be at least 1, not 0"):
            ProducerMetrics(num_samples, sample_window_ms)

    @pytest.mark.parametrize("count", [1, 60, 500])
    def test_an_event_of_several_sensors_counts_in_each(self, count: int) -> None:
        """There is one value every 0.5 s, over several windows of 30 s."""
        metrics = ProducerMetrics()
        sizes, latency, ratio = Sensor(2, 30.0), Sensor(2, 30.0), Sensor(2, 30.0)
        for number in range(count):
            now = number / 2
            metrics.request_sent(metrics.node(number % 2), number, now)
            metrics.bytes_written(metrics.node(number % 2), number, now)
            metrics.bytes_read(metrics.node(number % 2), 10, now)
            metrics.response_received(metrics.node(number % 2), number, now)
            metrics.produce_response(metrics.node(1), number, 0.0, now)
            metrics.batch_sent("clicks", 2, number, number / 10, 1.0, 50, 1, now)
            metrics.request_filled(2, now)
            sizes.record(number, now)
            latency.record(number, now)
            ratio.record(number / 10, now)
        snapshot = metrics.snapshot(now)
        expected = {
            "request-total": count,
            "request-size-avg": sizes.average(now),
            "request-size-max": sizes.maximum(now),
            "request-rate": sizes.event_rate(now),
            "response-total": count,
            "network-io-total": 2 * count,
            "network-io-rate": 2 * sizes.event_rate(now),
            "outgoing-byte-rate": sizes.rate(now),
            "incoming-byte-total": 10 * count,
            "request-latency-max": latency.maximum(now),
            "compression-rate-avg": ratio.average(now),
            "record-send-total": 2 * count,
        }
        assert {name: snapshot[name] for name in expected} == pytest.approx(expected)
        assert snapshot.topics["clicks"]["byte-rate"] == pytest.approx(sizes.rate(now))
        assert snapshot.nodes[0]["request-total"] == (count + 1) // 2
        assert metrics.snapshot(now) == snapshot

    def test_values_of_a_forgotten_topic_or_broker_stay_in_the_total(self) -> None:
        metrics = ProducerMetrics()
        metrics.batch_sent("clicks", 2, 100, 1.0, 1.0, 50, 1, 0.0)
        metrics.request_sent(metrics.node(1), 100, 0.0)
        metrics.forget_topic("clicks")
        metrics.forget_node(1)
        snapshot = metrics.snapshot(1.0)
        assert (snapshot.topics, snapshot.nodes) == ({}, {})
        assert (snapshot["request-total"], snapshot["bytes-sent-total"]) == (1, 100)


JAVA_NAMES = """
import java.net.*;
import java.util.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.clients.producer.internals.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.metrics.*;
import org.apache.kafka.common.serialization.*;

public class Names {
    static boolean connected(KafkaProducer<byte[], byte[]> producer) {
        return producer.metrics().keySet().stream().anyMatch(
            name -> name.group().equals("producer-node-metrics") && name.name().equals("request-latency-max"));
    }

    public static void main(String[] args) throws Exception {
        ServerSocket silent = new ServerSocket(0, 10, InetAddress.getLoopbackAddress());
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", "127.0.0.1:" + silent.getLocalPort());
        config.put("metrics.recording.level", "TRACE");
        Serializer<byte[]> bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, bytes, bytes);
        long end = System.nanoTime() + 20_000_000_000L;
        while (!connected(producer) && System.nanoTime() < end) Thread.yield();
        for (MetricName name : producer.metrics().keySet()) System.out.println(name.group() + " " + name.name());
        for (MetricNameTemplate name : new SenderMetricsRegistry(new Metrics()).allTemplates())
            System.out.println(name.group() + " " + name.name());
        System.exit(0);
    }
}
"""

JAVA_STATISTICS = """
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.*;
import org.apache.kafka.common.metrics.stats.*;

public class Statistics {
    public static void main(String[] args) {
        int samples = Integer.parseInt(args[0]);
        MetricConfig config = new MetricConfig().samples(samples).timeWindow(1000, TimeUnit.MILLISECONDS);
        Scanner in = new Scanner(System.in).useLocale(Locale.ROOT);
        while (in.hasNextInt()) {
            List<MeasurableStat> stats = List.of(new Rate(), new Rate(new WindowedCount()), new Avg(), new Max());
            int events = in.nextInt();
            for (int i = 0; i < events; i++) {
                long time = in.nextLong();
                double value = in.nextDouble();
                for (MeasurableStat stat : stats) stat.record(config, value, time);
            }
            long now = in.nextLong();
            StringBuilder line = new StringBuilder();
            for (MeasurableStat stat : stats) line.append(stat.measure(config, now)).append(' ');
            System.out.println(line);
        }
    }
}
"""


@pytest.mark.interop
def test_names_equal_those_of_the_java_producer(kafka_jars: Path, tmp_path: Path) -> None:
    groups: dict[str, set[str]] = {}
    for line in run_java(kafka_jars, tmp_path, "Names", JAVA_NAMES).splitlines():
        group, _, name = line.partition(" ")
        groups.setdefault(group, set()).add(name)
    ours = {spec.name for spec in PRODUCER_METRICS} | set(GAUGES)
    assert groups["producer-metrics"] - ours == set(LEFT_OUT)
    assert ours - groups["producer-metrics"] == OURS
    assert {spec.name for spec in TOPIC_METRICS} == groups["producer-topic-metrics"]
    assert {spec.name for spec in NODE_METRICS} == groups["producer-node-metrics"]


@pytest.mark.interop
@pytest.mark.parametrize("num_samples", [1, 2, 3])
def test_statistics_equal_those_of_the_java_client(kafka_jars: Path, tmp_path: Path, num_samples: int) -> None:
    random = Random(num_samples)
    lines: list[str] = []
    expected: list[tuple[float, ...]] = []
    for _ in range(200):
        sensor = Sensor(num_samples, 1.0)
        now_ms = random.randrange(0, 5000, 125)
        events: list[str] = []
        for _ in range(random.randrange(12)):
            now_ms += random.choice([0, 125, 125, 500, 1000, 1250, 4000])
            value = random.randrange(-100, 1000)
            sensor.record(value, now_ms / 1000)
            events.append(f"{now_ms} {value}")
        now_ms += random.choice([0, 125, 875, 1000, 2000, 3000, 4000])
        lines.append(f"{len(events)} {' '.join(events)} {now_ms}")
        now = now_ms / 1000
        expected.append((sensor.rate(now), sensor.event_rate(now), sensor.average(now), sensor.maximum(now)))
    output = run_java(kafka_jars, tmp_path, "Statistics", JAVA_STATISTICS, str(num_samples), stdin="\n".join(lines))
    java = [tuple(float(number) for number in line.split()) for line in output.splitlines()]
    assert len(java) == len(expected)
    for line, theirs, ours in zip(lines, java, expected, strict=True):
        assert ours == pytest.approx(theirs, nan_ok=True), line


def test_totals_count_a_retried_batch_once() -> None:
    metrics = ProducerMetrics(2, 30_000)
    metrics.batch_sent("clicks", 10, 600, 1.0, 4.0, 120, 1, 0.0)
    metrics.batch_sent("clicks", 10, 600, 1.0, 4.0, 120, 2, 1.0)
    metrics.batch_sent("views", 5, 300, 1.0, 4.0, 120, 1, 1.0)
    metrics.batch_acked(5, 2.5)
    metrics.batch_acked(10, 1.5)
    totals = metrics.totals
    assert (totals.batches, totals.records) == (2, 15)
    assert (totals.acked_batches, totals.acked_records) == (2, 15)
    assert (totals.latency_sum_ms, totals.latency_max_ms) == (4.0, 2.5)
    totals.latency_max_ms = 0.0
    metrics.batch_acked(1, 1.0)
    assert totals.latency_max_ms == 1.0
