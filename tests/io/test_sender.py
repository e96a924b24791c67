"""The sender: the requests it sends, how it handles responses, and which errors it survives."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from aioproducer.core.batching.completion import Completion
from aioproducer.core.batching.ready import BATCHES_PER_REQUEST
from aioproducer.errors import (
    BufferExhaustedError,
    ClusterAuthorizationError,
    DeliveryTimeoutError,
    InvalidPartitionError,
    KafkaError,
    MetadataTimeoutError,
    ProducerClosedError,
    ProtocolError,
    RecordTooLargeError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from aioproducer.io.sender import (
    BATCHES_FAILED_PER_PASS,
    RECORDS_FAILED_PER_PASS,
    RESUMED_AT_ONCE,
    SenderPasses,
)
from aioproducer.protocol import ApiKey
from aioproducer.protocol.messages.produce import ProduceRequest
from aioproducer.record import TopicPartition
from tests.io.recording import Recording
from tests.simulation import Fault, run

NOT_ENOUGH_REPLICAS = 19
TOPIC_AUTHORIZATION_FAILED = 29
CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_RECORD = 87


def memory_is_back(producer):
    pool = producer._accumulator.pool
    return pool.available_memory == pool.total_memory


@contextmanager
def scheduled_passes(loop):
    """Return a list that grows with every sender pass that is scheduled."""
    passes = []
    call_soon = loop.call_soon

    def noted(callback, *arguments, **options):
        if getattr(callback, "__name__", "") == "_run_pass":
            passes.append(callback)
        return call_soon(callback, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon", noted)
        yield passes


class TurnsOfBatches:
    """A hook: the iterations of the loop in which batches were sent, and acknowledged."""

    def __init__(self):
        self.sent, self.acked = [], []

    def on_batch_sent(self, *args):
        self.sent.append(asyncio.get_running_loop().turns)

    def on_batch_acked(self, *args):
        self.acked.append(asyncio.get_running_loop().turns)


def test_waiting_for_metadata_and_for_memory_shares_one_time_budget():
    async def scenario(world):
        world.cluster.create_topic("full", 2, leaders=[2, 1])
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, node=2, answer_delay=20, times=100))
        config = {"buffer_memory": 4096, "max_block_ms": 1000, "linger_ms": 0, "retry_backoff_max_ms": 50}
        async with world.producer(**config) as producer:
            await producer.send("full", b"warm", partition=1)
            producer.send("full", bytes(3500), partition=0)
            await asyncio.sleep(0.1)
            began = world.loop.time()
            delivery = producer.send("late", bytes(2000))
            await asyncio.sleep(0.6)
            world.cluster.create_topic("late", leaders=[1])
            # Wake-ups that change nothing must not prolong it.
            for _ in range(300):
                producer._sender.wake()
                await asyncio.sleep(0.0001)
            with pytest.raises(BufferExhaustedError, match=r"No room for .* within 10\d\d ms \(max_block_ms\)"):
                await delivery
            assert 0.999 <= world.loop.time() - began <= 1.002
            await producer.close(0)

    run(scenario)


def test_memory_is_released_only_after_the_transport_has_finished_reading_it():
    """If a batch expires while its request is being written, its memory must not be reused yet."""

    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        config = {"request_timeout_ms": 3000, "delivery_timeout_ms": 3050, "linger_ms": 0, "buffer_memory": 16_384}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"warm", partition=0)
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, node=2, throttle_time_ms=2000))
            await producer.send("clicks", b"warm", partition=1)
            [stalled] = [connection for connection in world.connections if connection.node.id == 2]
            stalled.transport.receive_window = 0
            with pytest.raises(DeliveryTimeoutError, match="They were sent, so they may be in the log nevertheless"):
                await producer.send("clicks", b"slow" * 1000, partition=1)
            assert not memory_is_back(producer)
            for _ in range(50):
                await producer.send("clicks", b"\\xff" * 1000, partition=0)
            stalled.transport.receive_window = None
            await world.until(lambda: len(world.cluster.values("clicks", 1)) == 2)
            await world.until(lambda: memory_is_back(producer), 0.1)
            return world.cluster.values("clicks", 1)

    assert run(scenario, send_buffer_bytes=0)[0] == [b"warm", b"slow" * 1000]


def test_the_end_of_the_connection_releases_the_memory():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0) as producer:
            await producer.send("clicks", b"warm")
            for connection in world.connections:
                connection.transport.receive_window = 0
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(1)
            world.stop_node(1)
            await asyncio.sleep(0.01)
            assert not delivery.done()
            producer._sender.fail_everything(KafkaError("test"), world.loop.time())
            assert memory_is_back(producer)
            assert delivery.exception() is not None
            world.start_node(1)

    run(scenario)


def test_a_partition_missing_from_the_response_is_sent_again():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", 2, leaders=[1, 1])
        async with world.producer(hooks=(hooks,)) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer="omit"))
            sent = [producer.send("clicks", b"value", partition=each) for each in range(2)]
            assert [metadata.offset for metadata in await asyncio.gather(*sent)] == [0, 0]
        return hooks

    hooks, world = run(scenario)
    [(topic_partition, _, _, error)] = hooks.of("on_batch_retried")
    assert isinstance(error, ProtocolError)
    assert str(topic_partition) in str(error)
    assert "lacks clicks-0" in str(error)
    assert [world.cluster.values("clicks", each) for each in range(2)] == [[b"value"], [b"value"]]


def test_record_metadata_has_the_log_append_time():
    async def scenario(world):
        world.cluster.create_topic("clicks").log_append_time = 12345
        async with world.producer() as producer:
            return await producer.send("clicks", b"value", timestamp_ms=99)

    assert run(scenario)[0].timestamp_ms == 12345


def test_a_batch_too_large_for_the_broker_is_split_and_arrives_completely():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1]).max_message_bytes = 2000
        async with world.producer(hooks=(hooks,), batch_size=10_000, linger_ms=50) as producer:
            sent = [producer.send("clicks", b"%d" % number * 100) for number in range(10, 60)]
            offsets = [metadata.offset for metadata in await asyncio.gather(*sent)]
            with pytest.raises(RecordTooLargeError, match=r"raise the topic's max.message.bytes"):
                await producer.send("clicks", bytes(3000))
            assert (await producer.send("clicks", b"after")).offset == 50
            assert producer.metrics()["batch-split-total"] == len(hooks.of("on_batch_split")) > 0
            assert memory_is_back(producer)
        return offsets

    offsets, world = run(scenario)
    assert offsets == list(range(50))
    assert world.cluster.values("clicks") == [b"%d" % number * 100 for number in range(10, 60)] + [b"after"]


def test_zstd_to_a_broker_without_support_fails_the_records_with_the_reason():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.nodes[1].versions[ApiKey.PRODUCE] = (3, 6)
        async with world.producer(compression_type="zstd") as producer:
            with pytest.raises(KafkaError, match=r"older than Kafka 2\.1 and does not support zstd"):
                await producer.send("clicks", b"value")
            world.cluster.nodes[1].versions[ApiKey.PRODUCE] = (3, 7)
            world.disconnect(1)
            await producer.send("clicks", b"value")
            assert memory_is_back(producer)
        assert world.cluster.values("clicks") == [b"value"]

    run(scenario)


@pytest.mark.parametrize("version", range(3, 14))
def test_every_produce_version_carries_records(version):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.nodes[1].versions[ApiKey.PRODUCE] = (3, version)
        async with world.producer() as producer:
            await producer.send("clicks", b"value", key=b"key", headers=[("name", b"header")])

    _, world = run(scenario)
    [record] = world.cluster.partition("clicks").records
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("name", b"header"),))
    assert [event.version for event in world.events(ApiKey.PRODUCE)] == [version]


def test_no_common_produce_version_is_fatal_with_idempotence_and_fails_the_batch_without():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.create_topic("other", leaders=[2])
        world.cluster.nodes[1].versions[ApiKey.PRODUCE] = (90, 91)
        async with world.producer() as producer:
            with pytest.raises(UnsupportedVersionError, match="supports PRODUCE version 90 to 91"):
                await producer.send("clicks", b"value")
            with pytest.raises(UnsupportedVersionError):
                producer.send("other", b"value")
        async with world.producer(enable_idempotence=False) as producer:
            with pytest.raises(UnsupportedVersionError):
                await producer.send("clicks", b"value")
            await producer.send("other", b"value")

    run(scenario)


def test_a_fatal_response_fails_all_current_and_later_records():
    """Records must not wait for the timeout of something else in addition to their own."""

    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        async with world.producer(linger_ms=1000) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, node=1, error=CLUSTER_AUTHORIZATION_FAILED))
            refused = producer.send("clicks", b"value", partition=0)
            await asyncio.sleep(0.5)
            others = [producer.send("clicks", b"value", partition=1), producer.send("missing", b"value")]
            with pytest.raises(ClusterAuthorizationError):
                await refused
            refused_at = world.loop.time()
            results = await asyncio.gather(*others, return_exceptions=True)
            assert [type(result) for result in results] == [ClusterAuthorizationError] * 2
            assert world.loop.time() - refused_at < 0.01
            with pytest.raises(ClusterAuthorizationError):
                producer.send("clicks", b"value")
            assert memory_is_back(producer)

    run(scenario)


def test_without_idempotence_the_same_response_fails_only_its_batch():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(enable_idempotence=False) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=CLUSTER_AUTHORIZATION_FAILED))
            with pytest.raises(ClusterAuthorizationError):
                await producer.send("clicks", b"value")
            await producer.send("clicks", b"value")

    run(scenario)


def test_the_sender_survives_an_internal_error(caplog):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(retry_backoff_max_ms=1000) as producer:
            lines = producer._accumulator.blocked_records
            resume_topics = lines.resume_topics
            faults = iter([ZeroDivisionError("once"), ZeroDivisionError("twice")])

            def failing(now):
                for fault in faults:
                    raise fault
                return resume_topics(now)

            lines.resume_topics = failing
            await producer.send("clicks", b"value")
            assert world.loop.time() < 1004

    run(scenario)
    messages = [record.getMessage() for record in caplog.records]
    assert sum(message.endswith("Unexpected error in the sender; it continues") for message in messages) == 2


def test_sends_of_one_loop_pass_share_one_request():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0) as producer:
            await producer.send("clicks", b"warm")
            # The awaiter of an outcome has had a loop pass already.
            await asyncio.sleep(0)
            before = producer.metrics()["request-total"]
            with scheduled_passes(world.loop) as asked:
                metadata = await asyncio.gather(*[producer.send("clicks", b"%d" % number) for number in range(1000)])
            assert [each.offset for each in metadata] == list(range(1, 1001))
            assert (len(asked), producer.metrics()["request-total"] - before) == (1, 1)

    run(scenario)


def test_a_send_by_a_resumed_coroutine_leaves_in_the_same_loop_pass():
    batches, woken = TurnsOfBatches(), []

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0, hooks=[batches]) as producer:
            for _ in range(4):
                await producer.send("clicks", b"value")
                woken.append(world.loop.turns)

    run(scenario)
    assert batches.sent[1:] == woken[:-1]


def test_a_single_awaiter_is_resumed_while_its_response_is_read():
    """Reading, resuming and sending once took three passes of the loop, each as expensive as the record."""
    batches, woken = TurnsOfBatches(), []

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0, hooks=[batches]) as producer:
            await producer.send("clicks", b"warm")
            woken.append(world.loop.turns)
            await asyncio.sleep(0)
            await producer.send("clicks", b"value")
            woken.append(world.loop.turns)
            with scheduled_passes(world.loop) as asked:
                for _ in range(10):
                    await producer.send("clicks", b"value")
                    woken.append(world.loop.turns)
            assert asked == []
            assert producer._sender._timer_due > world.loop.time()

    run(scenario)
    assert batches.acked == woken


def test_a_lingering_record_of_a_resumed_coroutine_is_sent_in_time():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=5) as producer:
            for _ in range(3):
                await producer.send("clicks", b"value")
            began = world.loop.time()
            await producer.send("clicks", b"value")
            assert 0.005 <= world.loop.time() - began < 0.02

    run(scenario)


@pytest.mark.parametrize("first", ["a callback", "a crowd"])
def test_no_awaiter_is_resumed_before_callbacks_of_earlier_responses(first):
    reported = []
    count = 1 if first == "a callback" else RESUMED_AT_ONCE + 1

    async def wait(delivery, name):
        await delivery
        reported.append(name)

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1, 1])
        async with world.producer(linger_ms=0) as producer:
            await producer.partitions_for("clicks")
            earlier = [producer.send("clicks", b"1", partition=0) for _ in range(count)]
            later = producer.send("clicks", b"2", partition=1)
            tasks = [asyncio.create_task(wait(later, "later"))]
            if first == "a callback":
                earlier[0].add_done_callback(lambda delivery: reported.append("earlier"))
            else:
                tasks.extend(asyncio.create_task(wait(delivery, "earlier")) for delivery in earlier)
            await asyncio.wait(tasks)

    run(scenario)
    assert reported == ["earlier"] * count + ["later"]


def test_sends_of_many_resumed_coroutines_leave_in_their_loop_pass():
    sent, woken = {}, []

    async def send_twice(world, producer, partition):
        await producer.send("clicks", b"one", partition=partition)
        woken.append((partition, world.loop.turns))
        await producer.send("clicks", b"two", partition=partition)

    async def scenario(world):
        class Watch:
            def on_batch_sent(self, where, *args):
                sent[where.partition] = world.loop.turns

        world.cluster.create_topic("clicks", leaders=[1, 1])
        async with world.producer(linger_ms=0, hooks=[Watch()]) as producer:
            await producer.partitions_for("clicks")
            places = [0] + [1] * (RESUMED_AT_ONCE + 1)
            await asyncio.gather(*[send_twice(world, producer, partition) for partition in places])

    # Writes complete at once, as with a socket.
    run(scenario, send_buffer_bytes=65536)
    assert woken[0] == (0, sent[0])
    assert woken[1:] == [(1, sent[1])] * (RESUMED_AT_ONCE + 1)
    assert sent[1] == sent[0] + 1


def test_in_debug_mode_the_loop_itself_resumes_awaiters():
    batches, woken = TurnsOfBatches(), []

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        asyncio.get_running_loop().set_debug(True)
        async with world.producer(linger_ms=0, hooks=[batches]) as producer:
            await producer.send("clicks", b"value")
            woken.append(world.loop.turns)

    run(scenario)
    assert woken == [batches.acked[0] + 1]


def test_release_repasses_whether_a_pass_was_requested_while_passes_were_held():
    loop = asyncio.new_event_loop()
    passes = SenderPasses(loop)
    runs = []
    passes.begin(lambda: runs.append("pass"))
    passes.hold()
    passes.wake()
    passes.wake()
    assert passes.next is None
    assert passes.release()
    assert not passes.release()
    assert not runs
    passes.hold()
    passes.wake()
    passes.end()
    assert not passes.release(), "no pass runs any longer"
    loop.close()


def test_sends_of_many_resumed_coroutines_share_one_request():
    async def send_twice(producer):
        await producer.send("clicks", b"one")
        await producer.send("clicks", b"two")

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0) as producer:
            await producer.send("clicks", b"warm")
            before = producer.metrics()["request-total"]
            await asyncio.gather(*[send_twice(producer) for _ in range(1000)])
            assert producer.metrics()["request-total"] - before == 2

    run(scenario)


def test_many_small_batches_are_sent_over_several_passes():
    """Sending all in one pass once blocked the loop for as long as thousands of partitions took."""

    async def scenario(world):
        world.cluster.create_topic("wide", leaders=[1] * 400)
        async with world.producer(linger_ms=0) as producer:
            await producer.partitions_for("wide")
            deliveries = [producer.send("wide", b"v", partition=place) for place in range(400)]
            sent = []
            while not all(delivery.done() for delivery in deliveries):
                before = producer.metrics()["record-send-total"]
                await asyncio.sleep(0)
                sent.append(producer.metrics()["record-send-total"] - before)
            assert sum(sent) == 400
            # A pass sends at most one request of 64; responses that arrive in the same pass may add one.
            assert max(sent) <= 2 * BATCHES_PER_REQUEST

    run(scenario)


def test_sender_passes_do_not_run_in_the_context_of_a_caller():
    """The trace of one caller's request must not appear in work that the producer does for all callers."""
    request_id = ContextVar("request_id", default="none")
    seen = []

    class Watch:
        def on_batch_sent(self, *args):
            seen.append(request_id.get())

    async def send(producer):
        request_id.set("mine")
        producer.send("clicks", b"value")

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0, hooks=[Watch()]) as producer:
            await producer.send("clicks", b"warm")
            await asyncio.create_task(send(producer))
            await producer.flush()

    run(scenario)
    assert seen == ["none", "none"]


