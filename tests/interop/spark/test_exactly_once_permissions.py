"""The exactly-once sink of a principal with exactly the permissions that docs/spark.md lists, and with all but one.

Apache Kafka's StandardAuthorizer decides.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from aioproducer.cli import main
from aioproducer.errors import AuthorizationError, ConfigurationError, KafkaError
from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch
from aioproducer.spark.options import SinkOptions
from tests.interop.spark.crashes import PARTITIONS, abort_tasks, check_stable, committed, killed_at, rows_of, wanted
from tests.interop.spark.driver import eventually
from tests.interop.spark.sink_program import log, options_of, run_batch, write_tasks
from tests.kafka.cluster import KafkaCluster
from tests.kafka.security import properties_value

pytestmark = pytest.mark.timeout(600)

USER, PASSWORD = "sink-job", "secret"
LISTENER: Final = "SASL"

IDS, ROWS, DECISIONS, CLUSTER = "ids", "rows", "decisions", "cluster"


class Permission(NamedTuple):
    """An operation on one of the sink's resources."""

    resource: str
    operation: str


NEEDED: Final = (
    Permission(IDS, "WRITE"),
    Permission(IDS, "DESCRIBE"),
    Permission(ROWS, "WRITE"),
    Permission(ROWS, "READ"),
    Permission(ROWS, "DESCRIBE"),
    Permission(DECISIONS, "WRITE"),
    Permission(DECISIONS, "READ"),
    Permission(DECISIONS, "DESCRIBE"),
    Permission(DECISIONS, "DESCRIBE_CONFIGS"),
    Permission(DECISIONS, "CREATE"),
)
"""The table of docs/spark.md, without what is optional."""

READ_ONLY: Final = tuple(each for each in NEEDED if each.operation in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS"))


class Principal:
    """What the sink's principal may do, of this test's topics and sink."""

    def __init__(self, kafka: KafkaCluster, topic: str, sink: str) -> None:
        self._client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self._sink = sink
        self._names = {IDS: sink, ROWS: topic, DECISIONS: f"{sink}-decisions", CLUSTER: "kafka-cluster"}
        self._made: set[AclBinding] = set()

    def _binding(self, permission: Permission, kind: AclPermissionType) -> AclBinding:
        types = {IDS: ResourceType.TRANSACTIONAL_ID, CLUSTER: ResourceType.BROKER}
        pattern = ResourcePatternType.PREFIXED if permission.resource == IDS else ResourcePatternType.LITERAL
        return AclBinding(
            types.get(permission.resource, ResourceType.TOPIC),
            self._names[permission.resource],
            pattern,
            f"User:{USER}",
            "*",
            AclOperation[permission.operation],
            kind,
        )

    def allow(self, *permissions: Permission) -> None:
        self._make([self._binding(each, AclPermissionType.ALLOW) for each in permissions])

    @contextmanager
    def denied(self, permission: Permission) -> Iterator[None]:
        """Take one away, whatever allows it: Kafka's authorizer includes Describe in Read and in Write."""
        binding = self._binding(permission, AclPermissionType.DENY)
        self._make([binding])
        yield
        self._delete([binding])

    def _make(self, bindings: list[AclBinding]) -> None:
        for future in self._client.create_acls(bindings).values():
            future.result(30)
        self._made |= set(bindings)
        self._wait(lambda known: set(bindings) <= known)

    def _delete(self, bindings: list[AclBinding]) -> None:
        filters = [
            AclBindingFilter(
                each.restype,
                each.name,
                each.resource_pattern_type,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )
            for each in bindings
        ]
        for future in self._client.delete_acls(filters).values():
            future.result(30)
        self._made -= set(bindings)
        self._wait(lambda known: known.isdisjoint(bindings))

    def _wait(self, condition: Callable[[set[AclBinding]], bool]) -> None:
        """The controller answers before the broker has the change."""
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        deadline = time.monotonic() + 120
        while not condition(set(self._client.describe_acls(everything).result(30))):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def revoke_all(self) -> None:
        if self._made:
            self._delete(list(self._made))


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """One broker that denies what no ACL allows; the plaintext listener is that of its administrator."""
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": properties_value(jaas),
    }
    with KafkaCluster(1, properties=properties, listeners={LISTENER: "SASL_PLAINTEXT"}) as cluster:
        yield cluster


@pytest.fixture
def principal(guarded: KafkaCluster, topic: str, sink: str) -> Iterator[Principal]:
    guarded.create_topic(topic, PARTITIONS)
    found = Principal(guarded, topic, sink)
    yield found
    found.revoke_all()


def credentials(guarded: KafkaCluster) -> dict[str, str]:
    return {
        "bootstrap.servers": guarded.listener_bootstrap_servers(LISTENER),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


@pytest.fixture
def options(guarded: KafkaCluster, topic: str, sink: str) -> dict[str, str]:
    """Of the principal."""
    own = {f"kafka.{name}": value for name, value in credentials(guarded).items()}
    return options_of(own["kafka.bootstrap.servers"], topic, sink, **own, **{"kafka.linger.ms": "0"})


def needed_text(topic: str, sink: str) -> str:
    return (
        f"Exactly-once delivery needs: Write and Describe on transactional ids that begin with '{sink}'; Write, Read "
        f"and Describe on topic '{topic}'; Write, Read, Describe and DescribeConfigs on topic '{sink}-decisions', and "
        "Create if it does not exist."
    )


def test_the_documented_permissions_are_enough(guarded, principal, options, topic, sink, tmp_path, capsys):
    """To write, to finish and to sweep; and to copy rows of a transaction that was aborted after its decision."""
    principal.allow(*NEEDED)
    run_batch(options, 0, rows_of(0))
    with killed_at("half-ended", options, 1, tmp_path):
        pass
    abort_tasks(guarded, sink)
    run_batch(options, 1, rows_of(1))
    assert "copied" in capsys.readouterr().out
    parsed = SinkOptions.parse(options)
    write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 2, "run"), rows_of(2))
    run_batch(options, 2, rows_of(2))
    assert committed(guarded, topic) == wanted(3)
    check_stable(guarded, topic)


