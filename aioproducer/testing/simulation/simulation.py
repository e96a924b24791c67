"""``run_simulated``: a user's own coroutines on virtual time, with a cluster and with drawn faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from aioproducer.consumer import Consumer, Reader
from aioproducer.producer import Producer
from aioproducer.testing.simulation.determinism import virtual_time_for
from aioproducer.testing.simulation.loop import VirtualLoop
from aioproducer.testing.simulation.network import Endpoint
from aioproducer.testing.simulation.trouble import FAULTS, Trouble
from aioproducer.testing.simulation.world import LONGEST_PLAY, SimulatedWorld, play
from aioproducer.transaction_pool import TransactionPool

if TYPE_CHECKING:
    from aioproducer.broker import BrokerCluster
    from aioproducer.config import ConsumerConfigDict, ProducerConfigDict
    from aioproducer.consumer.reader import Position

T = TypeVar("T")

KILL_PROCESS = "kill process"
"""The kind of fault that kills a process, and starts it again."""

ALL_FAULTS = (*FAULTS, KILL_PROCESS)

_HEALING = 60.0
"""Seconds after all faults within which replicas are in sync again."""

_LONGEST_FAULT = 3.0
"""Seconds after which a node that was stopped, slow, full or dead works again, at most."""

_LONGEST_PAUSE = 0.5
"""Seconds after which a process that was killed starts again, at most."""

_ENDING = 60.0
"""Seconds for the clean-up of processes at the end, and of the tasks that a process leaves."""

_MOST_CANCELLATIONS = 100
"""Times that the tasks of a process are cancelled at its end: the clean-up of one may make others."""

_MEAN_LATENCY = 0.001

_FOREVER = 1e9
"""Seconds that no simulation takes."""

_LAST_EVENTS = 12
"""Events that the note of an exception has."""

_DEFAULTS = {"replica.lag.time.max.ms": "3000", "replica.fetch.wait.max.ms": "500"}
"""Of the cluster: a dead node leaves the ISR after 3 s, not 30."""


def _name_of(function: object) -> object:
    return getattr(function, "__name__", function)


class SimulationError(AssertionError):
    """The simulation has found something that no program may do, as an exception that no task has received."""


class Process:
    """A program of its own: it has its own connections and tasks, and can be killed.

    ``Simulation.start_process`` makes one.
    """

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        main: Callable[[], Coroutine[Any, Any, object]],
        restart_on: tuple[type[BaseException], ...],
    ) -> None:
        self.name = name
        self.starts = 0
        """How often it was started."""
        self._simulation = simulation
        self._main = main
        self._restart_on = restart_on
        self._run: _Run | None = None

    def __repr__(self) -> str:
        return f"<Process {self.name}, {'running' if self.is_running else 'not running'}, started {self.starts} times>"

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has neither ended nor was killed since."""
        return self._run is not None

    def start(self) -> None:
        """Start it; nothing if it runs."""
        self._simulation.cancel_start(self)
        if self._run is None:
            self.starts += 1
            self._simulation.note(f"{self.name} starts")
            self._run = _Run(self, self._simulation, f"{self.name}.{self.starts}")

    def kill(self) -> None:
        """End it as SIGKILL does: its connections are reset, and nothing that it does reaches the cluster any longer.

        All its tasks are cancelled, also those that it has made in the background.
        Python cannot leave out its clean-up code: that runs without a network. State outside of the process, as that of
        a database, is protected by ``Simulation.on_kill``.
        """
        self._simulation.cancel_start(self)
        run, self._run = self._run, None
        if run is not None:
            self._simulation.note(f"{self.name} is killed")
            run.kill()
            self._simulation.add_killed(run.ended)

    async def stop(self) -> None:
        """Cancel it, and wait until its clean-up is done; its connections work until then.

        As by ``asyncio.run``, the tasks that it leaves are cancelled then. Raises an exception of its clean-up, except
        those of ``restart_on``, and ``SimulationError`` for a task that goes on although it was cancelled.
        """
        error = await self.end()
        if error is not None:
            raise error

    async def end(self) -> BaseException | None:
        """As ``stop``, but return the exception."""
        self._simulation.cancel_start(self)
        run, self._run = self._run, None
        if run is None:
            return None
        run.main.cancel()
        await asyncio.wait([run.ended])
        return None if isinstance(run.error, self._restart_on) else run.error

    def run_ended(self, run: _Run) -> None:
        """Note the end of a run that was neither killed nor stopped, and start it again if that is what it needs."""
        if run is not self._run:
            return
        self._run = None
        error = run.error
        self._simulation.note(f"{self.name} ends: {error!r}")
        if isinstance(error, self._restart_on):
            self._simulation.start_later(self)
        elif error is not None:
            self._simulation.set_failure(error)


