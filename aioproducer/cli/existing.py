"""Checking that a topic exists before records are sent to it or read from it."""

from __future__ import annotations

from collections.abc import Mapping

from aioproducer._common.diagnosis import nearest
from aioproducer.admin import Admin, NoSuchTopicError, TopicDescription
from aioproducer.cli.exits import CommandError
from aioproducer.errors import TopicExistsError


async def describe_topic(admin: Admin, name: str, advice: str, *, create: bool = False) -> TopicDescription:
    """Return the topic; with ``create``, create a missing one first.

    Raises:
        CommandError: the topic does not exist; the text suggests a similar name, and contains ``advice``.
        KafkaError: the request failed.
    """
    try:
        (topic,) = await admin.describe_topics([name])
    except NoSuchTopicError:
        if not create:
            hint = nearest(name, await admin.list_topics())
            raise CommandError(f"there is no topic {name!r}{f' ({hint})' if hint else ''}: {advice}") from None
        try:
            await admin.create_topic(name)
        except TopicExistsError:
            # Another client created it first.
            pass
        (topic,) = await admin.describe_topics([name])
    return topic


async def require_topic(config: Mapping[str, object], name: str, timeout: float, *, create: bool) -> TopicDescription:
    """Return the topic to send to; see ``describe_topic``."""
    advice = f"create it with --create, or with 'aioproducer topics create {name}'"
    async with Admin.from_config(config, timeout=timeout) as admin:
        return await describe_topic(admin, name, advice, create=create)