@pytest.mark.parametrize("missing", NEEDED, ids=".".join)
def test_a_plan_without_one_of_the_permissions_is_refused(guarded, principal, options, topic, sink, missing):
    """The error names all that are needed, and nothing is written."""
    with ExitStack() as stack:
        if missing.operation == "DESCRIBE":
            principal.allow(*NEEDED)
            stack.enter_context(principal.denied(missing))
        else:
            principal.allow(*(each for each in NEEDED if each != missing))
        with pytest.raises(AuthorizationError) as raised:
            plan_batch(SinkOptions.parse(options), log)
    assert needed_text(topic, sink) in str(raised.value)
    assert committed(guarded, topic) == wanted(0)
    principal.allow(missing)
    run_batch(options, 0, rows_of(0))
    assert committed(guarded, topic) == wanted(1)


def test_a_principal_that_may_only_read_is_refused_by_the_plan(guarded, principal, options, topic, sink):
    guarded.create_topic(f"{sink}-decisions", 1, config={"cleanup.policy": "compact"})
    principal.allow(*READ_ONLY)
    with pytest.raises(AuthorizationError) as raised:
        plan_batch(SinkOptions.parse(options), log)
    assert f"No permission for Write on topic '{sink}-decisions'. " + needed_text(topic, sink) in str(raised.value)


def test_a_decision_topic_that_exists_needs_no_permission_to_create_it(guarded, principal, options, topic, sink):
    guarded.create_topic(f"{sink}-decisions", 1, config={"cleanup.policy": "compact"})
    principal.allow(*(each for each in NEEDED if each.operation != "CREATE"))
    run_batch(options, 0, rows_of(0))
    assert committed(guarded, topic) == wanted(1)


@pytest.mark.parametrize(
    ("taken", "in_tasks"),
    [
        (Permission(IDS, "WRITE"), True),
        (Permission(IDS, "DESCRIBE"), True),
        (Permission(ROWS, "WRITE"), True),
        (Permission(ROWS, "DESCRIBE"), True),
        (Permission(DECISIONS, "WRITE"), False),
        (Permission(DECISIONS, "DESCRIBE"), False),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, Permission) else "",
)
def test_a_permission_that_is_taken_away_during_a_batch_loses_and_doubles_nothing(
    guarded, principal, options, topic, taken, in_tasks
):
    """The tasks or the commit fail, and nothing is decided; the batch is written when the permission is back."""
    principal.allow(*NEEDED)
    parsed = SinkOptions.parse(options)
    task = TaskOf("query", 0, "run")
    plan = plan_batch(parsed, log)
    refused = pytest.raises(KafkaError, match=r"(?i)not allowed|authoriz|permission")
    if in_tasks:
        with principal.denied(taken), refused:
            write_tasks(parsed, plan, task, rows_of(0))
    else:
        reports = write_tasks(parsed, plan, task, rows_of(0))
        with principal.denied(taken), refused:
            commit_batch(parsed, reports, log)
    run_batch(options, 0, rows_of(0))
    assert committed(guarded, topic) == wanted(1)
    check_stable(guarded, topic)


def test_a_timeout_that_is_too_long_is_found_by_the_task_without_a_permission_for_the_cluster(
    guarded, principal, options
):
    principal.allow(*NEEDED)
    parsed = SinkOptions.parse({**options, "transaction.timeout.ms": "900001"})
    plan = plan_batch(parsed, log)
    with pytest.raises(ConfigurationError, match=r"the brokers allow at most less \(transaction\.max"):
        write_tasks(parsed, plan, TaskOf("query", 0, "run"), rows_of(0))
    principal.allow(Permission(CLUSTER, "DESCRIBE_CONFIGS"))
    with pytest.raises(ConfigurationError, match=r"the brokers allow at most 900000 ms \(transaction\.max"):
        plan_batch(SinkOptions.parse({**options, "transaction.timeout.ms": "900002"}), log)


def test_the_list_needs_less_than_the_recovery(guarded, principal, options, topic, sink, tmp_path, capfd):
    principal.allow(*NEEDED)
    with killed_at("decided", options, 0, tmp_path):
        pass
    principal.revoke_all()
    principal.allow(Permission(DECISIONS, "READ"), Permission(DECISIONS, "DESCRIBE"), Permission(IDS, "DESCRIBE"))
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in credentials(guarded).items()))
    common = [sink, "--decision-topic", f"{sink}-decisions", "--config", str(properties)]
    capfd.readouterr()

    def is_listed() -> bool:
        assert main(["spark-sink", "list", *common]) == 0
        return "unfinished (2)" in capfd.readouterr().out

    # Kafka answers EndTxn before the markers are written, and the list ends at the first open transaction.
    eventually(is_listed, "the decision is listed")
    assert main(["spark-sink", "recover", *common]) != 0
    assert re.search(r"(?i)not allowed|authoriz|permission", capfd.readouterr().err)
    principal.allow(*NEEDED)
    assert main(["spark-sink", "recover", *common]) == 0
    assert committed(guarded, topic) == wanted(1)