def test_an_idle_sender_has_one_timer_and_a_stopped_one_none():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=5) as producer:
            sender = producer._sender
            for _ in range(50):
                await producer.send("clicks", b"value")
                assert sender._timer_due > world.loop.time()
                assert sender._timer.when() == sender._timer_due
        assert sender._timer.cancelled()
        sender.wake()
        assert sender._sender_passes.next is None

    run(scenario)


def test_a_request_that_cannot_be_built_fails_all_its_batches(caplog, monkeypatch):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(client_id="c" * 400) as producer:
            await producer.send("clicks", b"first")

            def failing(*arguments, **options):
                monkeypatch.undo()
                raise ZeroDivisionError("odd")

            # The client id is too long for a request's short form: it becomes a message.
            monkeypatch.setattr(ProduceRequest, "__init__", failing)
            with pytest.raises(KafkaError, match=r"request for broker .* failed: ZeroDivisionError"):
                await producer.send("clicks", b"lost")
            assert memory_is_back(producer)
            assert (await producer.send("clicks", b"second")).offset == 1

    run(scenario)
    assert any("Creating a produce request" in record.getMessage() for record in caplog.records)


def test_an_error_in_one_response_does_not_affect_others(caplog, monkeypatch):
    faults = []

    class Failing(Completion):
        def acked(self, *arguments):
            if faults:
                raise faults.pop()
            return super().acked(*arguments)

    monkeypatch.setattr("aioproducer._client.factory.Completion", Failing)

    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[1, 1])
        async with world.producer(linger_ms=0, request_timeout_ms=1000, delivery_timeout_ms=3000) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            faults.append(ZeroDivisionError("odd"))
            for connection in world.connections:
                connection.transport.receive_window = 0
            unlucky = producer.send("clicks", b"unlucky", partition=0)
            await asyncio.sleep(0.01)
            # Both responses arrive in one read.
            lucky = producer.send("clicks", b"lucky", partition=1)
            for connection in world.connections:
                connection.transport.receive_window = None
            assert (await lucky).offset == 1
            with pytest.raises(DeliveryTimeoutError):
                await unlucky

    run(scenario)
    assert any("Handling the response of broker" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("known", [True, False])
def test_a_partitioner_error_fails_only_its_record(known):
    def choose(topic, key, value, cluster):
        if value == b"bad":
            raise ZeroDivisionError("odd")
        return 7 if value == b"far" else 0

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(partitioner_class=choose, max_block_ms=1000) as producer:
            if known:
                await producer.send("clicks", b"warm")
            outcomes = []
            for value in (b"bad", b"far", b"good"):
                try:
                    outcomes.append(producer.send("clicks", value))
                except KafkaError as error:
                    outcomes.append(error)
            good = outcomes.pop()
            assert (await good).partition == 0
            assert world.loop.time() < 1000.5
            return [error if isinstance(error, KafkaError) else error.exception() for error in outcomes]

    (bad, far), _ = run(scenario)
    assert "The partitioner failed for a record of topic 'clicks': ZeroDivisionError('odd')" in str(bad)
    assert isinstance(far, InvalidPartitionError)


def test_with_acks_0_a_record_is_done_once_it_is_written():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(acks=0, linger_ms=0) as producer:
            await producer.send("clicks", b"warm")
            for connection in world.connections:
                connection.transport.receive_window = 0
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(1)
            assert not delivery.done()
            assert not memory_is_back(producer)
            for connection in world.connections:
                connection.transport.receive_window = 10
            await delivery
            await world.until(lambda: memory_is_back(producer), 0.1)

    _, world = run(scenario)
    assert world.cluster.values("clicks") == [b"warm", b"value"]


def test_with_acks_0_a_connection_lost_while_writing_causes_a_retry():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(hooks,), acks=0, linger_ms=0) as producer:
            await producer.send("clicks", b"warm")
            for connection in world.connections:
                connection.transport.receive_window = 0
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(1)
            world.disconnect(1)
            await delivery
        return hooks

    hooks, world = run(scenario)
    assert len(hooks.of("on_batch_retried")) == 1
    assert world.cluster.values("clicks") == [b"warm", b"value"]


