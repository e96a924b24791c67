"""What the parts of ``Admin`` share: its client, its retries, calls that run at the same time, and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

from aioproducer.errors import BrokerError, KafkaError, broker_error
from aioproducer.io.client import BrokerClient
from aioproducer.offsets import numbers_by_topic

T = TypeVar("T")


class AdminCalls:
    """What ``Admin`` implements for its parts."""

    @property
    def client(self) -> BrokerClient:
        raise NotImplementedError

    async def _retrying(self, ask: Callable[[float], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def _check_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        raise NotImplementedError

    async def _check_topics(self, partitions: Iterable[tuple[str, int]]) -> None:
        """
        Raises:
            NoSuchTopicError: there is no such topic or partition.
        """
        for topic, numbers in numbers_by_topic(partitions).items():
            await self._check_partitions(topic, numbers)

    async def _at_brokers(
        self, ask: Callable[[int, float], Awaitable[None]], done: Container[int], timeout: float
    ) -> list[int]:
        """Call ``ask`` with each broker that is not in ``done``; return all brokers that the cluster has now."""
        deadline = asyncio.get_running_loop().time() + timeout
        brokers = await self.client.broker_ids(timeout)
        left = max(deadline - asyncio.get_running_loop().time(), 0)
        await run_all([ask(node_id, left) for node_id in brokers if node_id not in done])
        return brokers


async def run_all(calls: Sequence[Awaitable[None]]) -> None:
    """Await all calls at the same time.

    Raises:
        KafkaError: one has failed; all have ended. An error that is not retriable takes precedence.
    """
    errors: list[KafkaError] = []

    async def run(call: Awaitable[None]) -> None:
        try:
            await call
        except KafkaError as error:
            errors.append(error)

    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(run(call))
    except* ValueError as rejected:
        raise rejected.exceptions[0] from None
    raise_first(errors)


def raise_first(errors: Sequence[KafkaError]) -> None:
    """Raise one of the errors, if there are any.

    Raises:
        KafkaError: the first that is not retriable, else the first.
    """
    if errors:
        raise next((error for error in errors if not error.retriable), errors[0])


def named_error(
    what: str, code: int, explanations: Mapping[int, str] | None = None, message: str | None = None
) -> BrokerError:
    """Return the error of one item of a response."""
    error = broker_error(code, message)
    explanation = None if explanations is None else explanations.get(code)
    text = str(error) if explanation is None else f"{explanation} [{error.error_name}, {code}]"
    error.args = (f"{what}: {text}",)
    return error


def check_not_str(name: str, value: object) -> None:
    """
    Raises:
        TypeError: an iterable of strings is a single string.
    """
    if isinstance(value, str):
        raise TypeError(f"{name} must be an iterable of strings, not str: pass [{value!r}]")
