"""Hooks and metrics: each event is reported once, with the right values, in order."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.errors import BufferExhaustedError, KafkaError, ProducerClosedError, SerializationError
from aioproducer.protocol import ApiKey
from aioproducer.record import Node, TopicPartition
from tests.io.recording import Recording
from tests.simulation import Fault, run

NOT_ENOUGH_REPLICAS = 19
INVALID_RECORD = 87
CLICKS = TopicPartition("clicks", 0)


@pytest.mark.parametrize("send_buffer_bytes", [0, 100_000])
@pytest.mark.parametrize("acks", ["all", "0"])
def test_hooks_report_the_events_of_a_record_in_order(acks, send_buffer_bytes):
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(hooks,), acks=acks) as producer:
            await producer.send("clicks", b"value")
        return hooks

    hooks, _ = run(scenario, nodes=1, send_buffer_bytes=send_buffer_bytes)
    answer = ["on_response_read"] if acks == "all" else []
    assert [event.hook for event in hooks.events if _concerns_the_record(event)] == [
        "on_connect",
        "on_ready",
        "on_request_written",
        "on_batch_sent",
        *answer,
        "on_batch_acked",
        "on_disconnect",
    ]


def _concerns_the_record(event):
    """Return whether an event of a hook is about its batch, its request or its leader's connection."""
    subject, *rest = event.arguments
    if event.hook in ("on_request_written", "on_response_read"):
        return rest[0] == ApiKey.PRODUCE
    return subject == CLICKS or (isinstance(subject, Node) and subject.id == 1)


def test_hooks_report_what_happened():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=0.25))
        async with world.producer(hooks=(hooks,), linger_ms=40, acks="all") as producer:
            await producer.partitions_for("clicks")
            await asyncio.gather(*(producer.send("clicks", bytes(100)) for _ in range(3)))
        return hooks

    hooks, world = run(scenario, nodes=1)
    [(topic_partition, records, size, uncompressed_size, queue_time_ms, attempt)] = hooks.of("on_batch_sent")
    [sent_size] = world.cluster.partition("clicks").batch_sizes
    assert (topic_partition, records, size, uncompressed_size, attempt) == (CLICKS, 3, sent_size, sent_size, 1)
    assert 40 <= queue_time_ms <= 41
    [(topic_partition, records, base_offset, latency_ms)] = hooks.of("on_batch_acked")
    assert (topic_partition, records, base_offset) == (CLICKS, 3, 0)
    assert 290 <= latency_ms <= 291

    written = [(node.id, key, version, number) for node, key, version, number, _ in hooks.of("on_request_written")]
    read = [(node.id, key, version, number) for node, key, version, number, _, _ in hooks.of("on_response_read")]
    got = [(event.api, event.version, event.correlation_id) for event in world.events()]
    assert written == read
    # Requests of the handshake are reported by on_ready.
    assert [each[1:] for each in written] == [each for each in got if each[0] != ApiKey.API_VERSIONS]
    [latency] = [latency_ms for _, key, _, _, _, latency_ms in hooks.of("on_response_read") if key == ApiKey.PRODUCE]
    assert 250 <= latency <= 251
    assert len(hooks.of("on_connect")) == len(hooks.of("on_ready")) == len(hooks.of("on_disconnect")) == 2
    assert all(error is None for _, _, error in hooks.of("on_connect"))
    assert all(error is None for _, error in hooks.of("on_disconnect"))
    updates = [([node.id for node in nodes], topics) for nodes, topics in hooks.of("on_metadata_updated")]
    assert updates[-1][0] == [1]
    assert ["clicks"] in [topics for _, topics in updates]


