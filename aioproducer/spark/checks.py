"""Checks of the driver before any task starts: the cluster answers, and the topic exists."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable
from typing import TYPE_CHECKING

from aioproducer.admin import Admin, NoSuchTopicError
from aioproducer.errors import ConnectionFailedError, KafkaTimeoutError, NetworkError
from aioproducer.protocol.messages import DescribeConfigsRequest
from aioproducer.protocol.messages.configs import DescribeConfigsResource

if TYPE_CHECKING:
    from aioproducer.spark.options import SinkOptions

logger = logging.getLogger("aioproducer.spark")

_BROKER = 4
_AUTO_CREATE = "auto.create.topics.enable"


class RecentKeys:
    """The last keys that were added; a driver that lives long may write with many options."""

    MOST = 100

    def __init__(self) -> None:
        self._keys: dict[Hashable, None] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Hashable) -> None:
        """Add a key; the oldest one goes if there are too many."""
        self._keys[key] = None
        if len(self._keys) > self.MOST:
            del self._keys[next(iter(self._keys))]


_answered = RecentKeys()


def check_cluster(options: SinkOptions) -> None:
    """Look up the topic within ``check_timeout_ms``; if rows name their topics, only check that the cluster answers.

    This creates no topic. A missing topic is no error if the brokers create topics on demand
    (``auto.create.topics.enable``): the first row creates it, as with every producer.

    No thread and no connection remains.

    Raises:
        KafkaError: there is no answer, or no such topic; the text contains the remedy.
    """
    _run(_ask(options))


def check_cluster_once(options: SinkOptions) -> None:
    """Call ``check_cluster``, unless it has succeeded in this process with these options.

    For micro-batches, which Spark plans in one process. If the cluster is unreachable in the middle of a query, the
    producer waits for it.
    """
    key = (options.config, options.topic)
    if key not in _answered:
        check_cluster(options)
        _answered.add(key)


def _run(coroutine: Coroutine[object, object, None]) -> None:
    """Run a coroutine; ``asyncio.run`` would also wait for a name server that does not answer."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _ask(options: SinkOptions) -> None:
    timeout = options.check_timeout_ms / 1000
    config = dict(options.config)
    async with Admin.from_config(config, timeout=timeout) as admin:
        try:
            if options.topic is None:
                await admin.describe_cluster()
            else:
                await _look_for(admin, options.topic, timeout)
        except (KafkaTimeoutError, ConnectionFailedError, NetworkError) as error:
            raise type(error)(
                f"The cluster at {config['bootstrap.servers']} did not answer within {options.check_timeout_ms} ms "
                f"(check_timeout_ms), so that no task was started. {error}"
            ) from None


async def _look_for(admin: Admin, topic: str, timeout: float) -> None:
    try:
        await admin.describe_topics([topic])
    except NoSuchTopicError:
        created = await _creates_topics(admin, timeout)
        if not created:
            because = "the brokers do not say whether they create" if created is None else "the brokers do not create"
            raise NoSuchTopicError(
                f"There is no topic {topic!r} in this cluster, and {because} topics on demand ({_AUTO_CREATE}), so "
                "that no task was started: check the spelling of the option `topic`, or create the topic."
            ) from None
        logger.warning("There is no topic %r yet: the first row will have the brokers create it.", topic)


async def _creates_topics(admin: Admin, timeout: float) -> bool | None:
    """Return whether a broker creates topics on demand; None if this client may not know."""
    value = await broker_setting(admin, _AUTO_CREATE, timeout)
    return None if value is None else value == "true"


async def broker_setting(admin: Admin, name: str, timeout: float) -> str | None:
    """Return a setting of one broker; None if this client may not know it, or the broker has none of this name."""
    await admin.client.renew_metadata(timeout)
    node = (await admin.describe_cluster()).nodes[0]
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name=str(node.id), configuration_keys=[name])
    request = DescribeConfigsRequest(resources=[resource])
    response = await admin.client.request(request, node_id=node.id, timeout=timeout)
    values = [each.value for result in response.results if not result.error_code for each in result.configs]
    return values[0] if values else None
