"""Interceptors and serializers put together, without a producer."""

from __future__ import annotations

import asyncio
from typing import Any

from aioproducer.client_log import ClientLog
from aioproducer.config import ProducerConfig
from aioproducer.outgoing import Record
from aioproducer.preparation import Preparation, abandon


def _preparation(**configuration: Any) -> Preparation:
    config = ProducerConfig.from_kwargs(bootstrap_servers="127.0.0.1:1", **configuration)
    return Preparation(config, lambda error: None, ClientLog("Producer", "p"))


class OnSend:
    def on_send(self, record: Record) -> Record:
        return record


class OnAcknowledgement:
    def on_acknowledgement(self, metadata: object, exception: BaseException | None) -> None: ...


def test_it_is_idle_only_without_any_plugin() -> None:
    assert _preparation().is_idle
    assert not _preparation(key_serializer=str.encode).is_idle
    assert not _preparation(value_serializer=str.encode).is_idle
    assert not _preparation(interceptor_classes=[OnSend]).is_idle
    acknowledging = _preparation(interceptor_classes=[OnAcknowledgement])
    assert not acknowledging.is_idle
    assert acknowledging.wants_acknowledgements


async def test_what_an_abandoned_coroutine_raises_is_nobodys_business() -> None:
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
