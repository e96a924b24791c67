"""Faults that a test injects: errors, delays, lost connections and throttling, for requests of its choice.

The nodes of a cluster share one ``Faults``. A request takes the delay, the disconnection and the throttling that are
set for it when it arrives; an error is used up by the request that meets it, however many partitions of that request
it strikes. What was not met stays, and ``unmet`` lists it.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aioproducer.error_codes import CODES
from aioproducer.errors import BrokerError, error_class
from aioproducer.protocol import ApiKey, Request, RequestHeader, Response

DISCONNECTIONS: Final = ("before", "after", "half")
"""When a connection ends: before the request is processed, after it instead of the answer, or within the answer."""

# The requests that name topics, and whose errors a client looks for at each topic or partition.
TOPIC_APIS: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)

_APIS: Final = {key.name.replace("_", "").lower(): key for key in ApiKey}
_CODES: Final = {name: code for code, (name, _, _) in CODES.items()}


def find_api(api: str | int) -> ApiKey:
    """The request that ``api`` means: its number, or its name in Kafka's spelling (``ListOffsets``) or in capitals.

    Raises:
        ValueError: there is no such request; the text names the nearest.
    """
    if isinstance(api, int):
        return ApiKey(api)
    key = _APIS.get(api.replace("_", "").lower())
    if key is None:
        raise ValueError(f"there is no request {api!r}{_nearest(api, [_spelled(known) for known in ApiKey])}")
    return key


def find_error(error: str | int | BrokerError | type[BrokerError]) -> int:
    """The error code that ``error`` means: a code, Kafka's name of it, or a class of ``aioproducer.errors``.

    Raises:
        ValueError: there is no such error; the text names the nearest.
    """
    if isinstance(error, int):
        if error not in CODES:
            raise ValueError(f"there is no error with the code {error}")
        return error
    if not isinstance(error, str):
        return error.code
    code = _CODES.get(error)
    if code is None:
        raise ValueError(f"there is no error {error!r}{_nearest(error.upper(), _CODES)}")
    return code


def _spelled(key: ApiKey) -> str:
    """Kafka's spelling of a request's name."""
    return key.name.replace("_", " ").title().replace(" ", "")


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f", did you mean {matches[0]!r}?" if matches else ""


@dataclass(slots=True, eq=False)
class Rule:
    """One fault as it was set: for which requests, how often still, and what happens to them."""

    api: ApiKey
    node: int | None
    """The node that must be asked; ``None`` for any."""
    times: int | None
    """How many requests it is still for; ``None`` for all."""
    error: int = 0
    topic: str | None = None
    partition: int | None = None
    delay_ms: int = 0
    disconnect: str | None = None
    throttle_ms: int = 0
    postpone_ms: int = 0
    is_repeated: bool = False
    used: int = 0
    """How many requests met it."""

    def use(self) -> None:
        """Count one request."""
        self.used += 1
        if self.times is not None:
            self.times -= 1

    @property
    def is_spent(self) -> bool:
        """Whether no request can meet it any more."""
        return self.times is not None and self.times <= 0

    def __str__(self) -> str:
        what = [CODES[self.error][0]] if self.error else []
        what += [f"delay of {self.delay_ms} ms"] if self.delay_ms else []
        what += [f"disconnect {self.disconnect}"] if self.disconnect else []
        what += [f"throttle of {self.throttle_ms} ms"] if self.throttle_ms else []
        what += [f"postponed by {self.postpone_ms} ms"] if self.postpone_ms else []
        what += ["done twice"] if self.is_repeated else []
        where = "" if self.topic is None else f" of {self.topic}"
        where += "" if self.partition is None else f"-{self.partition}"
        where += "" if self.node is None else f" at node {self.node}"
        left = "always" if self.times is None else f"{self.times} more times"
        return f"{_spelled(self.api)}{where}: {', '.join(what)}, {left}, met {self.used} times"


class Fault:
    """What is to happen to one request."""

    __slots__ = ("_met", "_rules", "delay_ms", "disconnect", "is_repeated", "postpone_ms", "throttle_ms")

    def __init__(self) -> None:
        self.delay_ms = 0
        self.disconnect: str | None = None
        self.throttle_ms = 0
        self.postpone_ms = 0
        self.is_repeated = False
        self._rules: list[Rule] = []
        self._met: set[Rule] = set()

    @property
    def has_errors(self) -> bool:
        """Whether an error may strike the request, or a part of it."""
        return bool(self._rules)

    def add(self, rule: Rule) -> None:
        """Let ``rule`` be for this request; all but an error is used up by that."""
        if rule.error:
            self._rules.append(rule)
            return
        rule.use()
        self.delay_ms += rule.delay_ms
        self.disconnect = self.disconnect or rule.disconnect
        self.throttle_ms = max(self.throttle_ms, rule.throttle_ms)
        self.postpone_ms += rule.postpone_ms
        self.is_repeated = self.is_repeated or rule.is_repeated

    def error_for(self, topic: str | None = None, partition: int | None = None) -> BrokerError | None:
        """The error for a partition, or a topic, or all of the request; what was set for a part is not for the whole.

        Kafka's own text for the code is left to whoever answers.
        """
        for rule in self._rules:
            if rule.topic is not None and rule.topic != topic:
                continue
            if rule.partition is not None and rule.partition != partition:
                continue
            if rule not in self._met:
                if rule.is_spent:
                    continue
                rule.use()
                self._met.add(rule)
            return error_class(rule.error)()
        return None


class Faults:
    """The faults of a cluster, in the order in which they were set."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._spent: list[Rule] = []
        self._held: set[asyncio.Future[None]] = set()

    def fail(
        self,
        api: str | int,
        error: str | int | BrokerError | type[BrokerError],
        times: int | None = 1,
        *,
        topic: str | None = None,
        partition: int | None = None,
        node: int | None = None,
    ) -> Rule:
        """Answer ``times`` requests (``None``: all) with ``error`` instead of doing what they ask for.

        The error stands where a client looks for it: at each partition or topic, or for the request as a whole. With
        ``topic``, and ``partition``, only that part of a request fails; a request without it is not counted.

        Raises:
            ValueError: unknown ``api`` or ``error``, or a topic for a request that has none.
        """
        key = find_api(api)
        code = find_error(error)
        if topic is not None and key not in TOPIC_APIS:
            raise ValueError(f"{_spelled(key)} does not fail for a single topic: leave topic and partition out")
        if partition is not None and topic is None:
            raise ValueError(f"which topic's partition {partition} shall fail? Give topic as well")
        return self._add(Rule(key, node, _times(times), error=code, topic=topic, partition=partition))

    def delay(self, api: str | int, ms: int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Do what ``times`` requests ask for, but hold each answer back for ``ms`` milliseconds.

        Raises:
            ValueError: unknown ``api``, or ``ms`` is not positive.
        """
        return self._add(Rule(find_api(api), node, _times(times), delay_ms=_positive("ms", ms)))

    def disconnect(
        self, api: str | int, when: str = "before", times: int | None = 1, *, node: int | None = None
    ) -> Rule:
        """End the connection of ``times`` requests: ``when`` is ``before`` a request is processed, ``after`` it was and
        before the answer is sent, or ``half``-way through the answer's frame.

        Raises:
            ValueError: unknown ``api`` or ``when``.
        """
        if when not in DISCONNECTIONS:
            raise ValueError(f"when is {when!r}, but must be one of {', '.join(DISCONNECTIONS)}")
        return self._add(Rule(find_api(api), node, _times(times), disconnect=when))

    def throttle(self, api: str | int, ms: int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Say in ``times`` answers that the client is throttled for ``ms`` milliseconds, and read nothing more of that
        connection for so long, as a broker with quotas does (KIP-219).

        Raises:
            ValueError: unknown ``api``, or ``ms`` is not positive.
        """
        return self._add(Rule(find_api(api), node, _times(times), throttle_ms=_positive("ms", ms)))

    def postpone(self, api: str | int, ms: int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Hold ``times`` requests back for ``ms`` milliseconds before they are processed: they take effect late.

        Raises:
            ValueError: unknown ``api``, or ``ms`` is not positive.
        """
        return self._add(Rule(find_api(api), node, _times(times), postpone_ms=_positive("ms", ms)))

    def repeat(self, api: str | int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Process ``times`` requests twice and send the second answer, as if the client had missed the first.

        Raises:
            ValueError: unknown ``api``.
        """
        return self._add(Rule(find_api(api), node, _times(times), is_repeated=True))

    def take(self, node_id: int, header: RequestHeader, request: Request[Response]) -> Fault | None:
        """What is to happen to a request that ``node_id`` received; ``None`` for nothing."""
        if not self._rules:
            return None
        fault = None
        for rule in self._rules:
            if rule.api != header.request_api_key or rule.node not in (None, node_id) or rule.is_spent:
                continue
            if fault is None:
                fault = Fault()
            fault.add(rule)
        self._settle()
        return fault

    def unmet(self) -> list[Rule]:
        """The faults that requests can still meet and that were to be met a number of times: a test that ends with
        some did not see what it set out to see."""
        self._settle()
        return [rule for rule in self._rules if rule.times is not None]

    def met(self, api: str | int | None = None) -> int:
        """How many requests met a fault; with ``api`` only those."""
        key = None if api is None else find_api(api)
        return sum(rule.used for rule in (*self._rules, *self._spent) if key is None or rule.api == key)

    async def hold(self, delay_ms: int) -> None:
        """Hold a request or an answer back for this many milliseconds, or until ``let_go`` ends all waits."""
        held = asyncio.get_running_loop().create_future()
        self._held.add(held)
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await held
        except TimeoutError:
            pass
        finally:
            self._held.discard(held)

    def let_go(self) -> None:
        """Let the requests and answers that are held back go on."""
        for held in self._held:
            if not held.done():
                held.set_result(None)

    def clear(self) -> None:
        """Forget all faults, and how many were met; answers held back are sent."""
        self.let_go()
        # A request under way may hold a rule.
        for rule in self._rules:
            rule.times = 0
        self._rules = []
        self._spent = []

    def _add(self, rule: Rule) -> Rule:
        self._rules.append(rule)
        return rule

    def _settle(self) -> None:
        """Put away the rules that no request can meet any more."""
        if any(rule.is_spent for rule in self._rules):
            self._spent += [rule for rule in self._rules if rule.is_spent]
            self._rules = [rule for rule in self._rules if not rule.is_spent]


def _times(times: int | None) -> int | None:
    if times is not None:
        _positive("times", times)
    return times


def _positive(name: str, value: int) -> int:
    if value <= 0:
        raise ValueError(f"{name} is {value}, but must be positive")
    return value
