"""Interceptors and serializers put together, without a producer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioproducer.config import ProducerConfig
from aioproducer.errors import SerializationError
from aioproducer.outgoing import Record
from aioproducer.preparation import Preparation, abandon
from aioproducer.record import RecordHeader


def _preparation(**configuration: Any) -> Preparation:
    return Preparation(ProducerConfig.from_kwargs(bootstrap_servers="127.0.0.1:1", **configuration))


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


async def test_serializers_add_headers_key_first() -> None:
    def adding(name: str, *, later: bool) -> object:
        class Adding:
            def serialize(self, topic: str, value: Any, headers: list[RecordHeader]) -> Any:
                if later:
                    return self.finish(headers)
                headers.append((name, None))
                return b""

            async def finish(self, headers: list[RecordHeader]) -> bytes:
                await asyncio.sleep(0)
                headers.append((name, None))
                return b""

        return Adding()

    own = (("own", b"1"),)
    loop = asyncio.get_running_loop()
    for key_later, value_later in ((False, False), (True, False), (False, True), (True, True)):
        preparation = _preparation(
            key_serializer=adding("key", later=key_later), value_serializer=adding("value", later=value_later)
        )
        prepared = preparation.serialize("t", None, None, own, loop)
        assert (prepared.coroutine is None) == (not key_later and not value_later)
        if prepared.coroutine is not None:
            assert await prepared.coroutine == (b"", b"")
        assert prepared.headers[0] == ("own", b"1")
        assert sorted(name for name, _ in prepared.headers[1:]) == ["key", "value"]
        if key_later == value_later:
            assert [name for name, _ in prepared.headers[1:]] == ["key", "value"]


async def test_a_failed_value_ends_the_keys_coroutine() -> None:
    ended: list[str] = []

    async def slow(value: object) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("key")
        return b""

    def fail(value: object) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(SerializationError):
        _preparation(key_serializer=slow, value_serializer=fail).serialize("t", 1, 1, (), asyncio.get_running_loop())
    for _ in range(3):
        await asyncio.sleep(0)
    assert ended == ["key"]


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
