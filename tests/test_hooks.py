"""Hooks: which events they get, and that their errors have no effect."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence

import pytest

from aioproducer.hooks import HOOKS, Hooks
from aioproducer.record import Node, TopicPartition

NODE = Node(1, "broker", 9092)
PLACE = TopicPartition("clicks", 3)


def attribute_of(method_name: str) -> str:
    return method_name.removeprefix("on_")


METHODS = {name: vars(hook)[name] for hook in HOOKS for name in vars(hook) if name.startswith("on_")}


def test_each_hook_is_one_method_and_one_attribute() -> None:
    assert len(METHODS) == len(HOOKS)
    assert sorted(attribute_of(name) for name in METHODS) == sorted(Hooks.__slots__)


def test_without_hooks_every_attribute_is_empty() -> None:
    hooks = Hooks()
    assert all(getattr(hooks, attribute) == () for attribute in Hooks.__slots__)


@pytest.mark.parametrize("name", METHODS)
def test_a_hook_is_called_only_for_its_event(name: str) -> None:
    calls: list[tuple[object, ...]] = []
    arity = len(inspect.signature(METHODS[name]).parameters) - 1
    watcher = type("Watcher", (), {name: lambda self, *args: calls.append(args)})()
    hooks = Hooks([watcher])
    assert [a for a in Hooks.__slots__ if getattr(hooks, a)] == [attribute_of(name)]
    (function,) = getattr(hooks, attribute_of(name))
    function(*range(arity))
    assert calls == [tuple(range(arity))]


class Watcher:
    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name

    def on_disconnect(self, node: Node, error: BaseException | None) -> None:
        self.log.append(f"{self.name} lost {node.id}: {error}")

    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        self.log.append(f"{self.name} acked {record_count} of {topic_partition}")


class Failing:
    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        raise ValueError("broken")


def test_all_hooks_are_called_in_order_though_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    hooks = Hooks([Watcher(log, "first"), Failing(), Watcher(log, "last")])
    for on_batch_acked in hooks.batch_acked:
        on_batch_acked(PLACE, 10, 5, 1.5)
    for on_disconnect in hooks.disconnect:
        on_disconnect(NODE, None)
    assert log == [
        "first acked 10 of clicks-3",
        "last acked 10 of clicks-3",
        "first lost 1: None",
        "last lost 1: None",
    ]
    (entry,) = caplog.records
    assert (entry.name, entry.getMessage()) == ("aioproducer", "hook Failing.on_batch_acked failed")
    assert entry.exc_info is not None


def test_a_cancelled_error_of_a_hook_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    class Looks:
        def on_disconnect(self, *arguments: object) -> None:
            raise asyncio.CancelledError

    (on_disconnect,) = Hooks([Looks()]).disconnect
    on_disconnect(NODE, None)
    assert "Looks.on_disconnect failed" in caplog.text


def test_a_plain_function_as_attribute_is_guarded_and_named_too(caplog: pytest.LogCaptureFixture) -> None:
    class Bare:
        @staticmethod
        def on_metadata_updated(nodes: Sequence[Node], topics: Sequence[str]) -> None:
            raise ValueError("broken")

    (function,) = Hooks([Bare()]).metadata_updated
    function([NODE], ["clicks"])
    assert "on_metadata_updated failed" in caplog.text


def test_an_object_without_any_hook_is_rejected_with_the_hook_names() -> None:
    class Misspelt:
        def on_batch_ack(self) -> None: ...

    with pytest.raises(
        TypeError, match=r"a hook must have at least one of on_connect, .*on_batch_acked.*, but .*Misspelt has none"
    ):
        Hooks([Misspelt()])


def test_a_class_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"a hook must be an object, not the class Failing: pass Failing\(\)"):
        Hooks([Failing])


def test_an_object_that_is_not_callable_is_rejected() -> None:
    watcher = type("Watcher", (), {"on_throttle": 5})()
    with pytest.raises(TypeError, match=r"Watcher.on_throttle must be a method, not int"):
        Hooks([watcher])


def test_a_coroutine_function_is_rejected() -> None:
    class Asynchronous:
        async def on_throttle(self, node: Node, throttle_time_ms: int) -> None: ...

    with pytest.raises(TypeError, match=r"Asynchronous.on_throttle must not be a coroutine function"):
        Hooks([Asynchronous()])
