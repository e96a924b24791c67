"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs."""

from __future__ import annotations

from collections.abc import Sequence

from aioproducer.protocol.messages import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from aioproducer.protocol.messages.configs import AlterableConfig, AlterConfigsResource, DescribeConfigsResource
from aioproducer.protocol.messages.legacy_configs import AlterableConfig as Setting
from aioproducer.protocol.messages.legacy_configs import AlterConfigsResource as Settings
from tests.interop.differential.scenario import Run, Topic, scenario, versions

_TOPIC = 2
_BROKER = 4

SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3


def _describe(
    name: str,
    keys: Sequence[str] | None = None,
    *,
    kind: int = _TOPIC,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsRequest:
    found = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
    )
    return DescribeConfigsRequest(resources=[found], include_synonyms=synonyms, include_documentation=documentation)


@scenario()
async def describe_configs(run: Run) -> None:
    topic = await run.create(configs={"retention.ms": "77", "cleanup.policy": "compact"})
    for version in versions(DescribeConfigsRequest):
        await run.ask(f"version {version}", _describe(topic.name, synonyms=True), version)
        some = ["retention.ms", "cleanup.policy", "no.such.key", "segment.ms"]
        await run.ask(f"version {version} some", _describe(topic.name, some), version)
        await run.ask(f"version {version} no keys", _describe(topic.name, []), version)
        await run.ask(f"version {version} unknown", _describe(run.name("unknown")), version)
        await run.ask(f"version {version} invalid", _describe("a b"), version)
        await run.ask(f"version {version} empty", _describe(""), version)
        for kind in (0, 1, 3, 64, 127, -1):
            await run.ask(f"version {version} kind {kind}", _describe("x", kind=kind), version)
        await run.ask(f"version {version} nothing", DescribeConfigsRequest(), version)
    await run.ask("documentation", _describe(topic.name, ["retention.ms"], documentation=True))


@scenario()
async def describe_broker_configs(run: Run) -> None:
    keys = [
        "log.retention.ms",
        "num.partitions",
        "auto.create.topics.enable",
        "message.max.bytes",
        "broker.rack",
        "no.such.key",
    ]
    for version in versions(DescribeConfigsRequest):
        for name in ("1", "", "7", "x", "-1"):
            request = _describe(name, keys, kind=_BROKER, synonyms=True)
            await run.ask(f"version {version} broker {name!r}", request, version)
    whole = await run.quietly(_describe("1", kind=_BROKER))
    assert isinstance(whole, DescribeConfigsResponse)
    run.observe("all keys of the broker", {"error_code": whole.results[0].error_code})


def _alter(
    name: str, *changes: tuple[int, str, str | None], kind: int = _TOPIC, validate: bool = False
) -> IncrementalAlterConfigsRequest:
    found = [AlterableConfig(name=key, config_operation=operation, value=value) for operation, key, value in changes]
    return IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=kind, resource_name=name, configs=found)],
        validate_only=validate,
    )


async def _observe_configs(run: Run, label: str, topic: Topic) -> None:
    """Record a topic's configurations after the earlier requests."""
    await run.metadata_caught_up()
    keys = ["retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes", "flush.ms"]
    answer = await run.surely(_describe(topic.name, keys))
    values = {found.name: f"{found.value} {found.config_source}" for found in answer.results[0].configs}
    run.observe(label, values)


@scenario()
async def alter_topic_configs(run: Run) -> None:
    topic = await run.create(configs={"retention.ms": "77", "cleanup.policy": "compact"})

    async def altered(label: str, *changes: tuple[int, str, str | None], validate: bool = False) -> None:
        for version in versions(IncrementalAlterConfigsRequest):
            request = _alter(topic.name, *changes, validate=validate)
            await run.ask(f"version {version} {label}", request, version)
            await _observe_configs(run, f"version {version} {label}, then", topic)

    await altered("set", (SET, "retention.ms", "88"))
    await altered("validated", (SET, "retention.ms", "99"), validate=True)
    await altered("several", (SET, "segment.bytes", "1048576"), (DELETE, "retention.ms", None))
    await altered("delete what is not there", (DELETE, "flush.ms", None))
    await altered("append", (APPEND, "cleanup.policy", "delete"))
    await altered("append what is there", (APPEND, "cleanup.policy", "delete"))
    await altered("subtract", (SUBTRACT, "cleanup.policy", "compact"))
    await altered("subtract what is not there", (SUBTRACT, "cleanup.policy", "compact"))
    await altered("subtract all", (SUBTRACT, "cleanup.policy", "delete"))
    await altered("append to a number", (APPEND, "retention.ms", "1"))
    await altered("unknown key", (SET, "no.such.key", "1"))
    await altered("delete unknown key", (DELETE, "no.such.key", None))
    await altered("bad value", (SET, "segment.bytes", "x"))
    await altered("value too small", (SET, "segment.bytes", "1"))
    await altered("null value", (SET, "segment.bytes", None))
    await altered("null appended", (APPEND, "cleanup.policy", None))
    await altered("a key twice", (SET, "flush.ms", "1"), (SET, "flush.ms", "2"))
    await altered("unknown operation", (7, "flush.ms", "1"))
    await altered("nothing")
    await altered("good and bad", (SET, "flush.ms", "5"), (SET, "no.such.key", "1"))


