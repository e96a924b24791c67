"""Faults that a test injects: errors, delays, lost connections and throttling, for requests that it selects.

The nodes of a cluster share one ``Faults``. A request takes the delay, the disconnection and the throttling that are
set for it when it arrives. An error is used up by the first matching request, however many of its partitions fail.
Unused faults remain, and ``unmet`` lists them.
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
from aioproducer.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    OffsetFetchRequest,
)

DISCONNECTIONS: Final = ("before", "after", "half")
"""When a connection ends: before the request is processed, after it instead of the response, or within the response."""

# The requests with topics, for which clients expect an error at each topic or partition.
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

# The requests that name a group, or several.
GROUP_APIS: Final = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
    }
)

_APIS: Final = {key.name.replace("_", "").lower(): key for key in ApiKey}
_GROUP_KEY: Final = 0
"""The ``key_type`` of a group in FindCoordinator."""
_CODES: Final = {name: code for code, (name, _, _) in CODES.items()}


def find_api(api: str | int) -> ApiKey:
    """Return the API that ``api`` means: its number, or its name in Kafka's spelling (``ListOffsets``) or in capitals.

    Raises:
        ValueError: there is no such API; the text suggests the nearest name.
    """
    if isinstance(api, int):
        return ApiKey(api)
    key = _APIS.get(api.replace("_", "").lower())
    if key is None:
        raise ValueError(f"unknown request {api!r}{_nearest(api, [_spelled(known) for known in ApiKey])}")
    return key


def find_error(error: str | int | BrokerError | type[BrokerError]) -> int:
    """Return the error code that ``error`` means: a code, Kafka's name of it, or a class of ``aioproducer.errors``.

    Raises:
        ValueError: there is no such error; the text suggests the nearest name.
    """
    if isinstance(error, int):
        if error not in CODES:
            raise ValueError(f"unknown error code {error}: give a code of Kafka, its name, or an error class")
        return error
    if not isinstance(error, str):
        return error.code
    code = _CODES.get(error)
    if code is None:
        raise ValueError(f"unknown error {error!r}{_nearest(error.upper(), _CODES)}")
    return code


def _spelled(key: ApiKey) -> str:
    """Return Kafka's spelling of an API's name."""
    return key.name.replace("_", " ").title().replace(" ", "")


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f", did you mean {matches[0]!r}?" if matches else ""


@dataclass(slots=True, eq=False)
class Rule:
    """One injected fault: the requests it applies to, how many are left, and its effects."""

    api: ApiKey
    node: int | None
    """The node that receives the request; ``None`` for any."""
    times: int | None
    """Number of requests it still applies to; ``None`` for all."""
    error: int = 0
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    delay_ms: int = 0
    disconnect: str | None = None
    throttle_ms: int = 0
    postpone_ms: int = 0
    is_repeated: bool = False
    used: int = 0
    """Number of requests that it has applied to."""

    def use(self) -> None:
        """Count one request."""
        self.used += 1
        if self.times is not None:
            self.times -= 1

    @property
    def is_spent(self) -> bool:
        """Whether it applies to no further request."""
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
        where += "" if self.group is None else f" of group {self.group}"
        where += "" if self.node is None else f" at node {self.node}"
        left = "always" if self.times is None else f"{self.times} more times"
        return f"{_spelled(self.api)}{where}: {', '.join(what)}, {left}, met {self.used} times"


class Fault:
    """The faults of one request."""

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
        """Whether an error may apply to the request, or a part of it."""
        return bool(self._rules)

    def add(self, rule: Rule) -> None:
        """Add ``rule`` to this request, which uses it up unless it is an error."""
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
        """Return the error for a partition, a topic or the whole request; an error for a part never applies to the
        whole.

        Kafka's text for the code is left to the caller.
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
        self._held: dict[asyncio.Future[None], None] = {}
        """In the order in which they are released: a set of futures is ordered by their addresses."""

    def fail(
        self,
        api: str | int,
        error: str | int | BrokerError | type[BrokerError],
        times: int | None = 1,
        *,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        node: int | None = None,
    ) -> Rule:
        """Answer ``times`` requests (``None``: all) with ``error`` instead of processing them.

        The error is where a client expects it: at each partition or topic, or in the response as a whole. With
        ``topic`` and ``partition``, only that part of a request fails; a request without it is not counted.
        With ``group``, only requests that contain this consumer group fail; those with several groups fail as a whole.

        Raises:
            ValueError: unknown ``api`` or ``error``, or a topic or group for a request that has none.
        """
        key = find_api(api)
        code = find_error(error)
        if topic is not None and key not in TOPIC_APIS:
            raise ValueError(f"{_spelled(key)} cannot fail for a single topic: leave out topic and partition")
        if partition is not None and topic is None:
            raise ValueError(f"partition {partition} is given without a topic: give topic as well")
        if group is not None and key not in GROUP_APIS:
            raise ValueError(f"{_spelled(key)} names no group: leave group out")
        return self._add(Rule(key, node, _times(times), error=code, topic=topic, partition=partition, group=group))

    def delay(self, api: str | int, ms: int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Process ``times`` requests, but delay each response by ``ms`` milliseconds.

        Raises:
            ValueError: unknown ``api``, or ``ms`` is not positive.
        """
        return self._add(Rule(find_api(api), node, _times(times), delay_ms=_positive("ms", ms)))

    def disconnect(
        self, api: str | int, when: str = "before", times: int | None = 1, *, node: int | None = None
    ) -> Rule:
        """End the connection of ``times`` requests.

        ``when`` is ``before`` a request is processed, ``after`` it and before the response is sent, or ``half``-way
        through the response's frame.

        Raises:
            ValueError: unknown ``api`` or ``when``.
        """
        if when not in DISCONNECTIONS:
            raise ValueError(f"when must be one of {', '.join(DISCONNECTIONS)}, not {when!r}")
        return self._add(Rule(find_api(api), node, _times(times), disconnect=when))

    def throttle(self, api: str | int, ms: int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Throttle the clients of ``times`` requests for ``ms`` milliseconds, as a broker with quotas does (KIP-219).

        The response contains the time, and nothing more of the connection is read until it has passed.

        Raises:
            ValueError: unknown ``api``, or ``ms`` is not positive.
        """
        return self._add(Rule(find_api(api), node, _times(times), throttle_ms=_positive("ms", ms)))

    def postpone(self, api: str | int, ms: int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Hold ``times`` requests for ``ms`` milliseconds before they are processed: they take effect late.

        Raises:
            ValueError: unknown ``api``, or ``ms`` is not positive.
        """
        return self._add(Rule(find_api(api), node, _times(times), postpone_ms=_positive("ms", ms)))

    def repeat(self, api: str | int, times: int | None = 1, *, node: int | None = None) -> Rule:
        """Process ``times`` requests twice and send the second response, as if the client had missed the first.

        Raises:
            ValueError: unknown ``api``.
        """
        return self._add(Rule(find_api(api), node, _times(times), is_repeated=True))

    def take(self, node_id: int, header: RequestHeader, request: Request[Response]) -> Fault | None:
        """Return the faults of a request that ``node_id`` received; ``None`` if there are none."""
        if not self._rules:
            return None
        fault = None
        for rule in self._rules:
            if rule.api != header.request_api_key or rule.node not in (None, node_id) or rule.is_spent:
                continue
            if rule.group is not None and not _names_group(request, rule.group):
                continue
            if fault is None:
                fault = Fault()
            fault.add(rule)
        self._remove_spent()
        return fault

    def unmet(self) -> list[Rule]:
        """The limited faults that are not used up. If a test ends with some, it did not test what it set out to."""
        self._remove_spent()
        return [rule for rule in self._rules if rule.times is not None]

    def met(self, api: str | int | None = None) -> int:
        """Number of requests with a fault; with ``api`` only those."""
        key = None if api is None else find_api(api)
        return sum(rule.used for rule in (*self._rules, *self._spent) if key is None or rule.api == key)

    async def hold(self, delay_ms: int) -> None:
        """Hold a request or a response for this many milliseconds, or until ``let_go``."""
        held = asyncio.get_running_loop().create_future()
        self._held[held] = None
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await held
        except TimeoutError:
            pass
        finally:
            del self._held[held]

    def let_go(self) -> None:
        """Release the requests and responses that are held."""
        for held in self._held:
            if not held.done():
                held.set_result(None)

    def clear(self) -> None:
        """Remove all faults and their counts; responses that are held are sent."""
        self.let_go()
        # A request in progress may refer to a rule.
        for rule in self._rules:
            rule.times = 0
        self._rules = []
        self._spent = []

    def _add(self, rule: Rule) -> Rule:
        self._rules.append(rule)
        return rule

    def _remove_spent(self) -> None:
        """Remove the rules that apply to no further request."""
        if any(rule.is_spent for rule in self._rules):
            self._spent += [rule for rule in self._rules if rule.is_spent]
            self._rules = [rule for rule in self._rules if not rule.is_spent]


def _names_group(request: Request[Response], group_id: str) -> bool:
    """Return whether a request of ``GROUP_APIS`` is about this group."""
    if isinstance(request, FindCoordinatorRequest):
        return request.key_type == _GROUP_KEY and group_id in (request.key, *request.coordinator_keys)
    if isinstance(request, DeleteGroupsRequest):
        return group_id in request.groups_names
    if isinstance(request, DescribeGroupsRequest):
        return group_id in request.groups
    if isinstance(request, OffsetFetchRequest) and any(each.group_id == group_id for each in request.groups):
        return True
    return getattr(request, "group_id", None) == group_id


def _times(times: int | None) -> int | None:
    if times is not None:
        _positive("times", times)
    return times


def _positive(name: str, value: int) -> int:
    if value <= 0:
        raise ValueError(f"{name} must be positive, not {value}")
    return value
