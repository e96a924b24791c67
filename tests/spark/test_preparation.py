"""What an exactly-once sink refuses before any task runs, and what its errors say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aioproducer.errors import AuthorizationError, ConfigurationError, KafkaError
from aioproducer.protocol import ApiKey
from aioproducer.spark import close_executor, preparation
from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch
from aioproducer.spark.options import SinkOptions
from aioproducer.spark.preparation import REQUIRED_REQUESTS, check_requests
from aioproducer.spark.transactional.rules import ExactlyOnceError
from aioproducer.testing import EmbeddedClusterThread
from tests.interop.spark.sink_program import log, options_of, run_batch, write_tasks


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[EmbeddedClusterThread]:
    properties = {"default.replication.factor": "1", "transaction.max.timeout.ms": "60000"}
    with EmbeddedClusterThread(2, properties=properties) as cluster:
        yield cluster


@pytest.fixture
def options(options: dict[str, str]) -> dict[str, str]:
    """With the longest time-out that the brokers allow."""
    return {**options, "transaction.timeout.ms": "60000"}


def plan(options: dict[str, str]) -> None:
    plan_batch(SinkOptions.parse(options), log)


def test_a_timeout_that_the_brokers_do_not_allow_is_refused(options):
    with pytest.raises(
        ConfigurationError, match=r"60001 ms, and the brokers allow at most 60000 ms \(transaction\.max"
    ):
        plan({**options, "transaction.timeout.ms": "60001"})


@pytest.mark.parametrize("option", ["topic", "decision.topic"])
@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets"])
def test_topics_of_the_brokers_themselves_are_refused(cluster, options, option, name):
    """A transaction that ends in one leaves a record there that Kafka 4.4 cannot read when it starts again."""
    with pytest.raises(ConfigurationError, match=f"'{name}' is a topic of the brokers themselves"):
        plan({**options, option: name})


def test_a_decision_topic_that_would_lose_decisions_is_refused(cluster, topic, options, sink):
    cluster.create_topic(f"{sink}-deleted", 1)
    with pytest.raises(ExactlyOnceError, match=r"cleanup\.policy=delete.*set cleanup\.policy=compact"):
        plan({**options, "decision.topic": f"{sink}-deleted"})
    cluster.create_topic(f"{sink}-wide", 3, configs={"cleanup.policy": "compact"})
    with pytest.raises(ExactlyOnceError, match="has 3 partitions, and must have one"):
        plan({**options, "decision.topic": f"{sink}-wide"})
    cluster.create_topic(f"{sink}-single", 1, configs={"cleanup.policy": "compact"})
    cluster.create_topic(f"{topic}-safe", 1, replication_factor=2)
    with pytest.raises(ExactlyOnceError, match=r"has 1 replicas, and topic '.*-safe' has 2"):
        plan({**options, "topic": f"{topic}-safe", "decision.topic": f"{sink}-single"})


def test_brokers_without_a_request_that_the_sink_needs_are_refused():
    check_requests(REQUIRED_REQUESTS)
    with pytest.raises(ExactlyOnceError, match=r"do not know the request LIST_TRANSACTIONS.* Kafka 3\.0 or later"):
        check_requests(REQUIRED_REQUESTS.keys() - {ApiKey.LIST_TRANSACTIONS})
    with pytest.raises(ExactlyOnceError, match="exactly-once delivery needs Apache Kafka"):
        check_requests([ApiKey.PRODUCE])


@pytest.mark.parametrize("level", [0, 1])
def test_brokers_with_an_older_level_of_transactions_are_enough(topic, sink, level):
    with EmbeddedClusterThread(1, features={"transaction.version": level}) as cluster:
        cluster.create_topic(topic, 1)
        options = options_of(cluster.bootstrap_servers, topic, sink)
        for batch_id in range(2):
            run_batch(options, batch_id, ["a", "b"])
        assert len(cluster.records(topic, committed=True)) == 4
        close_executor()


# Permissions. The embedded broker has no authorizer: it answers as one that lacks a permission.

PERMISSIONS = (
    "Exactly-once delivery needs: Write and Describe on transactional ids that begin with '{sink}'; Write, Read and "
    "Describe on topic '{topic}'; Write, Read, Describe and DescribeConfigs on topic '{sink}-decisions', and Create if "
    "it does not exist."
)

REFUSED_BY_PLAN = [
    ("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ("DescribeTransactions", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ("FindCoordinator", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ("CreateTopics", "TOPIC_AUTHORIZATION_FAILED"),
    ("DescribeConfigs", "TOPIC_AUTHORIZATION_FAILED"),
    ("ListOffsets", "TOPIC_AUTHORIZATION_FAILED"),
]


@pytest.mark.parametrize(("request_name", "error"), REFUSED_BY_PLAN)
def test_a_plan_without_a_permission_names_all_that_are_needed(cluster, topic, options, sink, request_name, error):
    if request_name != "CreateTopics":
        cluster.create_topic(f"{sink}-decisions", 1, configs={"cleanup.policy": "compact"})
    cluster.fail(request_name, error, times=None)
    with pytest.raises(AuthorizationError) as raised:
        plan(options)
    assert PERMISSIONS.format(sink=sink, topic=topic) in str(raised.value)


@pytest.mark.parametrize(
    ("of_decisions", "operation", "number"),
    [(True, "Read", 3), (True, "Write", 4), (True, "DescribeConfigs", 10), (False, "Read", 3), (False, "Write", 4)],
)
def test_a_plan_for_topics_that_the_principal_may_not_use_is_refused(
    cluster, topic, options, sink, monkeypatch, of_decisions, operation, number
):
    """The first decision failed, after the tasks of the batch."""
    name = f"{sink}-decisions" if of_decisions else topic
    describe = preparation._describe

    async def describe_for_principal(calls, names):
        found = await describe(calls, names)
        if name in found:
            found[name].topic_authorized_operations &= ~(1 << number)
        return found

    monkeypatch.setattr(preparation, "_describe", describe_for_principal)
    with pytest.raises(AuthorizationError, match=rf"No permission for {operation} on topic '{name}'\.") as raised:
        plan(options)
    assert PERMISSIONS.format(sink=sink, topic=topic) in str(raised.value)
    monkeypatch.undo()
    plan(options)


REFUSED_IN_TASKS = [
    ("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ("Produce", "TOPIC_AUTHORIZATION_FAILED"),
]


@pytest.mark.parametrize(("request_name", "error"), REFUSED_IN_TASKS)
def test_a_task_without_a_permission_fails_and_leaves_no_row(cluster, topic, options, request_name, error):
    parsed = SinkOptions.parse(options)
    made = plan_batch(parsed, log)
    cluster.fail(request_name, error, times=None)
    with pytest.raises(KafkaError, match=r"(?i)not allowed|authoriz|permission"):
        write_tasks(parsed, made, TaskOf("query", 0, "run"), ["a"], 1)
    cluster.clear_faults()
    run_batch(options, 0, ["b"])
    assert [each.value for each in cluster.records(topic, committed=True)] == [b"b"]


def test_a_commit_without_a_permission_decides_nothing_and_names_all_that_are_needed(cluster, topic, options, sink):
    parsed = SinkOptions.parse(options)
    reports = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 0, "run"), ["a"], 1)
    cluster.fail("DescribeTransactions", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", times=None)
    with pytest.raises(AuthorizationError) as raised:
        commit_batch(parsed, reports, log)
    assert PERMISSIONS.format(sink=sink, topic=topic) in str(raised.value)
    assert cluster.records(f"{sink}-decisions") == []
