"""Consumer groups: members that join, close, are killed, are slow, and are cancelled; they process or transform."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from random import Random

from aioproducer import Consumer, Producer, RebalanceListener, TopicPartition
from aioproducer._client.transactions import Transaction
from aioproducer.consumer import ConsumerRecord
from aioproducer.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)
from aioproducer.testing import StoredRecord
from tests.simulation.embedded.history import CommitHistory, GroupHistory, Tenure
from tests.simulation.embedded.senders import Pace, Recorder
from tests.simulation.embedded.story import RESULTS, SLACK, GroupPlan
from tests.simulation.embedded.transactions import ApplicationError, begin_history
from tests.simulation.embedded.world import ClusterWorld, Overdue

Place = tuple[str, int]

_REFUSALS = (CommitFailedError, FencedInstanceIdError, RebalanceInProgressError)
"""With these the group has no offset of the commit."""

_GRACE = 2.0
"""Seconds that a close may take beyond its own time-out: connections and tasks."""


class Member(RebalanceListener):
    """A process with a consumer of the group, and with a producer if the group transforms."""

    def __init__(self, world: ClusterWorld, plan: GroupPlan, history: GroupHistory, slot: int, number: int) -> None:
        self.name = f"{plan.name}-{slot}.{number}"
        self.history = history
        self._world = world
        self._plan = plan
        self._random = Random(world.random.random())
        self._tenures: dict[Place, Tenure] = {}
        self._in_progress: list[ConsumerRecord] = []
        self._is_killed = False
        self._pace = Pace(world.loop, plan.pace)
        transport = world.network.endpoint(self.name)
        common = {"bootstrap_servers": world.bootstrap_servers, "client_id": self.name}
        instance = {"group_instance_id": f"{plan.name}-{slot}"} if plan.is_static else {}
        self._consumer = Consumer(transport=transport, **{**plan.config, **common, **instance})
        self._producer: Producer | None = None
        if plan.producer is not None:
            config = {**plan.producer.config, **common, "transactional_id": f"{plan.name}-{slot}"}
            self._producer = Producer(transport=transport, **config)
            self._recorder = Recorder(world, plan.producer, self.name, {})
        self.task = asyncio.create_task(self._run(), name=self.name)

    # Rebalances

    async def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """The tenures of these partitions begin."""
        generation = self._consumer.group_metadata().generation_id
        for each in sorted(partitions):
            place = each.topic, each.partition
            if place in self._tenures:
                self._world.violated("one tenure at a time", f"{self.name} gets {place}, which it has")
            tenure = Tenure(self.name, place, self._world.loop.time(), generation)
            self._tenures[place] = tenure
            self.history.tenures.append(tenure)
        self._world.note(f"{self.name} gets {sorted(each.partition for each in partitions)}")

    async def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Commit what is processed, and end the tenures of these partitions."""
        if self._is_killed:
            return
        if self._plan.commits_itself and self._producer is None:
            await self._commit(partitions)
        self._end(partitions)

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """End the tenures of these partitions."""
        self._end(partitions)

    def _end(self, partitions: Iterable[TopicPartition]) -> None:
        for each in sorted(partitions):
            tenure = self._tenures.pop((each.topic, each.partition), None)
            if tenure is None:
                self._world.violated("one tenure at a time", f"{self.name} loses {each}, which it does not have")
            else:
                tenure.ended_at = self._world.loop.time()
        self._world.note(f"{self.name} loses {sorted(each.partition for each in partitions)}")

    # Records

    async def _run(self) -> None:
        try:
            if self._producer is not None:
                await self._init(self._producer)
            await self._consumer.start()
            self._consumer.subscribe(self.history.topics, listener=self)
            while True:
                if not self.history.is_ending:
                    await self._pace.begin()
                await (self._process() if self._producer is None else self._transform(self._producer))
        except KafkaError as error:
            self._world.note(f"{self.name} fails: {error!r}")
            is_fenced = self._producer is not None and not self._producer.is_usable
            if self._plan.is_static:
                # A coordinator that could not write a rebalance leaves the next one an older member id of the instance.
                is_fenced |= isinstance(error, FencedInstanceIdError)
            if not (is_fenced or isinstance(error, KafkaTimeoutError)):
                self._world.violated("no failure without a cause", f"{self.name}: {error!r}")
        except Overdue:
            return

    async def _poll(self) -> bool:
        """Request records in one of the ways that there are; return whether some came."""
        random, consumer = self._random, self._consumer
        if random.random() < 0.3 and not self.history.is_ending:
            try:
                async with asyncio.timeout(random.choice([0.001, 0.1, 1.0])):
                    self._returned([await anext(consumer)])
            except TimeoutError:
                return False
        else:
            timeout = random.uniform(0, 0.5)
            bound = timeout + self._plan.longest_rebalance
            async with self._world.within(bound, f"poll of {self.name}"):
                most = 500 if self.history.is_ending else random.choice([1, 5, 50])
                found = await consumer.poll(timeout, max_records=most)
            self._returned(record for records in found.values() for record in records)
        return bool(self._in_progress)

    def _returned(self, records: Iterable[ConsumerRecord]) -> None:
        self._in_progress = list(records)
        for record in self._in_progress:
            place = record.topic, record.partition
            tenure = self._tenures.get(place)
            if tenure is None:
                self._world.violated("records belong to a tenure", f"{self.name} was given {place} {record.offset}")
                continue
            tenure.runs[-1].append((record.offset, record.value))

    def _processed(self) -> None:
        now = self._world.loop.time()
        for record in self._in_progress:
            places = self.history.processed.setdefault((record.topic, record.partition), [])
            places.append((now, record.offset))
        self._in_progress = []

    async def _process(self) -> None:
        random, plan = self._random, self._plan
        if await self._poll() and random.random() < 0.3 and not self.history.is_ending:
            # A slow handler.
            await asyncio.sleep(random.expovariate(1 / plan.pause))
        self._processed()
        if plan.commits_itself and random.random() < 0.3:
            if random.random() < 0.2:
                await self._commit_and_cancel()
            else:
                await self._commit(())
        elif random.random() < 0.1 and not self.history.is_ending:
            await asyncio.sleep(random.uniform(0, 0.3))

    # Commits

    async def _commit_and_cancel(self) -> None:
        task = asyncio.ensure_future(self._commit(()))
        await asyncio.sleep(self._random.expovariate(20))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _commit(self, revoked: Collection[TopicPartition]) -> None:
        """Commit what was returned, all of which is processed; of the revoked partitions only, if there are some."""
        names = {(each.topic, each.partition) for each in revoked} or self._tenures.keys()
        offsets = {
            place: tenure.next_offset
            for place, tenure in self._tenures.items()
            if place in names and tenure.next_offset is not None
        }
        if not offsets:
            return
        commit = self._begin_commit(offsets)
        chosen = {TopicPartition(*place): offset for place, offset in offsets.items()}
        # Without offsets a call commits those of all partitions.
        takes_all = not revoked and self._random.random() < 0.5
        try:
            async with self._world.within(self._plan.longest_close, f"commit of {self.name}"):
                await self._consumer.commit(None if takes_all else chosen)
        except _REFUSALS:
            commit.outcome = "refused"
        except KafkaError as error:
            self._world.note(f"{self.name} commits: {type(error).__name__}")
        except Overdue:
            return
        else:
            commit.outcome = "accepted"
        commit.ended_at = self._world.loop.time()

    def _begin_commit(self, offsets: dict[Place, int]) -> CommitHistory:
        commit = CommitHistory(self.name, offsets, self._world.loop.time())
        self.history.commits.append(commit)
        return commit

    # Transformations

    async def _init(self, producer: Producer) -> None:
        await producer.start()
        while True:
            try:
                await producer.init_transactions()
            except KafkaTimeoutError:
                continue
            return

    async def _transform(self, producer: Producer) -> None:
        if not await self._poll():
            return
        batches: dict[Place, list[ConsumerRecord]] = {}
        for record in self._in_progress:
            batches.setdefault((record.topic, record.partition), []).append(record)
        self._in_progress = []
        history = None
        try:
            async with producer.transaction() as transaction:
                history = begin_history(self._recorder)
                self._world.history.blocks.append((history, transaction))
                for place, records in batches.items():
                    for record in records:
                        value = self._recorder.next_value(self._random)
                        self.history.origins[value] = place, record.offset
                        if self._recorder.submit(transaction, RESULTS, value, None, place[1], history) is None:
                            raise ApplicationError
                if self._random.random() < 0.3 and not self.history.is_ending:
                    await asyncio.sleep(self._random.expovariate(1 / self._plan.pause))
                if self._random.random() < 0.1:
                    raise ApplicationError
                await self._send_offsets(transaction, batches)
            history.outcome = "committed"
        except (KafkaError, ApplicationError) as error:
            self._world.note(f"{self.name} transforms: {type(error).__name__}")
            if not producer.is_usable:
                raise
            await self._go_back(batches)

    async def _send_offsets(self, transaction: Transaction, batches: dict[Place, list[ConsumerRecord]]) -> None:
        offsets = {place: records[-1].offset + 1 for place, records in batches.items()}
        commit = self._begin_commit(offsets)
        chosen = {TopicPartition(*place): offset for place, offset in offsets.items()}
        try:
            await transaction.send_offsets(chosen, self._consumer.group_metadata())
        except KafkaError:
            # The transaction has another outcome than a commit.
            commit.outcome = "refused"
            raise
        else:
            # That the group has accepted the offsets does not mean that they are committed.
            commit.outcome = "accepted"
        finally:
            commit.ended_at = self._world.loop.time()

    async def _go_back(self, batches: Iterable[Place]) -> None:
        """Continue at the committed offsets, which wait for the outcome of a transaction that is still being ended."""
        consumer = self._consumer
        assigned = [name for name in map(TopicPartition._make, batches) if name in consumer.assignment()]
        if not assigned:
            return
        for partition, committed in (await consumer.committed(*assigned)).items():
            if partition not in consumer.assignment():
                continue
            if committed is None:
                consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, committed)
            tenure = self._tenures.get((partition.topic, partition.partition))
            if tenure is not None:
                tenure.runs.append([])

    # The end

    async def close(self) -> None:
        """End after the records in progress."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if self._producer is None:
            self._processed()
        plan = self._plan
        with suppress(Overdue):
            async with self._world.within(plan.longest_close + _GRACE, f"close of {self.name}"):
                await self._consumer.close(plan.longest_close)
        if self._producer is not None and plan.producer is not None:
            bound = plan.producer.longest_send + plan.producer.longest_end + _GRACE
            with suppress(Overdue):
                async with self._world.within(bound, f"close of the producer of {self.name}"):
                    await self._producer.close()

    async def kill(self) -> None:
        """End as by SIGKILL: nothing more reaches the cluster."""
        self._is_killed = True
        self._world.network.kill(self.name)
        self.task.cancel()
        await asyncio.wait([self.task])
        with suppress(Overdue):
            async with self._world.within(_GRACE, f"end of {self.name}"):
                await self._consumer.close(0.0, group_membership_operation="remain_in_group")
                if self._producer is not None:
                    await self._producer.close(0)


class Group:
    """The members of a group, and what happens to them."""

    def __init__(self, world: ClusterWorld, plan: GroupPlan, topics: list[str], random: Random) -> None:
        self.plan = plan
        self.history = GroupHistory(
            plan.name,
            plan.config["isolation_level"] == "read_committed",
            plan.commits_itself,
            plan.producer is not None,
            topics,
        )
        world.history.groups.append(self.history)
        self._world = world
        self._random = random
        self._members: dict[int, Member] = {}
        self._count = 0

    async def run(self, until: float) -> None:
        """Let members come and go until a loop time."""
        for slot in range(self._random.randint(1, self.plan.members)):
            self._start(slot)
        while True:
            pause = self._random.expovariate(self.plan.event_rate)
            rest = until - self._world.loop.time()
            await asyncio.sleep(max(0.0, min(pause, rest)))
            if pause >= rest:
                return
            await self._reap()
            await self._disturb()

    def _start(self, slot: int) -> None:
        self._count += 1
        self._members[slot] = Member(self._world, self.plan, self.history, slot, self._count)

    async def _disturb(self) -> None:
        world, random, name = self._world, self._random, self.plan.name
        event = random.choice(["join", "join", "join", "close", "kill", "rebalance", "expire", "move"])
        running = list(self._members)
        free = [slot for slot in range(self.plan.members) if slot not in self._members]
        world.note(f"{name}: {event}")
        match event:
            case "join" if free:
                self._start(random.choice(free))
            case "close" if running:
                await self._members.pop(random.choice(running)).close()
            case "kill" if running and self.plan.has_kills:
                await self._members.pop(random.choice(running)).kill()
            case "rebalance" | "expire" | "move":
                # There is no group yet, or its coordinator is not up, or still loading.
                with suppress(KafkaError, IndexError):
                    self._change(event)

    def _change(self, event: str) -> None:
        world, name = self._world, self.plan.name
        if event == "rebalance":
            world.rebalance(name)
        elif event == "move":
            world.drop_coordinator(name)
        else:
            members = list(world.members(name))
            if members:
                world.expire_session(name, self._random.choice(members))

    async def _reap(self) -> None:
        """Remove the members whose process has ended: another one may take their place."""
        for slot, member in list(self._members.items()):
            if member.task.done():
                del self._members[slot]
                await member.kill()
                member.task.result()

    def sample(self) -> None:
        """Note which offsets the group has."""
        try:
            offsets = self._world.committed(self.plan.name)
        except (KafkaError, IndexError):
            # No coordinator is up, or it is loading the group.
            return
        found = {(where.topic, where.partition): offset for where, offset in offsets.items()}
        samples = self.history.samples
        if not samples or samples[-1][1] != found:
            samples.append((self._world.loop.time(), found))

    async def finish(self, logs: dict[Place, list[StoredRecord]]) -> None:
        """Wait until the group has processed or transformed these logs, then close its members."""
        ends = {
            place: records[-1].offset + 1
            for place, records in logs.items()
            if place[0] in self.history.topics and records
        }
        self.history.is_ending = True
        bound = 3 * self.plan.longest_rebalance + SLACK
        reached, since = 0, self._world.loop.time()
        while not self._is_at(ends):
            if self._reached() > reached:
                reached, since = self._reached(), self._world.loop.time()
            elif self._world.loop.time() > since + bound:
                self._world.violated("progress", f"{self.plan.name} has processed no record for {bound:g} s: {ends}")
                break
            await self._reap()
            if not self._members:
                self._start(0)
            await asyncio.sleep(0.05)
        for member in self._members.values():
            await member.close()
            if not member.task.cancelled():
                member.task.result()
        self.sample()

    def _reached(self) -> int:
        """A number that grows with each record."""
        history = self.history
        if history.transforms:
            return sum(history.samples[-1][1].values()) if history.samples else 0
        return sum(map(len, history.processed.values()))

    def _is_at(self, ends: dict[Place, int]) -> bool:
        history = self.history
        if not history.transforms:
            processed = history.processed
            # The last one may have come from a member that had lost the partition.
            reached = {place: max(offset for _, offset in processed[place]) for place in processed}
            return all(reached.get(place, -1) + 1 >= end for place, end in ends.items())
        self.sample()
        offsets = history.samples[-1][1] if history.samples else {}
        return all(offsets.get(place, 0) >= end for place, end in ends.items())
