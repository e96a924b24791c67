"""A group with members that join, sync, leave, crash and restart in any order, and writes that fail or take long.

Every response is checked when it arrives. When only clients act, without further disturbances, the group becomes
stable.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.states import GroupSettings, GroupState
from aioproducer.protocol.messages.groups import MemberIdentity

from .driving import Driver, Join, Sync, subscription

REJOINS = {Code.REBALANCE_IN_PROGRESS, Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.MEMBER_ID_REQUIRED}
SESSION_MS = 6000
REBALANCE_MS = 12_000


@dataclass
class Client:
    """A consumer: the requests that it waits for, and its state."""

    number: int
    instance_id: str | None
    version: int
    topic: str = "orders"
    member_id: str = ""
    join: Join | None = None
    joined: Join | None = None
    sync: Sync | None = None
    synced: Sync | None = None
    fenced: bool = False
    crashed: bool = False


class Groups(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from([0, 3000]))
    def begin(self, delay: int) -> None:
        self.driver = Driver(GroupSettings(initial_rebalance_delay_ms=delay), writes_at_once=False)
        self.clients: list[Client] = []
        self.leaders: dict[int, str] = {}
        self.handed_in: dict[int, list[dict[str, bytes]]] = {}
        self.last_generation = 0
        self.number = 0

    @property
    def group(self) -> Group:
        return self.driver.group

    def some(self, data: st.DataObject, clients: list[Client]) -> Client:
        return data.draw(st.sampled_from(clients))

    @property
    def living(self) -> list[Client]:
        return [client for client in self.clients if not client.crashed and not client.fenced]

    # Actions of clients

    @precondition(lambda self: len(self.clients) < 6)
    @rule(instance_id=st.sampled_from([None, None, "one", "two"]), version=st.sampled_from([3, 8, 9]))
    def start(self, instance_id: str | None, version: int) -> None:
        self.number += 1
        self.clients.append(Client(self.number, instance_id, version))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.step(self.some(data, self.living))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        """As after a changed subscription, or as a leader that has seen new partitions."""
        client = self.some(data, self.living)
        client.topic = data.draw(st.sampled_from(["orders", "payments"]))
        self.send_join(client)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.some(data, self.living).crashed = True

    @precondition(lambda self: any(client.crashed and client.instance_id for client in self.clients))
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A static member restarts without its member id."""
        crashed = [client for client in self.clients if client.crashed and client.instance_id]
        client = self.some(data, crashed)
        self.clients.remove(client)
        self.clients.append(Client(client.number, client.instance_id, client.version))

    @precondition(lambda self: self.living)
    @rule(data=st.data(), by_instance=st.booleans())
    def leave(self, data: st.DataObject, by_instance: bool) -> None:
        client = self.some(data, self.living)
        by_instance = by_instance and client.instance_id is not None
        identity = MemberIdentity(
            member_id="" if by_instance else client.member_id, group_instance_id=client.instance_id
        )
        if by_instance or client.member_id:
            self.driver.leave(identity)
        self.read(client)
        client.crashed = True

    def send_join(self, client: Client) -> None:
        client.sync = client.joined = client.synced = None
        client.join = self.driver.join(
            client.member_id,
            instance_id=client.instance_id,
            metadata=subscription(client.topic),
            version=client.version,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self.read(client)

    def step(self, client: Client) -> None:
        """Do the client's next step."""
        self.read(client)
        if client.fenced or client.join is not None or client.sync is not None:
            return
        if client.joined is None:
            self.send_join(client)
        elif client.synced is None and not client.joined.answer.skip_assignment:
            answer = client.joined.answer
            assignments: dict[str, bytes] = {}
            if answer.leader == answer.member_id:
                assignments = {
                    member.member_id: b"%s in %d" % (member.member_id.encode(), answer.generation_id)
                    for member in answer.members
                }
                self.handed_in.setdefault(answer.generation_id, []).append(assignments)
            client.sync = self.driver.sync(client.joined, assignments)
            self.read(client)
        else:
            code = self.driver.heartbeat(client.joined)
            if code == Code.FENCED_INSTANCE_ID:
                client.fenced = True
            elif code:
                assert code in REJOINS
                if code != Code.REBALANCE_IN_PROGRESS:
                    client.member_id = ""
                client.joined = client.synced = None

    def read(self, client: Client) -> None:
        """Handle a response that has arrived."""
        if client.join is not None and client.join.answers:
            answer, join = client.join.answer, client.join
            client.join = None
            if answer.error_code == Code.NONE:
                client.member_id, client.joined = answer.member_id, join
                self.check_joined(join)
            elif answer.error_code == Code.FENCED_INSTANCE_ID:
                client.fenced = True
            elif answer.error_code == Code.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
            elif answer.error_code != Code.REBALANCE_IN_PROGRESS:
                assert answer.error_code in {Code.UNKNOWN_MEMBER_ID, Code.COORDINATOR_NOT_AVAILABLE}
                client.member_id = ""
        if client.sync is not None and client.sync.answers:
            sync, client.sync = client.sync, None
            if sync.code == Code.NONE:
                client.synced = sync
                assert client.joined is not None
                self.check_synced(client.joined, sync)
            else:
                client.joined = None
                client.fenced = sync.code == Code.FENCED_INSTANCE_ID
                if sync.code == Code.UNKNOWN_MEMBER_ID:
                    client.member_id = ""

    def check_joined(self, join: Join) -> None:
        """A generation has one leader, which alone receives the members, and is one of them."""
        answer = join.answer
        if answer.members:
            assert answer.leader == answer.member_id
            assert answer.member_id in {member.member_id for member in answer.members}
        assert answer.protocol_name == "range"
        assert 0 < answer.generation_id <= self.group.generation_id

    def check_synced(self, joined: Join, sync: Sync) -> None:
        """An assignment comes from the leader of the same generation, for this member or for its instance id."""
        generation_id = joined.answer.generation_id
        handed_in = [given for each in self.handed_in.get(generation_id, []) for given in each.values()]
        assert sync.answer.assignment in [b"", *handed_in]

    # Other events

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 7.0]))
    def wait(self, seconds: float) -> None:
        self.driver.advance(seconds)

    @precondition(lambda self: self.driver.waiting)
    @rule(code=st.sampled_from([0, 0, 0, Code.COORDINATOR_NOT_AVAILABLE]))
    def write(self, code: int) -> None:
        self.driver.write(code)

    @precondition(lambda self: not self.driver.waiting and self.group.state is GroupState.STABLE)
    @rule()
    def move(self) -> None:
        """The coordinator moves: written records are loaded elsewhere, and every waiting request ends."""
        value = self.driver.written[-1].value
        self.group.close(Code.NOT_COORDINATOR)
        for client in self.clients:
            for asked in (client.join, client.sync):
                assert asked is None or len(asked.answers) == 1
            client.join = client.sync = None
            client.joined = None
        loaded = Group.load("group", value, self.driver.settings, self.driver.unique)
        assert loaded.value() == value
        self.driver.group = loaded
        self.last_generation = 0
        loaded.resume(self.driver.moment)
        self.driver.serve()

    # Invariants

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "driver"):
            return
        group, membership = self.group, self.group.membership
        assert group.generation_id >= self.last_generation
        self.last_generation = group.generation_id
        waiting = [member for member in group.members.values() if member.join_answer is not None]
        assert membership.awaiting_join == len(waiting)
        assert set(membership.static_members.values()) <= set(group.members)
        assert group.pending_syncs <= set(group.members)
        assert not group.pending_members & set(group.members)
        if group.members:
            assert group.leader_id in group.members
        else:
            assert group.leader_id is None
        match group.state:
            case GroupState.EMPTY:
                assert not group.members
            case GroupState.STABLE:
                assert not any(member.sync_answer for member in group.members.values())
            case GroupState.PREPARING_REBALANCE:
                # A member or a timer ends it.
                assert "join" in group.timers
            case GroupState.COMPLETING_REBALANCE:
                assert "sync" in group.timers or not group.pending_syncs
        for client in self.clients:
            for asked in (client.join, client.sync):
                assert asked is None or len(asked.answers) <= 1
        if group.state is not GroupState.STABLE:
            return
        for member in group.members.values():
            assert self.driver.timers_of(member.member_id) or member.join_answer is not None

    def teardown(self) -> None:
        """When only clients act, the group becomes stable with exactly them as members."""
        if not hasattr(self, "driver"):
            return
        self.driver.writes_at_once = True
        while self.driver.waiting:
            self.driver.write()
        for _ in range(200):
            for client in self.living:
                self.step(client)
            self.driver.advance(0.25)
            self.holds()
        living = self.living
        taken: dict[str, Client] = {}
        for client in living:
            assert client.joined is not None
            assert client.joined.answer.generation_id == self.group.generation_id, client
            assert client.join is None
            assert client.sync is None
            if client.instance_id is not None:
                assert client.instance_id not in taken
                taken[client.instance_id] = client
        assert {client.member_id for client in living} == set(self.group.members)
        assert self.group.state is (GroupState.STABLE if living else GroupState.EMPTY)
        leaders = [client for client in living if client.member_id == self.group.leader_id]
        assert len(leaders) == bool(living)
        for member in self.group.members.values():
            assert member.assignment.endswith(b" in %d" % self.group.generation_id)


Groups.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_groups = Groups.TestCase
