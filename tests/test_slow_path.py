"""The slow path of a send, without a producer: which records take it, and how async serializers end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioproducer import Producer, Record
from aioproducer._client.slow_path import abandon


class OnSend:
    def on_send(self, record: Record) -> Record:
        return record


class OnAcknowledgement:
    def on_acknowledgement(self, metadata: object, exception: BaseException | None) -> None: ...


@pytest.mark.parametrize(
    ("configuration", "plain", "intercepts"),
    [
        ({}, True, False),
        ({"key_serializer": str.encode}, False, False),
        ({"value_serializer": str.encode}, False, False),
        ({"interceptor_classes": [OnSend]}, False, True),
        ({"interceptor_classes": [OnAcknowledgement]}, False, True),
    ],
)
def test_records_are_plain_only_without_serializers_and_interceptors(
    configuration: dict[str, Any], plain: bool, intercepts: bool
) -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1", **configuration)
    assert (producer._plain, producer._intercepts) == (plain, intercepts)


async def test_the_exception_of_an_abandoned_coroutine_is_not_reported() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: reported.append(context))
    tasks = asyncio.all_tasks()
    abandon(fail(), loop)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    assert reported == []
