"""Tasks that fail, workers and brokers that die, jobs that are cancelled: nothing is lost, and nothing hangs.

Rows wait at a gate, so that a fault is in the middle of them. What is there twice is of a task that was tried again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.interop.spark.driver import JobFailedError, SparkDriver
from tests.interop.spark.gates import (
    HALF,
    OF_TASK,
    ROWS,
    TASKS,
    Cluster,
    Gate,
    gated,
    stored,
    tasks_of,
    twice,
    wait_for_rows,
    write,
)
from tests.kafka.cluster import KafkaCluster
from tests.spark.spark_log import wait_for_line


def cancel_all(spark: SparkSession) -> None:
    spark.sparkContext.cancelAllJobs()


# Tasks


@pytest.mark.parametrize("how", ["exception", "SIGKILL"])
def test_task_fails_in_the_middle(
    local_spark: SparkDriver, one_broker: Cluster, topic: str, gate: Gate, how: str
) -> None:
    one_broker.create_topic(topic, 3)
    writing = local_spark.submit(write, one_broker.bootstrap_servers, topic, gate._replace(fail=how), {})
    wait_for_rows(one_broker, topic, OF_TASK + HALF // 2)
    gate.open()
    writing.result(240)
    # The first attempt had sent something, and no more than it had.
    assert HALF // 2 <= twice(stored(one_broker, topic), {TASKS - 1}) <= HALF
    wait_for_line(
        local_spark.log,
        rf"partition {TASKS - 1}, attempt 1 \(task \d+\): {OF_TASK} rows, .*\n(.*\n)*.*"
        f"written; {ROWS} rows of {TASKS} finished tasks are in the topic",
    )


def test_worker_that_writes_is_killed(local_spark: SparkDriver, one_node: KafkaCluster, topic: str, gate: Gate) -> None:
    one_node.create_topic(topic, 3)
    writing = local_spark.submit(write, one_node.bootstrap_servers, topic, gate, {})
    wait_for_rows(one_node, topic, OF_TASK // 2)
    victim, *_ = local_spark.workers_at(one_node.bootstrap_servers)
    victim.kill()
    gate.open()
    writing.result(240)
    found = stored(one_node, topic)
    (task,) = tasks_of(found)
    assert 0 < twice(found, {task}) <= HALF


# Brokers


def test_broker_restarts_under_load(local_spark: SparkDriver, one_broker: Cluster, topic: str, gate: Gate) -> None:
    one_broker.create_topic(topic, 3)
    options = {"kafka.request.timeout.ms": "5000"}
    writing = local_spark.submit(write, one_broker.bootstrap_servers, topic, gate, options)
    wait_for_rows(one_broker, topic, OF_TASK // 2)
    one_broker.kill(1)
    gate.open()
    one_broker.restart(1)
    writing.result(240)
    # No task was tried again: idempotence is enough.
    assert twice(stored(one_broker, topic), set()) == 0


def test_broker_stays_away(local_spark: SparkDriver, one_node: KafkaCluster, topic: str, gate: Gate) -> None:
    one_node.create_topic(topic, 3)
    options = {"kafka.request.timeout.ms": "1000", "kafka.delivery.timeout.ms": "2000", "flush_timeout_ms": "4000"}
    writing = local_spark.submit(write, one_node.bootstrap_servers, topic, gate, options)
    wait_for_rows(one_node, topic, OF_TASK // 2)
    log = len(local_spark.log.read_text())
    one_node.kill(1)
    gate.open()
    try:
        with pytest.raises(JobFailedError) as failed:
            writing.result(240)
    finally:
        one_node.restart(1)
    counts = (
        r"Of \d+ rows sent in this attempt \d+ are known to be acknowledged; of the other \d+ some may be in the log "
        r"all the same\."
    )
    # The attempt that had the broker go away.
    wait_for_line(local_spark.log, rf"SparkTaskError: Rows for {topic}-[012] were not delivered: .+ {counts}", log)
    # The one after that, which has found none, is what the job's error tells of.
    text = str(failed.value)
    assert re.search(rf"SparkTaskError: .+{topic}.+{counts}", text), text
    assert f"127.0.0.1:{one_node.nodes[1].port['PLAINTEXT']}" in text
    # What was acknowledged before is there, and the workers go on.
    assert stored(one_node, topic).total() >= OF_TASK // 2
    again = one_node.create_topic(f"{topic}-again", 3)
    # With Kafka's own limits: those above are shorter than a busy machine may need.
    local_spark.call(write, one_node.bootstrap_servers, again, gate, {})
    assert twice(stored(one_node, again), set()) == 0


# Jobs


@pytest.fixture
def stuck(one_node: KafkaCluster) -> Iterator[psutil.Process]:
    """The broker, to be stopped in its tracks: its connections stay, and nothing answers."""
    (broker,) = (
        each
        for each in psutil.process_iter(["cmdline"])
        if str(one_node.nodes[1].properties_path) in (each.info["cmdline"] or ())
    )
    yield broker
    broker.resume()
    one_node.wait_ready()


def by_hand(spark: SparkSession, bootstrap_servers: str, topic: str, gate: Gate) -> None:
    """As ``write``, with the loop wrapper."""

    def send(rows: Iterator[tuple[str]]) -> None:
        from aioproducer.spark import executor_producer

        with executor_producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0}) as producer:
            for row in rows:
                producer.send(topic, row[0].encode())

    gated(spark, gate).foreachPartition(send)


@pytest.mark.parametrize("by_sink", [True, False], ids=["sink", "wrapper"])
def test_cancelled_while_the_broker_is_stuck(
    local_spark: SparkDriver, one_node: KafkaCluster, topic: str, gate: Gate, stuck: psutil.Process, by_sink: bool
) -> None:
    one_node.create_topic(topic, 3)
    address = one_node.bootstrap_servers
    # Workers of the sink that wait for another task, which those of the wrapper's are not given to.
    idle = [] if by_sink else local_spark.workers_at(address)
    writing: Future[None]
    if by_sink:
        writing = local_spark.submit(write, address, topic, gate, {})
    else:
        writing = local_spark.submit(by_hand, address, topic, gate)
    wait_for_rows(one_node, topic, OF_TASK // 2)
    stuck.suspend()
    gate.open()
    busy = [each for each in local_spark.workers_at(address) if each not in idle]
    assert len(busy) == TASKS
    # All rows come now, and the tasks wait for their acknowledgements.
    time.sleep(2)
    assert not writing.done()
    local_spark.call(cancel_all)
    with pytest.raises(JobFailedError, match="CANCELLED"):
        writing.result(120)
    # Spark kills a worker that does not end by itself.
    assert psutil.wait_procs(busy, timeout=120)[1] == []
    stuck.resume()
    one_node.wait_ready()
    again = one_node.create_topic(f"{topic}-again", 3)
    local_spark.call(write, address, again, gate, {})
    assert twice(stored(one_node, again), set()) == 0