def test_hooks_report_retries_splits_and_failures_with_their_errors():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1]).max_message_bytes = 1000
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS, times=2))
        async with world.producer(hooks=(hooks,), linger_ms=10, batch_size=1600) as producer:
            await asyncio.gather(*(producer.send("clicks", bytes(300)) for _ in range(4)))
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=INVALID_RECORD))
            with pytest.raises(KafkaError):
                await producer.send("clicks", b"value")
            return hooks, producer.metrics()

    (hooks, metrics), world = run(scenario)
    assert [(each[1], each[2], each[3].code) for each in hooks.of("on_batch_retried")] == [
        (4, 1, NOT_ENOUGH_REPLICAS),
        (4, 2, NOT_ENOUGH_REPLICAS),
    ]
    [(topic_partition, records, parts)] = hooks.of("on_batch_split")
    assert (topic_partition, records) == (CLICKS, 4)
    assert parts >= 2
    [(topic_partition, records, error)] = hooks.of("on_batch_failed")
    assert (topic_partition, records, error.code) == (CLICKS, 1, INVALID_RECORD)
    assert [(where, count) for where, count, _ in world.failures] == [(CLICKS, 1)]
    assert sum(each[1] for each in hooks.of("on_batch_acked")) == 4
    assert metrics["record-retry-total"] == metrics.topics["clicks"]["record-retry-total"] == 8
    assert metrics["record-error-total"] == metrics.topics["clicks"]["record-error-total"] == 1
    assert metrics["batch-split-total"] == 1


def test_metrics_count_records_that_succeed():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=20, compression_type="gzip") as producer:
            fresh = producer.metrics()
            assert fresh["record-send-total"] == 0
            await producer.partitions_for("clicks")
            sent = [producer.send("clicks", bytes(500)) for _ in range(4)]
            await asyncio.sleep(0.01)
            assert producer.metrics()["buffer-available-bytes"] < fresh["buffer-total-bytes"]
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=0.5, throttle_time_ms=200))
            await asyncio.sleep(0.1)
            assert producer.metrics()["requests-in-flight"] == 1
            await asyncio.gather(*sent)
            await asyncio.sleep(3)
            return producer.metrics()

    metrics, world = run(scenario, nodes=1)
    assert metrics["record-send-total"] == metrics["records-per-request-avg"] == 4
    assert metrics.topics["clicks"]["record-send-total"] == 4
    assert metrics["batch-size-avg"] == metrics["bytes-sent-total"] == world.cluster.partition("clicks").batch_sizes[0]
    assert metrics["compression-rate-avg"] < 0.2
    assert 500 < metrics["record-size-max"] < 520
    assert 20 <= metrics["record-queue-time-avg"] <= 21
    assert 500 <= metrics["request-latency-avg"] <= 501
    assert metrics.nodes[1]["request-latency-avg"] == metrics["request-latency-avg"]
    assert metrics["produce-throttle-time-max"] == 200
    assert metrics["requests-in-flight"] == metrics["waiting-threads"] == 0
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    assert metrics["connection-count"] == 1
    assert (metrics["connection-creation-total"], metrics["connection-close-total"]) == (2, 1)
    assert 3 <= metrics["metadata-age"] <= 3.7
    # Those of the bootstrap address went with it.
    assert metrics.nodes.keys() == {1}
    assert metrics["request-total"] == metrics["response-total"] == 3
    assert metrics["outgoing-byte-total"] > metrics["bytes-sent-total"]
    assert metrics["incoming-byte-total"] > 0


def test_metrics_count_records_blocked_on_metadata():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=0.5))
        async with world.producer() as producer:
            sent = [producer.send("clicks", b"value") for _ in range(4)]
            assert producer.metrics()["waiting-threads"] == 4
            await asyncio.gather(*sent)
            return producer.metrics()

    metrics, _ = run(scenario)
    assert metrics["waiting-threads"] == 0
    assert 2.0e9 <= metrics["metadata-wait-time-ns-total"] <= 2.001e9