def test_without_retries_a_retriable_error_is_final():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(retries=0) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS))
            with pytest.raises(KafkaError) as raised:
                await producer.send("clicks", b"value")
            assert raised.value.code == NOT_ENOUGH_REPLICAS

    _, world = run(scenario)
    assert len(world.events(ApiKey.PRODUCE)) == 1


def test_a_record_that_the_broker_rejects_has_its_own_error():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=INVALID_RECORD))
            with pytest.raises(KafkaError) as raised:
                await producer.send("clicks", b"value")
            assert raised.value.code == INVALID_RECORD
            assert (await producer.send("clicks", b"next")).offset == 0

    run(scenario)


def test_expired_records_have_the_reason_and_trigger_a_metadata_request():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"request_timeout_ms": 1000, "delivery_timeout_ms": 3000, "linger_ms": 0}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"warm")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer="silence", times=100))
            asked = len(world.events(ApiKey.METADATA))
            began = world.loop.time()
            with pytest.raises(DeliveryTimeoutError, match=r"did not answer PRODUCE"):
                await producer.send("clicks", b"value")
            assert 2.999 <= world.loop.time() - began <= 3.001
            assert len(world.events(ApiKey.METADATA)) > asked

    run(scenario)


def test_a_missing_partition_and_a_missing_topic_raise_different_errors():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(max_block_ms=1000) as producer:
            with pytest.raises(MetadataTimeoutError, match=r"Topic 'clicks' has no partition 5: .* it has 1"):
                await producer.send("clicks", b"value", partition=5)
            with pytest.raises(MetadataTimeoutError, match=r"Topic 'cliks' was not found in the cluster"):
                await producer.send("cliks", b"value")

    _, world = run(scenario)
    assert [(where.topic, where.partition, count) for where, count, _ in world.failures] == [
        ("clicks", 5, 1),
        ("cliks", -1, 1),
    ]


