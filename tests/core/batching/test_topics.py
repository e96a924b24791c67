"""Known topics, the leaders of their partitions, and the partitions of records without a key."""

from __future__ import annotations

from tests.core.accumulating import Bench


def test_a_topic_is_forgotten_once_it_has_no_batches_left() -> None:
    bench = Bench(topics={"t": 1}, idempotent=False)
    assert bench.accumulator.forget_topic("never sent to")
    bench.send_batch()
    assert not bench.accumulator.forget_topic("t")
    batch = bench.drain_one()
    assert not bench.accumulator.forget_topic("t")
    bench.ack(batch)
    assert bench.accumulator.forget_topic("t")
    waiting = bench.send(topic="t")
    assert not bench.accumulator.forget_topic("t")
    waiting.cancel()
    assert bench.accumulator.forget_topic("t")


def test_a_topic_with_a_batch_in_flight_is_not_forgotten() -> None:
    """Without sequences and muting the topic was once forgotten; the retry then had no leader until it expired."""
    bench = Bench(idempotent=False)
    bench.send_batch()
    batch = bench.drain_one()
    assert not bench.accumulator.forget_topic("t")
    bench.refuse(batch, 19)
    bench.later(0.1)
    assert bench.drain_one() is batch


def test_a_topic_that_was_forgotten_and_recreated_starts_its_sequence_checks_again() -> None:
    """The sequences outlive the queues, and the logs of the new topic have none of their batches."""
    bench = Bench(topics={"t": 2, "u": 1})
    for topic in ("t", "u"):
        bench.send_batch(topic=topic)
    for batch in bench.drain():
        bench.ack(batch)
    assert bench.accumulator.forget_topic("t")
    bench.accumulator.set_partition_count("t", 2, bench.now)
    bench.accumulator.topics.recreated("t")
    assert bench.sequences("t", 0).log_is_new
    assert not bench.sequences("u", 0).log_is_new
    assert bench.queue("t", 0).sequences is bench.sequences("t", 0)


def test_a_slow_broker_gets_fewer_records_without_key() -> None:
    """KIP-794: its queue grows, and with a limit on availability it gets none."""
    bench = Bench(
        topics={"t": 2}, batch_size=500, linger=0, memory=1 << 22, availability_timeout=1.0, max_request_size=600
    )
    bench.accumulator.topics.set_leader("t", 1, 2, 0)
    for _ in range(50):
        bench.send(b"x" * 200, partition=None)
        for batch in bench.drain(1):
            bench.ack(batch)
    bench.now = 10.0
    before = len(bench.queue("t", 1).batches)
    assert before
    for _ in range(100):
        bench.now += 0.1
        bench.send(b"x" * 200, partition=None)
        for batch in bench.drain(1):
            bench.ack(batch)
    assert len(bench.queue("t", 1).batches) <= before + 2


def test_leaders_in_the_clients_rack_are_preferred() -> None:
    bench = Bench(topics={}, batch_size=300, linger=0, rack="b")
    bench.accumulator.topics.rack_of = lambda node_id: {1: "a", 2: "b"}.get(node_id)
    bench.accumulator.set_partition_count("t", 2, 0)
    for partition in range(2):
        bench.accumulator.topics.set_leader("t", partition, partition + 1, 0)
    for _ in range(10):
        bench.send(b"x" * 200, partition=None)
    batches = len(bench.queue("t", 0).batches)
    for _ in range(30):
        bench.now += 1
        bench.send(b"x" * 200, partition=None)
    assert len(bench.queue("t", 0).batches) <= batches + 1


def test_the_first_record_goes_to_a_leader_in_the_clients_rack() -> None:
    """Partitions are known before their leaders: a choice made then counts only if a record was appended."""
    for _ in range(10):
        bench = Bench(topics={}, batch_size=300, linger=0, rack="b")
        bench.accumulator.topics.rack_of = lambda node_id: {1: "a", 2: "b"}.get(node_id)
        bench.accumulator.set_partition_count("t", 8, 0)
        for partition in range(8):
            bench.accumulator.topics.set_leader("t", partition, 2 if partition == 5 else 1, 0)
        bench.accumulator.topics.leaders_known("t", 0)
        bench.send(b"x", partition=None)
        assert bench.queue("t", 5).batches


def test_newly_known_leaders_do_not_end_the_current_sticky_turn() -> None:
    bench = Bench(topics={}, batch_size=300, linger=1.0, rack="b")
    bench.accumulator.topics.rack_of = lambda node_id: {1: "a", 2: "b"}.get(node_id)
    bench.accumulator.set_partition_count("t", 8, 0)
    bench.send(b"x", partition=None)
    (begun,) = [partition for partition in range(8) if bench.queue("t", partition).batches]
    for partition in range(8):
        bench.accumulator.topics.set_leader("t", partition, 1 if partition == begun else 2, 0)
    bench.accumulator.topics.leaders_known("t", 0)
    bench.send(b"y", partition=None)
    assert [len(queue.batches) for queue in bench.accumulator.topics["t"].queues()].count(1) == 1
    assert bench.queue("t", begun).batches[0].record_count == 2