def test_metrics_count_failures():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"buffer_memory": 4096, "max_block_ms": 100, "linger_ms": 0}
        async with world.producer(**config) as producer:
            await producer.partitions_for("clicks")
            assert producer.metrics()["metadata-age"] < 1
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=2))
            producer.send("clicks", bytes(3500))
            with pytest.raises(TimeoutError):
                await producer.send("clicks", bytes(3500))
            return producer.metrics()

    metrics, world = run(scenario)
    assert metrics["buffer-exhausted-total"] == 1
    assert metrics["record-error-total"] == 1
    [(where, count, _)] = world.failures
    assert (where, count) == (TopicPartition("clicks", -1), 1)


def test_metrics_count_errors_that_send_raises():
    """They once left every total at 0; Kafka's ``doSend`` counts them without a topic."""

    def refuse(topic, key, value, view):
        raise KafkaError("no partition")

    async def scenario(world):
        async with world.producer(buffer_memory=4096, max_block_ms=100) as producer:
            producer.send("missing", bytes(3500))
            for _ in range(2):
                with pytest.raises(BufferExhaustedError, match="The queue of waiting records has no room"):
                    producer.send("missing", bytes(3500))
            with pytest.raises(TypeError):
                producer.send("missing", "text")
            full = producer.metrics()
            await producer.close(0)
            with pytest.raises(ProducerClosedError):
                producer.send("missing", b"v")
        async with world.producer(value_serializer=str.encode) as producer:
            with pytest.raises(SerializationError):
                producer.send("missing", b"v")
            serialized = producer.metrics()
        world.cluster.create_topic("clicks")
        async with world.producer(partitioner_class=refuse) as producer:
            await producer.partitions_for("clicks")
            with pytest.raises(KafkaError, match="no partition"):
                producer.send("clicks", b"v")
            chosen = producer.metrics()
        return full, serialized, chosen

    (full, serialized, chosen), _ = run(scenario)
    assert (full["buffer-exhausted-total"], full["record-error-total"]) == (2, 2)
    assert (serialized["buffer-exhausted-total"], serialized["record-error-total"]) == (0, 1)
    assert (chosen["buffer-exhausted-total"], chosen["record-error-total"]) == (0, 1)
    assert full.topics == serialized.topics == chosen.topics == {}


def test_metrics_count_the_memory_wait_of_blocked_records():
    """``bufferpool-wait-time`` once counted ``drain`` only, and not records blocked on memory."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"buffer_memory": 4096, "max_block_ms": 5000, "linger_ms": 0}
        async with world.producer(**config) as producer:
            await producer.partitions_for("clicks")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=2, times=1))
            sent = [producer.send("clicks", bytes(3500)) for _ in range(2)]
            await asyncio.gather(*sent)
            served = producer.metrics()
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=20))
            producer.send("clicks", bytes(3500))
            late = [producer.send("clicks", bytes(600)) for _ in range(3)]
            assert all(isinstance(each, TimeoutError) for each in await asyncio.gather(*late, return_exceptions=True))
            return served, producer.metrics()

    (served, late), _ = run(scenario)
    assert 1.99e9 <= served["bufferpool-wait-time-ns-total"] <= 2.01e9
    assert served["bufferpool-wait-ratio"] > 0
    assert 3 * 4.99e9 <= late["bufferpool-wait-time-ns-total"] - served["bufferpool-wait-time-ns-total"] <= 3 * 5.01e9
    assert late["buffer-exhausted-total"] == 3


def test_metadata_age_is_unknown_before_the_first_response():
    async def scenario(world):
        world.stop_node(1)
        async with world.producer() as producer:
            return producer.metrics()["metadata-age"]

    age, _ = run(scenario, nodes=1)
    assert age != age


class Failing:
    def on_batch_acked(self, *arguments):
        raise ZeroDivisionError("odd")

    def on_connect(self, *arguments):
        raise ZeroDivisionError("odd")


def test_a_failing_hook_has_no_effect(caplog):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(Failing(),)) as producer:
            await producer.send("clicks", b"value")

    run(scenario)
    assert {record.getMessage() for record in caplog.records} == {
        "[Producer clientId=simulated] hook Failing.on_batch_acked failed",
        "[Producer clientId=simulated] hook Failing.on_connect failed",
    }
