"""The consumer's metrics: Kafka's names, and what is recorded where."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.consumer_metrics import (
    CONSUMER_GAUGES,
    CONSUMER_LEFT_OUT,
    CONSUMER_METRICS,
    PARTITION_GAUGES,
    ConsumerMetrics,
    ConsumerMetricsSnapshot,
)
from aioproducer.errors import MemberIdRequiredError
from aioproducer.metrics import NODE_METRICS, Sensor
from aioproducer.protocol import ApiKey
from tests.kafka.java import run_java


def snapshot(metrics: ConsumerMetrics, now: float) -> ConsumerMetricsSnapshot:
    return metrics.snapshot({}, {}, now)


def changed(metrics: ConsumerMetrics, now: float) -> dict[str, float]:
    """Return the metrics that are not as at the beginning."""
    before = snapshot(ConsumerMetrics(), now)
    return {
        name: value
        for name, value in snapshot(metrics, now).items()
        if not (math.isnan(value) or value == before[name] or name.endswith(("-rate", "-per-hour")))
    }


def test_names_are_unique_and_described() -> None:
    names = [spec.name for spec in CONSUMER_METRICS]
    assert len(set(names)) == len(names)
    assert not set(names) & (set(CONSUMER_GAUGES) | set(CONSUMER_LEFT_OUT))
    assert all(spec.description.endswith(".") for spec in CONSUMER_METRICS)


def test_every_sensor_is_read_by_some_metric() -> None:
    metrics = ConsumerMetrics()
    sensors = {name for name in dir(metrics) if isinstance(getattr(metrics, name), Sensor)}
    # Of record batches that are sent.
    assert sensors - {"bytes_copied"} == {spec.sensor for spec in CONSUMER_METRICS}


def test_a_fetch_counts_for_the_consumer_and_the_broker() -> None:
    metrics = ConsumerMetrics()
    metrics.fetched(metrics.hold_node(3), 1000, 7.0, began=1.0, now=1.25)
    assert changed(metrics, 2.0) == {
        "bytes-consumed-total": 1000,
        "fetch-total": 1,
        "fetch-latency-avg": 250,
        "fetch-latency-max": 250,
        "fetch-size-avg": 1000,
        "fetch-size-max": 1000,
        "fetch-throttle-time-avg": 7,
        "fetch-throttle-time-max": 7,
    }
    assert snapshot(metrics, 2.0).nodes[3]["request-latency-max"] == 250
    metrics.fetched(None, 1000, 7.0, began=1.0, now=1.25)
    assert snapshot(metrics, 2.0)["fetch-total"] == 2
    assert snapshot(metrics, 2.0).nodes.keys() == {3}


@given(
    calls=st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 500)), max_size=10),
    samples=st.integers(1, 3),
)
def test_records_that_were_returned_are_counted_exactly(calls: list[tuple[int, float]], samples: int) -> None:
    metrics, now, total = ConsumerMetrics(samples, 30_000), 100.0, 0
    for count, pause in calls:
        now += pause
        total += count
        metrics.records_returned(count, now - pause, now)
        assert snapshot(metrics, now)["records-consumed-total"] == total


@pytest.mark.parametrize("pause", [1.0, 10.0, 50.0, 100.0, 300.0])
def test_records_between_two_readings_count_as_if_returned_evenly(pause: float) -> None:
    """An iteration counts its records when it needs others, or the metrics are read: 20 records a second."""
    metrics, now = ConsumerMetrics(2, 30_000), 0.0
    while now < 1000:
        now += pause
        metrics.records_returned(int(20 * pause), now - pause, now)
    assert snapshot(metrics, now)["records-consumed-rate"] == pytest.approx(20, rel=0.35)


@pytest.mark.parametrize(
    ("api_key", "names"),
    [
        (ApiKey.OFFSET_COMMIT, {"commit-total": 1, "commit-latency-avg": 500, "commit-latency-max": 500}),
        (ApiKey.HEARTBEAT, {"heartbeat-total": 1, "heartbeat-response-time-max": 500}),
        (ApiKey.JOIN_GROUP, {"join-total": 1, "join-time-avg": 500, "join-time-max": 500}),
        (ApiKey.SYNC_GROUP, {"sync-total": 1, "sync-time-avg": 500, "sync-time-max": 500}),
        (ApiKey.OFFSET_FETCH, {}),
    ],
)
def test_requests_of_the_member_are_timed(api_key: ApiKey, names: dict[str, float]) -> None:
    metrics = ConsumerMetrics()
    metrics.group_answered(api_key, 0, began=1.0, now=1.5)
    assert changed(metrics, 2.0) == names


@pytest.mark.parametrize("api_key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
def test_refused_requests_to_join_are_not_timed(api_key: ApiKey) -> None:
    metrics = ConsumerMetrics()
    metrics.group_answered(api_key, MemberIdRequiredError.code, began=1.0, now=1.5)
    assert changed(metrics, 2.0) == {}


def test_a_brokers_metrics_stay_until_its_last_connection_is_forgotten() -> None:
    metrics = ConsumerMetrics()
    for _ in range(2):
        metrics.request_sent(metrics.hold_node(1), 10, 0.0)
    metrics.forget_node(1)
    assert snapshot(metrics, 1.0).nodes[1]["request-total"] == 2
    metrics.forget_node(1)
    assert snapshot(metrics, 1.0).nodes == {}


def test_a_rebalance_lasts_from_the_first_join_to_the_assignment() -> None:
    metrics = ConsumerMetrics()
    metrics.rebalance_begins(1.0)
    metrics.rebalance_begins(2.0)
    metrics.rebalance_ended(3.0, has_assignment=True)
    metrics.rebalance_ended(4.0, has_assignment=True)
    metrics.rebalance_begins(5.0)
    metrics.rebalance_ended(6.0, has_assignment=False)
    metrics.rebalance_ended(7.0, has_assignment=False)
    assert changed(metrics, 8.0) == {
        "rebalance-total": 1,
        "rebalance-latency-avg": 2000,
        "rebalance-latency-max": 2000,
        "rebalance-latency-total": 2000,
        "failed-rebalance-total": 1,
    }
    assert metrics.rebalanced_at == 3.0


def test_rates_of_rebalances_are_per_hour() -> None:
    metrics = ConsumerMetrics(2, 30_000)
    metrics.rebalance_begins(0.0)
    metrics.rebalance_ended(0.0, has_assignment=True)
    # Windows that have not begun count as whole ones: 30 s at first.
    assert snapshot(metrics, 0.0)["rebalance-rate-per-hour"] == pytest.approx(120)
    assert snapshot(metrics, 59.0)["rebalance-rate-per-hour"] == pytest.approx(3600 / 59)


JAVA_NAMES = """
import java.net.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.internals.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