class _Run:
    """One run of a process, from its start until no task of it is left."""

    def __init__(self, process: Process, simulation: Simulation, endpoint: str) -> None:
        self.endpoint = endpoint
        self.error: BaseException | None = None
        """The exception that has ended it."""
        self.is_killed = False
        self.when_killed: list[Callable[[], object]] = []
        context = copy_context()
        context.run(_current.set, self)
        self._process = process
        self._simulation = simulation
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Those that are not done, in the order of their creation."""
        self._has_ended = False
        loop = simulation.loop
        self.main: asyncio.Task[Any] = loop.create_task(process._main(), name=endpoint, context=context)
        self.ended = loop.create_task(self._live(), name=f"end of {endpoint}", context=simulation.outside())

    def kill(self) -> None:
        self.is_killed = True
        self._simulation.network.kill(self.endpoint)
        for callback in self.when_killed:
            callback()
        self._cancel_tasks()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Let a new task end with the run; it does not begin if a timer has made it after the end."""
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        if self._has_ended:
            task.cancel()

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if self.is_killed and not task.cancelled():
            # The exception of a process that was killed has no meaning, but counts as received.
            task.exception()

    def _cancel_tasks(self) -> list[asyncio.Task[Any]]:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def _live(self) -> None:
        """Wait for the end of the main coroutine, and end what it has left, as ``asyncio.run`` does."""
        await asyncio.wait([self.main])
        self.error = None if self.main.cancelled() else self.main.exception()
        left = await self._end_tasks()
        self._has_ended = True
        self._simulation.network.leave(self.endpoint)
        if left:
            names = ", ".join(task.get_name() for task in left)
            error = SimulationError(f"tasks of {self.endpoint} go on although they were cancelled: {names}")
            error.__cause__, self.error = self.error, error
        self._process.run_ended(self)

    async def _end_tasks(self) -> list[asyncio.Task[Any]]:
        """Cancel what is left, and return those that do not end."""
        for _ in range(_MOST_CANCELLATIONS):
            tasks = self._cancel_tasks()
            if not tasks:
                break
            _, pending = await asyncio.wait(tasks, timeout=_ENDING)
            if pending:
                break
        return list(self._tasks)


_current: ContextVar[_Run | None] = ContextVar("aioproducer_simulated_process", default=None)


def _add_to_run(task: asyncio.Task[Any], context: Context) -> None:
    run = context.get(_current)
    if run is not None:
        run.add(task)