@scenario()
async def alter_configs_errors(run: Run) -> None:
    topic = await run.create()
    for version in versions(IncrementalAlterConfigsRequest):
        change = (SET, "retention.ms", "5")
        await run.ask(f"version {version} unknown topic", _alter(run.name("unknown"), change), version)
        await run.ask(f"version {version} invalid topic", _alter("a b", change), version)
        await run.ask(f"version {version} empty topic", _alter("", change), version)
        for kind in (0, 1, 3, 64, 127):
            await run.ask(f"version {version} kind {kind}", _alter("x", change, kind=kind), version)
        for name in ("7", "x"):
            await run.ask(f"version {version} broker {name}", _alter(name, change, kind=_BROKER), version)
        twice = _alter(topic.name, change)
        twice.resources = twice.resources * 2
        await run.ask(f"version {version} twice", twice, version)
        await run.ask(f"version {version} nothing", IncrementalAlterConfigsRequest(), version)


@scenario()
async def alter_broker_configs(run: Run) -> None:
    for name in ("1", ""):
        for key, value in (
            ("message.max.bytes", "1048577"),
            ("message.max.bytes", "x"),
            ("num.partitions", "5"),
            ("node.id", "5"),
            ("broker.rack", "west"),
            ("log.retention.ms", "0"),
            ("no.such.key", "5"),
        ):
            request = _alter(name, (SET, key, value), kind=_BROKER, validate=True)
            await run.ask(f"broker {name!r} {key}={value}", request)


def _set(
    name: str, *configs: tuple[str, str | None], kind: int = _TOPIC, validate: bool = False
) -> AlterConfigsRequest:
    found = [Setting(name=key, value=value) for key, value in configs]
    return AlterConfigsRequest(
        resources=[Settings(resource_type=kind, resource_name=name, configs=found)], validate_only=validate
    )


@scenario()
async def set_topic_configs(run: Run) -> None:
    topic = await run.create(configs={"retention.ms": "77", "cleanup.policy": "compact"})

    async def set_to(label: str, *configs: tuple[str, str | None], validate: bool = False) -> None:
        for version in versions(AlterConfigsRequest):
            await run.ask(f"version {version} {label}", _set(topic.name, *configs, validate=validate), version)
            await _observe_configs(run, f"version {version} {label}, then", topic)

    await set_to("others", ("retention.ms", "88"), ("segment.bytes", "1048576"))
    await set_to("validated", ("retention.ms", "99"), validate=True)
    await set_to("one", ("segment.bytes", "1048577"))
    await set_to("unknown key", ("no.such.key", "1"))
    await set_to("bad value", ("segment.bytes", "x"))
    await set_to("value too small", ("segment.bytes", "1"))
    await set_to("null value", ("segment.bytes", None))
    await set_to("null values", ("segment.bytes", None), ("flush.ms", "1"), ("retention.ms", None))
    await set_to("a key twice", ("flush.ms", "1"), ("flush.ms", "2"))
    await set_to("a key twice, once null", ("flush.ms", "1"), ("flush.ms", None))
    await set_to("good and bad", ("flush.ms", "5"), ("no.such.key", "1"))
    await set_to("list", ("cleanup.policy", "compact,delete"))
    await set_to("nothing, validated", validate=True)
    await set_to("nothing")


@scenario()
async def set_configs_errors(run: Run) -> None:
    topic = await run.create()
    given = ("retention.ms", "5")
    for version in versions(AlterConfigsRequest):
        await run.ask(f"version {version} unknown topic", _set(run.name("unknown"), given), version)
        await run.ask(f"version {version} unknown topic and key", _set(run.name("unknown"), ("x", "y")), version)
        await run.ask(f"version {version} unknown topic, nothing", _set(run.name("unknown")), version)
        await run.ask(f"version {version} invalid topic", _set("a b", given), version)
        await run.ask(f"version {version} empty topic", _set("", given), version)
        for kind in (0, 1, 3, 64, 127):
            await run.ask(f"version {version} kind {kind}", _set("x", given, kind=kind), version)
        for name in ("7", "x"):
            await run.ask(f"version {version} broker {name}", _set(name, given, kind=_BROKER), version)
        await run.ask(f"version {version} nothing", AlterConfigsRequest(), version)
    twice = _set(topic.name, given)
    twice.resources = twice.resources * 2
    await run.ask("twice", twice, connection=await run.nodes.connect(), timeout=1)


@scenario()
async def set_broker_configs(run: Run) -> None:
    # With eligible leader replicas (KIP-966) Kafka refuses to remove this one.
    for name, kept in (("1", ()), ("", (("min.insync.replicas", "1"),))):
        for key, value in (
            ("message.max.bytes", "1048577"),
            ("message.max.bytes", "x"),
            ("message.max.bytes", None),
            ("num.partitions", "5"),
            ("node.id", "5"),
            ("log.retention.ms", "0"),
            ("no.such.key", "5"),
        ):
            request = _set(name, *kept, (key, value), kind=_BROKER, validate=True)
            await run.ask(f"broker {name!r} {key}={value}", request)
        await run.ask(f"broker {name!r} nothing", _set(name, *kept, kind=_BROKER, validate=True))