def test_many_blocked_records_are_served_in_order_over_several_passes():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            for number in range(1000):
                producer.send("clicks", b"%d" % number)
            await producer.flush()
        return [int(value) for value in world.cluster.values("clicks")]

    assert run(scenario)[0] == list(range(1000))


def test_retried_batches_are_logged_at_debug_and_failed_ones_once_each(caplog):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(retries=2, linger_ms=10) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS, times=3))
            sent = [producer.send("clicks", b"value") for _ in range(10)]
            await producer.flush()
            return [delivery.exception() for delivery in sent]

    with caplog.at_level(logging.DEBUG, logger="aioproducer"):
        errors, _ = run(scenario)
    assert all(error is not None for error in errors)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    assert len([record for record in caplog.records if "retrying" in record.getMessage()]) == 2


@pytest.mark.parametrize("known", [True, False])
def test_many_batches_that_expire_together_fail_over_many_passes(known):
    """All were once failed in one pass, which took a quarter of a second for 16,000 batches."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"batch_size": 100, "max_block_ms": 2000, "delivery_timeout_ms": 2000, "request_timeout_ms": 1000}
        async with world.producer(**config) as producer:
            if known:
                await producer.send("clicks", b"warm")
            world.stop_node(1)
            world.stop_node(2)
            deliveries = [producer.send("clicks" if known else "views", bytes(80)) for _ in range(5000)]
            failed = Counter()
            for delivery in deliveries:
                delivery.add_done_callback(lambda _: failed.update([world.loop.turns]))
            await asyncio.wait(deliveries)
        return failed

    failed, _ = run(scenario, nodes=2, check=False)
    assert failed.total() == 5000
    assert max(failed.values()) <= (BATCHES_FAILED_PER_PASS if known else RECORDS_FAILED_PER_PASS)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", ["closed", "fatal", "refused"])
def test_many_records_that_fail_together_fail_over_many_passes(way, known):
    """20,000 batches, or 60,000 blocked records, once blocked the loop for a tenth of a second or more."""
    if way == "refused" and known:
        return

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(batch_size=100) as producer:
            await producer.send("clicks", b"warm")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=20, times=100))
            world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=0.1, times=100))
            deliveries = [producer.send("clicks" if known else "views", bytes(80)) for _ in range(2000)]
            failed = Counter()
            for delivery in deliveries:
                delivery.add_done_callback(lambda _: failed.update([world.loop.turns]))
            await asyncio.sleep(0.05)
            if way == "closed":
                await producer.close(0)
            elif way == "refused":
                world.cluster.topic_errors["views"] = TOPIC_AUTHORIZATION_FAILED
            else:
                producer._accumulator.producer_state.fail(ClusterAuthorizationError("no"))
                producer._sender.wake()
            await asyncio.wait(deliveries)
            await asyncio.sleep(0)
            assert not producer._accumulator.has_undelivered()
        return failed

    failed, world = run(scenario, check=False)
    reported = [(where, count, type(error)) for where, count, error in world.failures]
    assert failed.total() == 2000
    assert max(failed.values()) <= 2 * (BATCHES_FAILED_PER_PASS if known else RECORDS_FAILED_PER_PASS)
    assert sum(count for _, count, _ in reported) == 2000
    if not known:
        error = {"closed": ProducerClosedError, "fatal": ClusterAuthorizationError, "refused": TopicAuthorizationError}
        assert reported == [(TopicPartition("views", -1), 2000, error[way])]


def test_cancelling_fail_rest_fails_the_remaining_records_at_once():
    async def scenario(world):
        async with world.producer() as producer:
            deliveries = [producer.send("views", bytes(80)) for _ in range(2000)]
            await asyncio.sleep(0.05)
            failing = asyncio.create_task(producer._sender.fail_rest(KafkaError("test")))
            await asyncio.sleep(0)
            assert not all(delivery.done() for delivery in deliveries)
            failing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await failing
            assert {str(delivery.exception()) for delivery in deliveries} == {"test"}

    run(scenario, check=False)


def test_a_refused_topic_is_usable_once_the_cluster_allows_it():
    """A send after the refusal gets the current state of the cluster."""

    async def scenario(world):
        world.cluster.topic_errors["clicks"] = TOPIC_AUTHORIZATION_FAILED
        async with world.producer() as producer:
            refused = [producer.send("clicks", b"1") for _ in range(2 * RECORDS_FAILED_PER_PASS)]
            with pytest.raises(TopicAuthorizationError):
                await refused[0]
            world.cluster.create_topic("clicks", leaders=[1])
            del world.cluster.topic_errors["clicks"]
            assert (await producer.send("clicks", b"2")).offset == 0
            assert {type(delivery.exception()) for delivery in refused} == {TopicAuthorizationError}

    run(scenario)