class Simulation(SimulatedWorld):
    """What the coroutine of ``run_simulated`` receives: a cluster, clients for it, processes, and faults.

    The methods of an ``EmbeddedCluster`` change and read the cluster. Times are virtual: ``asyncio.sleep`` returns as
    soon as nothing else is to be done.
    """

    def __init__(self, loop: VirtualLoop, random: Random, seed: int, **options: Any) -> None:
        super().__init__(loop, random, **options)
        self.seed = seed
        """The seed that draws everything."""
        self._processes: dict[str, Process] = {}
        self._starting: dict[Process, asyncio.TimerHandle] = {}
        self._killed: list[asyncio.Task[Any]] = []
        self._failure: asyncio.Future[None] = loop.create_future()
        loop.when_task_is_made = _add_to_run
        own = Random(random.random())
        self.network.latency = lambda: own.expovariate(1 / _MEAN_LATENCY)
        self.network.connect_latency = lambda: own.expovariate(1 / (3 * _MEAN_LATENCY))

    def outside(self) -> Context:
        """A context that belongs to no process: what runs in it is not cancelled with one."""
        return self.network.context.copy()

    def _call(self, function: Callable[[BrokerCluster], T]) -> T:
        return self.outside().run(super()._call, function)

    # Clients

    @property
    def transport(self) -> Endpoint:
        """The network as the running process has it: ``Producer(transport=simulation.transport, ...)``."""
        run = _current.get()
        return self.network.endpoint("main" if run is None else run.endpoint)

    def producer(self, **config: Unpack[ProducerConfigDict]) -> Producer:
        """A ``Producer`` for this cluster, not yet started."""
        config.setdefault("bootstrap_servers", self.bootstrap_servers)
        return Producer(transport=self.transport, **config)

    def transaction_pool(
        self,
        *,
        transactional_id_prefix: str,
        max_producers: int,
        acquire_timeout_ms: float,
        **config: Unpack[ProducerConfigDict],
    ) -> TransactionPool:
        """A ``TransactionPool`` for this cluster, not yet started."""
        config.setdefault("bootstrap_servers", self.bootstrap_servers)
        return TransactionPool(
            transactional_id_prefix=transactional_id_prefix,
            max_producers=max_producers,
            acquire_timeout_ms=acquire_timeout_ms,
            transport=self.transport,
            **config,
        )

    def consumer(self, *topics: str, **config: Unpack[ConsumerConfigDict]) -> Consumer:
        """A ``Consumer`` for this cluster, not yet started; with topics and a ``group_id`` a member of that group."""
        config.setdefault("bootstrap_servers", self.bootstrap_servers)
        return Consumer(*topics, transport=self.transport, **config)

    def reader(
        self,
        topic: str,
        *,
        start: Position | Mapping[int, Position] = "beginning",
        stop: Position | Mapping[int, Position] | None = None,
        committed: bool = False,
    ) -> Reader:
        """A ``Reader`` of a topic, not yet started; with ``committed`` of committed records only."""
        return Reader(
            topic,
            start=start,
            stop=stop,
            isolation_level="read_committed" if committed else "read_uncommitted",
            transport=self.transport,
            bootstrap_servers=self.bootstrap_servers,
        )

    # Processes

    def start_process(
        self,
        name: str,
        main: Callable[[], Coroutine[Any, Any, object]],
        *,
        restart_on: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Process:
        """Start a coroutine as a process of its own, which faults may kill and start again.

        Clients that it makes have connections of its own, and tasks that it leaves are cancelled at its end. An
        exception that ends it fails the simulation, except those of ``restart_on``: after them it starts again, as by a
        supervisor.

        Raises:
            ValueError: there is a process of this name.
        """
        if name in self._processes:
            raise ValueError(f"there is a process {name!r} already: call its start(), or choose another name")
        classes = restart_on if isinstance(restart_on, tuple) else (restart_on,)
        process = self._processes[name] = Process(self, name, main, classes)
        process.start()
        return process

    def on_kill(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the running process is killed: close what stands for a connection to another service.

        A killed program reaches no database any longer, but its clean-up code runs here; without the callback it could
        change the database.

        Raises:
            RuntimeError: no process is running.
        """
        run = _current.get()
        if run is None:
            raise RuntimeError("on_kill is for code that runs in a process: see start_process")
        if run.is_killed:
            callback()
        else:
            run.when_killed.append(callback)

    def add_killed(self, task: asyncio.Task[Any]) -> None:
        """Wait for the clean-up of a killed process at the end."""
        self._killed.append(task)

    def start_later(self, process: Process) -> None:
        """Start a process again after a drawn pause."""
        pause = self.random.uniform(0, _LONGEST_PAUSE)
        self._starting[process] = self.loop.call_later(pause, process.start)

    def cancel_start(self, process: Process) -> None:
        """Do not start a process after its pause: it is started now, killed or stopped."""
        handle = self._starting.pop(process, None)
        if handle is not None:
            handle.cancel()

    def _kill_a_process(self) -> None:
        running = [process for process in self._processes.values() if process.is_running]
        if running:
            process = self.random.choice(running)
            process.kill()
            self.start_later(process)

    def set_failure(self, error: BaseException) -> None:
        """Let the simulation fail with an exception of a process."""
        if not self._failure.done():
            self._failure.set_exception(error)

    # Faults

    @asynccontextmanager
    async def faults(self, *kinds: str, rate: float = 2.0) -> AsyncIterator[None]:
        """Let faults come while the block runs; behind it everything works again, and all replicas are in sync.

        Args:
            kinds: Kinds of faults, all if there is none: ``"cut"``, ``"cut within"`` (after some bytes),
                ``"half-open"``, ``"stop"``, ``"slow"``, ``"kill"`` (of a node), ``"power loss"`` (with three nodes),
                ``"full disk"``, ``"move leader"``, ``"move coordinator"``, ``"late marker"``, ``"late end"``,
                ``"error"``, ``"delay"``, ``"postpone"``, ``"repeat"``, ``"disconnect"``, ``"throttle"``, and
                ``"kill process"``, which kills one of ``start_process`` and starts it again.
            rate: Faults in a second, on average.

        Raises:
            ValueError: a kind is unknown, or the rate is negative.
            SimulationError: replicas are not in sync within 60 s after the faults.
        """
        unknown = [kind for kind in kinds if kind not in ALL_FAULTS]
        if unknown:
            raise ValueError(f"there is no fault {unknown[0]!r}; there are {', '.join(ALL_FAULTS)}")
        if rate < 0:
            raise ValueError(f"rate must not be negative: {rate}")
        chosen = kinds or ALL_FAULTS
        trouble = Trouble(
            self,
            Random(self.random.random()),
            faults=[kind for kind in chosen if kind != KILL_PROCESS],
            rate=rate * sum(kind != KILL_PROCESS for kind in chosen) / len(chosen),
            longest=_LONGEST_FAULT,
        )
        # A process that has asked for faults may be killed meanwhile, but not the nodes that they have restarted.
        faults = self.loop.create_task(trouble.run(_FOREVER), name="faults", context=self.outside())
        kills_rate = rate / len(chosen) if KILL_PROCESS in chosen else 0.0
        kills = self.loop.create_task(self._kill_processes(kills_rate), name="kills", context=self.outside())
        try:
            yield
        finally:
            trouble.stop()
            kills.cancel()
            await asyncio.wait([faults, kills])
            faults.result()
            await self.loop.create_task(trouble.heal(), name="healing", context=self.outside())
            for process in list(self._starting):
                process.start()
        try:
            await self.until(self.is_in_sync, _HEALING)
        except TimeoutError:
            raise SimulationError(f"replicas are not in sync {_HEALING:g} s after the faults") from None

    async def _kill_processes(self, rate: float) -> None:
        while rate:
            await asyncio.sleep(self.random.expovariate(rate))
            self.note(f"fault: {KILL_PROCESS}")
            self._kill_a_process()

    async def until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait until ``condition`` returns a true value.

        Raises:
            TimeoutError: it does not within ``timeout`` seconds of virtual time.
            TypeError: it is a coroutine function; a coroutine is always true.
        """
        deadline = self.loop.time() + timeout
        while not (value := condition()):
            if self.loop.time() > deadline:
                raise TimeoutError(f"not within {timeout:g} s: {_name_of(condition)}")
            await asyncio.sleep(0.01)
        if asyncio.iscoroutine(value):
            value.close()
            raise TypeError(
                f"the condition of until must be a plain function, not async: {_name_of(condition)} returned a "
                "coroutine, which is always true"
            )

    # The run

    async def play(self, main: Callable[[Simulation], Awaitable[T]]) -> T:
        """Run ``main`` until it returns or a process fails; then stop all processes."""
        try:
            result = await self._run_main(main)
        except BaseException:
            await self._stop_processes()
            raise
        for error in await self._stop_processes():
            raise error
        return result

    async def _run_main(self, main: Callable[[Simulation], Awaitable[T]]) -> T:
        task = asyncio.ensure_future(main(self))
        try:
            ends: list[asyncio.Future[Any]] = [task, self._failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return await task
        finally:
            self._failure.cancel()
            task.cancel()
            await asyncio.wait([task], timeout=_ENDING)
            if task.done() and not task.cancelled():
                task.exception()

    async def _stop_processes(self) -> list[BaseException]:
        """Stop all processes, wait for the clean-up of those that were killed, and return what has failed meanwhile."""
        for handle in self._starting.values():
            handle.cancel()
        self._starting.clear()
        errors = [error for process in self._processes.values() if (error := await process.end()) is not None]
        if self._killed:
            await asyncio.wait(self._killed, timeout=_ENDING)
        return errors


def run_simulated(
    main: Callable[[Simulation], Awaitable[T]],
    *,
    seed: int = 0,
    brokers: int = 3,
    properties: Mapping[str, object] | None = None,
    features: Mapping[str, int] | None = None,
    modules: Sequence[str] = (),
    limit: float = LONGEST_PLAY,
    trace: Callable[[str], object] | None = None,
) -> T:
    """Run ``main(simulation)`` on virtual time, with an embedded cluster, and return its result.

    One seed draws everything: latencies, faults, and what ``random``, ``uuid4`` and ``os.urandom`` return. The same
    seed takes the same steps in each process. An exception has a note with the seed that repeats it.

    Args:
        main: A coroutine function; not of a running event loop, as it has one of its own.
        seed: Any integer.
        brokers: Number of nodes.
        properties: Kafka's server properties, as of ``EmbeddedCluster``. With three nodes or more
            ``min.insync.replicas`` is 2.
        features: Levels of Kafka's features, as of ``EmbeddedCluster``.
        modules: Imported modules and packages of the program with clocks by names of their own
            (``from time import monotonic``): they read virtual time, too. ``time.time()`` needs no mention.
        limit: Seconds of virtual time after which ``main`` is cancelled.
        trace: Receives each event as a line at the end: connections, bytes, faults, ``simulation.note``.

    Raises:
        SimulationError: a callback or task has raised an exception that nothing has received.
        StalledError: every task waits for another one, or one never sleeps.
        TimeoutError: ``limit`` has passed.
    """
    worlds: list[Simulation] = []
    replicas = {"min.insync.replicas": "2"} if brokers > 2 else {}

    def make_world(loop: VirtualLoop, random: Random) -> Simulation:
        simulation = Simulation(
            loop,
            random,
            seed,
            nodes=brokers,
            properties={**_DEFAULTS, **replicas, **(properties or {})},
            features=features,
            keep_trace=trace is not None,
        )
        worlds.append(simulation)
        return simulation

    async def scenario(simulation: Simulation) -> T:
        return await simulation.play(main)

    def around(loop: VirtualLoop) -> AbstractContextManager[object]:
        return virtual_time_for(loop, modules)

    try:
        result, simulation = play(make_world, scenario, seed=seed, limit=limit, around=around)
        if simulation.loop_errors:
            raise SimulationError(f"an exception was received by nothing: {simulation.loop_errors[0]}")
    except BaseException as error:
        error.add_note(f"seed {seed}: run_simulated(..., seed={seed}) repeats it")
        for world in worlds:
            error.add_note("what happened last:\n" + "".join(list(world.trace.lines)[-_LAST_EVENTS:]))
        raise
    finally:
        if trace is not None:
            for world in worlds:
                for line in world.trace.lines:
                    trace(line.rstrip("\n"))
    return result
