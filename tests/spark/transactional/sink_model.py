"""Spark and the sink on the model of Kafka: drivers, workers, commit processes, and what may happen to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from aioproducer.errors import KafkaError
from aioproducer.record import HeaderPair
from aioproducer.spark.transactional.cluster import OpenTransaction, Row, Verdict
from aioproducer.spark.transactional.decisions import (
    Handle,
    Identity,
    RowRange,
    TopicRecord,
)
from aioproducer.spark.transactional.flows import Committer, Planner
from aioproducer.spark.transactional.rules import (
    Plan,
    Slots,
    TaskReport,
    committer_id,
    task_id,
    task_pattern,
)
from aioproducer.spark.transactional.table import DecisionTable
from tests.spark.transactional.kafka_model import Kafka, Process, RefusedError, World

SINK = "orders"
QUERY = "query"
DECISIONS = "decisions"
TOPICS = ("rows-0", "rows-1")
BATCHES = 3
ROWS = 4
PIECE = 1
MOST_STEPS = 30_000


class ViolationError(AssertionError):
    """The model has found what must not happen."""


class ModelCluster:
    """``SinkCluster`` on the model; one object is one client."""

    def __init__(self, world: World, kafka: Kafka) -> None:
        self.world = world
        self.kafka = kafka
        self.sink = SINK
        self.version = kafka.version
        self.committer = committer_id(SINK)
        self.current: Identity | None = None
        self.sequences: Counter[str] = Counter()
        self.used = False

    def now_ms(self) -> int:
        return self.world.steps

    async def reached(self, point: str) -> None:
        self.world.note(point)

    async def take_over(self) -> None:
        self.start_as(await self.world.call(lambda: self.kafka.init(self.committer)))

    async def continue_as(self, identity: Identity) -> None:
        self.start_as(identity)

    def start_as(self, identity: Identity) -> None:
        self.current, self.used = identity, False
        self.sequences.clear()

    async def high_watermark(self) -> int:
        return await self.world.call(lambda: len(self.kafka.partition(DECISIONS).log))

    async def read_up_to(self, table: DecisionTable, stop: int) -> None:
        partition = self.kafka.partition(DECISIONS)
        found = await self.world.call(
            lambda: partition.committed(table.position, stop), ready=lambda: partition.last_stable_offset >= stop
        )
        for offset, entry in found:
            table.apply(offset, entry.key, entry.value)
        table.position = stop

    async def append(self, records: Sequence[TopicRecord]) -> int:
        offset = -1
        for record in records:
            offset = await self.write(DECISIONS, record.key, record.value)
        return offset

    async def append_rows(self, where: RowRange, rows: Sequence[Row]) -> int:
        for row in rows:
            await self.write(where.topic, row.key, row.value)
        return len(rows)

    async def write(self, where: str, key: bytes | None, value: bytes | None) -> int:
        if self.used:
            await self.bump()
        identity, sequence = self.identity_now(), self.sequences[where]
        self.sequences[where] += 1
        return await self.world.call(
            lambda: self.kafka.produce(self.committer, identity, where, sequence, key, value), again=True
        )

    def identity_now(self) -> Identity:
        assert self.current is not None
        return self.current

    async def bump(self) -> None:
        """The first generation has one transaction an epoch."""
        expected = self.identity_now()
        self.start_as(await self.world.call(lambda: self.kafka.init(self.committer, expected)))

    async def commit(self) -> None:
        identity = self.identity_now()
        following = await self.world.call(
            lambda: self.kafka.end(self.committer, identity, True, self.version), again=True
        )
        self.ended(following)

    def ended(self, following: Identity) -> None:
        if self.version >= 2:
            self.start_as(following)
        else:
            self.used = True

    async def identity(self) -> Identity:
        if self.used:
            await self.bump()
        return self.identity_now()

    async def is_committer(self, identity: Identity) -> bool:
        return await self.world.call(lambda: self.kafka.ids[self.committer].identity == identity)

    async def abort_committer(self, identity: Identity) -> bool:
        return await self.ended_as(self.committer, identity, False)

    async def ended_as(self, transactional_id: str, identity: Identity, commit: bool) -> bool:
        try:
            await self.world.call(lambda: self.kafka.end(transactional_id, identity, commit, self.version), again=True)
        except RefusedError:
            return False
        return True

    async def describe(self, handles: Sequence[Handle]) -> list[OpenTransaction | None]:
        found: list[OpenTransaction | None] = []
        for handle in handles:
            known = await self.world.call(lambda handle=handle: self.kafka.ids.get(handle.transactional_id))
            is_open = known is not None and known.state == "Ongoing"
            found.append(OpenTransaction(handle.transactional_id, known.identity, 0, 1) if known and is_open else None)
        return found

    async def end(self, handles: Sequence[Handle], commit: bool) -> list[bool]:
        return [await self.ended_as(each.transactional_id, each.identity, commit) for each in handles]

    async def list_open(self) -> list[OpenTransaction]:
        found = await self.world.call(lambda: self.kafka.open_ids(task_pattern(SINK)))
        return [OpenTransaction(name, identity, 0, 1) for name, identity in found]

    async def abort_open(self, found: Sequence[OpenTransaction]) -> None:
        for each in found:
            await self.ended_as(each.transactional_id, each.identity, False)

    async def fence_open(self, found: Sequence[OpenTransaction]) -> None:
        for each in found:
            await self.world.call(lambda each=each: self.kafka.init(each.transactional_id))

    async def verdict(self, handle: Handle, where: RowRange) -> Verdict:
        partition = self.kafka.partition(where.topic)
        committed = await self.world.call(lambda: partition.verdict(handle.producer_id, where.last_offset))
        return Verdict.UNKNOWN if committed is None else Verdict.COMMITTED if committed else Verdict.ABORTED

    async def rows_of(self, handle: Handle, where: RowRange, after: int) -> list[Row]:
        if self.version >= 2 and (handle.transactional_id, handle.identity) not in self.kafka.timed_out:
            raise ViolationError(f"{handle.transactional_id} was aborted by the sink after its decision")
        log = self.kafka.partition(where.topic).log

        def read() -> list[Row]:
            return [
                Row(offset, entry.key, entry.value, NO_HEADERS, 0)
                for offset, entry in enumerate(log[: where.last_offset + 1])
                if entry is not None
                and offset > after
                and (entry.producer_id, entry.epoch, entry.marker) == (*handle.identity, None)
            ]

        return (await self.world.call(read))[:PIECE]


NO_HEADERS: tuple[HeaderPair, ...] = ()


class Worker:
    """A Python process of an executor."""

    def __init__(self, random: Random) -> None:
        self.name = f"{random.getrandbits(128):032x}"
        self.slots = Slots()


class Sink:
    """The protocol as it is; wrong versions override its parts."""

    cluster: type[ModelCluster] = ModelCluster
    planner: type[Planner] = Planner
    committer: type[Committer] = Committer
    slots: type[Slots] = Slots

    def transactional_id(self, worker: Worker, slot: int, task: int, attempt: int) -> str:
        return task_id(SINK, worker.name, slot)

    def rows_to_write(self, plan: Plan, key: str, batch_id: int, run_id: str, task: int) -> bool:
        return plan.writes(key, batch_id, run_id)


class Model:
    """One seed: a query of some batches, which is killed and started again until all are in the checkpoint."""

    def __init__(self, seed: int, version: int, sink: Sink) -> None:
        self.random = Random(seed)
        self.sink = sink
        self.world = World(self.random)
        self.kafka = Kafka(version)
        self.checkpoint = 0
        self.starts = 0
        self.workers: list[Worker] = []
        self.drivers: list[Process] = []
        self.helpers: list[Process] = []
        world = self.world
        # Some errors need many kills, others time between them.
        world.disturbances, often = (self.random.randrange(1, 14), 3) if seed % 2 else (self.random.randrange(1, 8), 1)
        world.events = [
            (0.003 * often, self.disturbing(self.kill_driver)),
            (0.004, self.disturbing(self.second_driver)),
            (0.006, self.disturbing(self.time_out)),
            (0.004 * often, self.disturbing(self.kill_helper)),
            (0.012, self.disturbing(self.stall)),
            (0.006, lambda: self.kafka.partition(DECISIONS).compact()),
            (0.004, self.other_sink),
        ]

    def disturbing(self, event: Callable[[], bool]) -> Callable[[], None]:
        def disturb() -> None:
            if self.world.disturbances and event():
                self.world.disturbances -= 1
                self.world.note(event.__name__)

        return disturb

    # What happens

    def kill_driver(self) -> bool:
        alive = [each for each in self.drivers if not each.over]
        if not alive:
            return False
        self.world.kill(self.random.choice(alive))
        if self.random.random() < 0.5:
            for each in self.helpers:
                if self.random.random() < 0.5:
                    self.world.kill(each)
        return True

    def kill_helper(self) -> bool:
        alive = [each for each in self.helpers if not each.over]
        if not alive:
            return False
        self.world.kill(self.random.choice(alive))
        return True

    def stall(self) -> bool:
        alive = [each for each in (*self.helpers, *self.drivers) if not each.over]
        if not alive:
            return False
        self.random.choice(alive).stalled_until = self.world.steps + self.random.randrange(10, 200)
        return True

    def second_driver(self) -> bool:
        self.start_driver()
        return True

    def time_out(self) -> bool:
        ongoing = [name for name, known in self.kafka.ids.items() if known.state == "Ongoing"]
        for each in ongoing:
            if self.random.random() < 0.7:
                self.kafka.time_out(each)
        return bool(ongoing)

    def other_sink(self) -> None:
        async def decide() -> None:
            name = "other-committer"
            identity = await self.world.call(lambda: self.kafka.init(name))
            await self.world.call(lambda: self.kafka.produce(name, identity, DECISIONS, 0, b'["other","q",0]', b"{}"))
            await self.world.pause(60)
            await self.world.call(lambda: self.kafka.end(name, identity, True, self.kafka.version))

        self.world.spawn("other", decide())

    # Spark

    def start_driver(self) -> None:
        self.starts += 1
        self.drivers = [each for each in self.drivers if not each.over]
        self.drivers.append(self.world.spawn(f"driver {self.starts}", self.drive(f"run-{self.starts}")))

    def new_cluster(self) -> ModelCluster:
        return self.sink.cluster(self.world, self.kafka)

    def log(self, text: str) -> None:
        self.world.note(text)

    def new_id(self) -> str:
        return f"{self.random.getrandbits(64):x}"

    async def drive(self, run_id: str) -> None:
        table = DecisionTable(SINK)
        batch_id = self.checkpoint
        while batch_id < BATCHES:
            planning = self.helper("plan", self.sink.planner(self.new_cluster(), table, self.log).plan())
            await self.world.until(lambda planning=planning: planning.over)
            if planning.error is not None:
                return
            plan: Plan = planning.result
            reports = await self.run_tasks(plan, batch_id, run_id)
            found = [each for each in reports if each is not None]
            if len(found) == len(reports):
                committer = self.sink.committer(self.new_cluster(), self.log, self.new_id)
                committing = self.helper("commit", committer.commit(found))
                await self.world.until(lambda committing=committing: committing.over)
                failed = committing.error is not None
            else:
                failed = True
            if failed:
                committer = self.sink.committer(self.new_cluster(), self.log, self.new_id)
                aborting = self.helper("abort", committer.abort(found))
                await self.world.until(lambda aborting=aborting: aborting.over)
                return
            await self.world.pause(3)
            batch_id += 1
            self.checkpoint = max(self.checkpoint, batch_id)

    def helper(self, name: str, coroutine: Any) -> Process:
        self.helpers = [each for each in self.helpers if not each.over]
        process = self.world.spawn(name, coroutine)
        self.helpers.append(process)
        return process

    async def run_tasks(self, plan: Plan, batch_id: int, run_id: str) -> list[TaskReport | None]:
        tasks = self.random.randrange(1, 4)
        rows = [b"%d:%d" % (batch_id, number) for number in range(ROWS)]
        parts = [rows[task::tasks] for task in range(tasks)]
        attempts: list[list[Process]] = []
        for task, part in enumerate(parts):
            count = 1 + (self.random.random() < 0.25)
            attempts.append([self.attempt(plan, batch_id, run_id, task, part, number) for number in range(count)])

        def task_over(of: list[Process]) -> bool:
            return any(each.over and each.error is None for each in of) or all(each.over for each in of)

        await self.world.until(lambda: all(task_over(of) for of in attempts))
        return [next((each.result for each in of if each.over and each.error is None), None) for of in attempts]

    def attempt(self, plan: Plan, batch_id: int, run_id: str, task: int, part: list[bytes], number: int) -> Process:
        if not self.workers or self.random.random() < 0.2:
            worker = Worker(self.random)
            worker.slots = self.sink.slots()
            self.workers.append(worker)
        worker = self.random.choice(self.workers)
        return self.helper(f"task {task}", self.write(worker, plan, batch_id, run_id, task, part, number))

    async def write(
        self, worker: Worker, plan: Plan, batch_id: int, run_id: str, task: int, part: list[bytes], number: int
    ) -> TaskReport:
        if self.random.random() < 0.1:
            await self.world.pause(60)
        if not self.sink.rows_to_write(plan, QUERY, batch_id, run_id, task):
            return TaskReport(plan, QUERY, batch_id, run_id, len(part), True, None)
        slot = worker.slots.take(plan.token)
        name = self.sink.transactional_id(worker, slot, task, number)
        identity = await self.world.call(lambda: self.kafka.init(name))
        offsets: dict[str, list[int]] = {}
        sequences: Counter[str] = Counter()
        for row in part:
            where = self.random.choice(TOPICS)
            sequence = sequences[where]
            sequences[where] += 1
            offset = await self.world.call(
                lambda where=where, sequence=sequence, row=row: self.kafka.produce(
                    name, identity, where, sequence, None, row
                ),
                again=True,
            )
            offsets.setdefault(where, []).append(offset)
        worker.slots.release(slot)
        ranges = tuple(RowRange(where, 0, "", of[0], of[-1], len(of)) for where, of in sorted(offsets.items()))
        handle = Handle(name, *identity, plan.version, 0, ranges)
        return TaskReport(plan, QUERY, batch_id, run_id, len(part), False, handle if part else None)

    # The run

    def run(self) -> None:
        """
        Raises:
            ViolationError: a row is lost or there twice, or the sink makes no progress.
        """
        world = self.world
        calm_starts = 0
        try:
            while self.checkpoint < BATCHES or any(not each.over for each in world.processes):
                if all(each.over for each in self.drivers) and self.checkpoint < BATCHES:
                    calm_starts += not world.disturbances
                    if calm_starts > 8 or self.starts > 60:
                        raise ViolationError("no progress: " + "; ".join(world.trace[-12:]))
                    self.start_driver()
                world.step()
                if self.checkpoint >= BATCHES:
                    world.disturbances = 0
                if world.steps > MOST_STEPS:
                    raise ViolationError("it does not end: " + "; ".join(world.trace[-12:]))
            self.recover()
            self.check()
        finally:
            for each in world.processes:
                each.coroutine.close()

    def recover(self) -> None:
        """What ``spark-sink recover`` does when no worker is alive; late calls arrive before."""
        while self.world.late:
            self.world._arrive(self.world.late.pop())
        process = self.helper("recover", self.sink.planner(self.new_cluster(), DecisionTable(SINK), self.log).plan())
        while not process.over:
            self.world.step()
        if process.error is not None:
            raise ViolationError(f"recovery fails: {process.error}")

    def check(self) -> None:
        found: Counter[bytes] = Counter()
        for topic in TOPICS:
            partition = self.kafka.partition(topic)
            if partition.open:
                raise ViolationError(f"{topic} has open transactions after the recovery")
            found.update(entry.value or b"" for _, entry in partition.committed(0, len(partition.log)))
        wanted = Counter(b"%d:%d" % (batch, number) for batch in range(BATCHES) for number in range(ROWS))
        if found != wanted:
            raise ViolationError(f"lost: {sorted(wanted - found)}, twice: {sorted(found - wanted)}")


def explore(sink: Sink, seeds: Sequence[int], version: int) -> tuple[int, str] | None:
    """Return the first seed with a violation, and what it is; None if there is none."""
    for seed in seeds:
        try:
            Model(seed, version, sink).run()
        except ViolationError as violation:
            return seed, str(violation)
        except KafkaError as error:
            return seed, f"{type(error).__name__}: {error}"
    return None
