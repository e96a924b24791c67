"""An application with a member of a group, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random

from aioproducer._client.factory import connector_for, node_settings
from aioproducer._common.client_log import ClientLog
from aioproducer.config import ProducerConfig
from aioproducer.core.membership.assignors import ASSIGNORS
from aioproducer.core.membership.events import MembershipSettings
from aioproducer.core.membership.membership import GroupMembership
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.errors import KafkaError
from aioproducer.io.group_member import CoordinatorClient, GroupMember, RebalanceListener
from aioproducer.record import TopicPartition
from aioproducer.transport.base import Connector

LOG = ClientLog("Consumer", "tests")


class Application(RebalanceListener):
    """Requests records continuously, and records the calls of its listener."""

    def __init__(
        self,
        bootstrap_servers: str,
        transport: str | Connector = "tcp",
        assignor: str = "range",
        *,
        topic: str = "orders",
        group_id: str = "group",
        **settings: object,
    ) -> None:
        self.events: list[tuple[str, list[int]]] = []
        self.assignments: list[int] = []
        loop = asyncio.get_running_loop()
        config = ProducerConfig.from_kwargs(
            bootstrap_servers=bootstrap_servers, retry_backoff_ms=5, reconnect_backoff_ms=5
        )
        random = Random(1)
        metadata = ClusterMetadata(
            config.bootstrap_addresses,
            random=random,
            retry_backoff_ms=5,
            retry_backoff_max_ms=50,
            metadata_max_age_ms=300_000,
            metadata_max_idle_ms=300_000,
            metadata_recovery_strategy="none",
            metadata_recovery_rebootstrap_trigger_ms=300_000,
            allow_auto_topic_creation=False,
        )
        connector = connector_for(config, transport)
        client = CoordinatorClient(loop, metadata, connector, node_settings(config, loop, random, LOG), random=random)
        values: dict[str, object] = {
            "session_timeout_ms": 1000,
            "heartbeat_interval_ms": 50,
            "max_poll_interval_ms": 3000,
            "request_timeout_ms": 2000,
            **settings,
        }
        made = MembershipSettings(group_id, **values)  # type: ignore[arg-type]  # the fields by name
        membership = GroupMembership(made, [ASSIGNORS[assignor]()], ExponentialBackoff(10, 100), random)
        membership.subscribe([topic])
        self._client = client
        self._is_due = asyncio.Event()
        self.member = GroupMember(
            client,
            membership,
            control=client,
            listener=self,
            on_assignment=lambda owned, readable: self.assignments.append(len(readable)),
            request_metadata=self._is_due.set,
            backoff=ExponentialBackoff(10, 100),
            random=random,
            log=LOG,
        )
        self._metadata: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def owned(self) -> list[int]:
        return sorted(where.partition for where in self.member.membership.assignment)

    async def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("revoked", partitions)

    async def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("assigned", partitions)

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("lost", partitions)

    def _hear(self, word: str, partitions: Collection[TopicPartition]) -> None:
        self.events.append((word, sorted(where.partition for where in partitions)))

    def join(self) -> None:
        """Join, with an application that asks for no records."""
        self.member.start()
        self._metadata = asyncio.create_task(self._keep_metadata())

    async def _keep_metadata(self) -> None:
        """What the consumer's driver does; twice in a second, to notice new partitions."""
        while True:
            self._is_due.clear()
            try:
                async with asyncio.timeout(0.5):
                    await self._is_due.wait()
            except TimeoutError:
                self._client.metadata.request_update(asyncio.get_running_loop().time(), "its age")
            try:
                await self._client.update_metadata(2)
            except KafkaError as error:
                if not error.retriable:
                    raise
            self.member.metadata_applied()

    def start(self) -> None:
        self.join()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            await self.member.before_records()
            await asyncio.sleep(0.01)

    async def stop(self, timeout: float = 5.0) -> None:
        await self.pause()
        try:
            await self.member.close(timeout)
        finally:
            if self._metadata is not None:
                self._metadata.cancel()
                await asyncio.gather(self._metadata, return_exceptions=True)

    async def pause(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