public class Names {
    static boolean connected(KafkaConsumer<byte[], byte[]> consumer) {
        return consumer.metrics().keySet().stream().anyMatch(
            name -> name.group().equals("consumer-node-metrics") && name.name().equals("request-latency-max"));
    }

    public static void main(String[] args) throws Exception {
        ServerSocket silent = new ServerSocket(0, 10, InetAddress.getLoopbackAddress());
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", "127.0.0.1:" + silent.getLocalPort());
        config.put("group.id", "g");
        config.put("metrics.recording.level", "TRACE");
        Deserializer<byte[]> bytes = new ByteArrayDeserializer();
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes);
        consumer.subscribe(List.of("a"));
        long end = System.nanoTime() + 20_000_000_000L;
        while (!connected(consumer) && System.nanoTime() < end) consumer.poll(Duration.ofMillis(50));
        for (MetricName name : consumer.metrics().keySet()) System.out.println(name.group() + " " + name.name());
        FetchMetricsRegistry fetches = new FetchMetricsRegistry();
        for (MetricNameTemplate name : fetches.getAllTemplates())
            System.out.println((name.tags().contains("partition") ? "partition " : "all ") + name.name());
        System.exit(0);
    }
}
"""


@pytest.mark.interop
def test_names_equal_those_of_the_java_consumer(kafka_jars: Path, tmp_path: Path) -> None:
    groups: dict[str, set[str]] = {}
    for line in run_java(kafka_jars, tmp_path, "Names", JAVA_NAMES).splitlines():
        group, _, name = line.partition(" ")
        groups.setdefault(group, set()).add(name)
    theirs = set().union(*(groups[name] for name in ("consumer-metrics", "consumer-coordinator-metrics", "all")))
    ours = {spec.name for spec in CONSUMER_METRICS} | set(CONSUMER_GAUGES)
    of_partitions = groups["partition"]
    # Both groups have the names of the consumer's largest lag and smallest lead.
    assert (theirs | of_partitions) - (ours | set(PARTITION_GAUGES)) == set(CONSUMER_LEFT_OUT)
    assert ours <= theirs
    assert set(PARTITION_GAUGES) <= of_partitions
    assert {spec.name for spec in NODE_METRICS} == groups["consumer-node-metrics"]
