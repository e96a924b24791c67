"""Whether a topic is there, before anything is sent to it or read from it."""

from __future__ import annotations

from collections.abc import Mapping

from aioproducer._common.diagnosis import nearest
from aioproducer.admin import Admin, NoSuchTopicError, TopicDescription
from aioproducer.cli.exits import CommandError
from aioproducer.errors import TopicExistsError


async def describe_topic(admin: Admin, name: str, advice: str, *, create: bool = False) -> TopicDescription:
    """The topic; one that is not there is created, if that is wanted.

    Raises:
        CommandError: there is none; the text names one that is spelt alike, and has the ``advice``.
        KafkaError: the cluster cannot be asked, or refuses.
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
    """The topic to send to; see ``describe_topic``."""
    advice = f"create it with --create, or with 'aioproducer topics create {name}'"
    async with Admin.from_config(config, timeout=timeout) as admin:
        return await describe_topic(admin, name, advice, create=create)
