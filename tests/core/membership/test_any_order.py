"""Whatever the coordinator answers, and in whatever order: the member keeps its rules, and never waits for nothing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.core.membership.events import LeaveOperation
from aioproducer.core.membership.requests import GroupRequest, RequestKind
from aioproducer.core.membership.states import FENCED, IN_GENERATION, UNJOINED
from aioproducer.core.transactions.requests import Result
from aioproducer.error_codes import CODES, MEMBER_ID_REQUIRED
from aioproducer.errors import NetworkError, SaslAuthenticationError, UnsupportedVersionError
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol import Response
from aioproducer.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aioproducer.protocol.messages.groups import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

from .driving import Driver, partitions

# The codes that coordinators send, and one of no meaning here.
LIKELY = (0, 0, 0, 0, 14, 15, 16, 22, 25, 27, 79, 82, 23, 30, 88, 3)
ACTIONS = ("poll", "answer", "answer", "answer", "disconnect", "advance", "confirm", "rare")


class Chaos:
    """One member and a coordinator that answers anything."""

    def __init__(self, random: Random, assignor: str, instance_id: str | None) -> None:
        self._random = random
        self.driver = Driver(assignor, group_instance_id=instance_id, max_poll_interval_ms=20_000)
        self.driver.membership.update_metadata({"orders": (frozenset[str](),) * 4}, ["orders", "clicks"])
        self._in_flight: list[GroupRequest] = []
        self.results: list[Result] = []

    def step(self, action: str) -> None:
        driver, random, membership = self.driver, self._random, self.driver.membership
        match action:
            case "answer" if self._in_flight:
                request = self._in_flight.pop(random.randrange(len(self._in_flight)))
                code = random.choice((*CODES, 0)) if random.random() < 0.1 else random.choice(LIKELY)
                driver.answer(request, self._response(request, code))
            case "disconnect" if self._in_flight:
                request = self._in_flight.pop(random.randrange(len(self._in_flight)))
                error = random.choice(
                    [NetworkError(), NetworkError(), SaslAuthenticationError(), UnsupportedVersionError()]
                )
                membership.disconnected(request, error, driver.now)
            case "advance":
                driver.advance(random.choice((0.05, 0.5, 3.0, 25.0)))
            case "confirm" if membership.event is not None:
                membership.confirm(membership.event)
            case "rare":
                self._rare()
        self.poll()

    def poll(self) -> None:
        """Take all requests that are due; then nothing is due at once."""
        driver, membership = self.driver, self.driver.membership
        while (request := driver.poll()) is not None:
            assert request.kind.lane not in [other.kind.lane for other in self._in_flight if not self._is_old(other)]
            self._in_flight.append(request)
        assert membership.wake_at > driver.now, membership.state
        assert membership.assignment <= membership._owned
        if membership.state in IN_GENERATION:
            assert membership.generation.exists
        if membership.state is FENCED:
            assert not membership.assignment or membership.event is not None

    def _is_old(self, request: GroupRequest) -> bool:
        return self.driver.membership._in_flight.get(request.kind.lane) is not request

    def _rare(self) -> None:
        driver, random, membership = self.driver, self._random, self.driver.membership
        match random.randrange(7):
            case 0:
                membership.subscribe(random.choice((["orders"], ["clicks"], ["orders", "clicks"])))
            case 1 if random.random() < 0.3:
                self.results.append(membership.leave(random.choice(list(LeaveOperation))))
            case 2:
                offsets = dict.fromkeys(membership.assignment or partitions(0), OffsetAndMetadata(1))
                self.results.append(membership.commit(offsets, driver.now + 10, retries=random.random() < 0.7))
            case 3:
                self.results.append(membership.fetch_offsets(partitions(0), driver.now + 10))
            case 4:
                membership.request_rejoin("test")
            case 5 if membership.state is not FENCED:
                membership.restart()
            case _:
                membership.polled(driver.now)

    def _response(self, request: GroupRequest, code: int) -> Response:
        driver, random = self.driver, self._random
        match request.kind:
            case RequestKind.FIND_COORDINATOR:
                return FindCoordinatorResponse(error_code=code, node_id=random.randint(1, 3))
            case RequestKind.JOIN if code == 0:
                return driver.joined(leads=random.random() < 0.5)
            case RequestKind.JOIN:
                return JoinGroupResponse(error_code=code, member_id="given" if code == MEMBER_ID_REQUIRED else "")
            case RequestKind.SYNC if code == 0:
                return driver.synced(*random.sample(range(4), random.randint(0, 4)))
            case RequestKind.SYNC:
                return SyncGroupResponse(error_code=code)
            case RequestKind.HEARTBEAT:
                return HeartbeatResponse(error_code=code)
            case RequestKind.LEAVE:
                return LeaveGroupResponse(error_code=code)
            case RequestKind.COMMIT:
                return driver.commit_response(request, code)
            case _:
                return self._fetched(request, code)

    def _fetched(self, request: GroupRequest, code: int) -> OffsetFetchResponse:
        (group,) = self.driver.message(request, OffsetFetchRequest).groups
        found = [OffsetFetchResponsePartitions(partition_index=0, committed_offset=1, error_code=code)]
        topic = OffsetFetchResponseTopics(name="orders", partitions=found)
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=group.group_id, topics=[topic])])

    def end(self) -> None:
        """Leave, with a coordinator that answers well: every call ends."""
        driver, membership = self.driver, self.driver.membership
        self.results.append(membership.leave(LeaveOperation.LEAVE_GROUP))
        for _ in range(100):
            self.poll()
            if membership.event is not None:
                membership.confirm(membership.event)
            for request in self._in_flight:
                driver.answer(request, self._response(request, 0))
            self._in_flight.clear()
            driver.advance(0.5)
        assert all(result.done for result in self.results)
        if membership.state is UNJOINED:
            assert not membership._owned


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
# The same stories in each run: whole groups are explored by hand, with more examples.
@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(ACTIONS), max_size=80), st.booleans())
def test_member_copes_with_any_answers(assignor: str, seed: int, actions: list[str], is_static: bool) -> None:
    chaos = Chaos(Random(seed), assignor, "a" if is_static else None)
    for action in actions:
        chaos.step(action)
    chaos.end()
