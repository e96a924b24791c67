"""Random groups for assignors: members come, go, change their topics and racks, and miss rebalances."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from aioproducer.core.membership.assignors import ASSIGNORS, Assignments, Assignor
from aioproducer.core.membership.subscription import (
    NO_GENERATION,
    Assignment,
    Subscription,
    TopicRacks,
    decode_subscription,
    encode_subscription,
)
from aioproducer.record import TopicPartition

RACKS = ("east", "west", "north")


class GroupMember:
    """One member: its own instance of the assignor, what it has, and since which generation."""

    def __init__(self, member_id: str, assignor: Assignor, topics: list[str]) -> None:
        self.member_id = member_id
        self.assignor = assignor
        self.topics = topics
        self.rack: str | None = None
        self.instance_id: str | None = None
        self.version = 3
        self.generation_id = NO_GENERATION
        self.assignment: tuple[TopicPartition, ...] = ()

    def encoded(self) -> bytes:
        """The bytes of its subscription, in the version that it knows."""
        keeps = self.assignor.name == "cooperative-sticky"
        subscription = Subscription(
            topics=tuple(self.topics),
            user_data=self.assignor.user_data(self.topics),
            owned_partitions=self.assignment if keeps else (),
            generation_id=self.generation_id,
            rack=self.rack,
        )
        return encode_subscription(subscription, self.version)


class RandomGroup:
    """A group and its cluster, which change from round to round."""

    def __init__(self, random: Random, assignor: str, *, is_regular: bool = False) -> None:
        """``is_regular``: every member knows the newest version, hears of each assignment and claims what it has."""
        self._random = random
        self._assignor = assignor
        self._is_regular = is_regular
        self._next = 0
        self._equal = random.random() < 0.4
        self._has_racks = random.random() < 0.5
        self._claims_falsely = not is_regular and random.random() < 0.2
        self.leader = ASSIGNORS[assignor]()
        self.topics: dict[str, tuple[frozenset[str], ...]] = {}
        self.members: list[GroupMember] = []
        self.generation_id = 0
        for _ in range(random.randint(1, 5)):
            self._add_topic()
        for _ in range(random.randint(1, 8)):
            self._add_member()

    def subscriptions(self) -> dict[str, Subscription]:
        """The members' subscriptions, as the leader reads them."""
        return {member.member_id: decode_subscription(member.encoded(), member.instance_id) for member in self.members}

    def rounds(self, count: int) -> Iterator[tuple[TopicRacks, list[GroupMember]]]:
        """Change the group and yield it, ``count`` times; ``assigned`` comes before the next round."""
        for _ in range(count):
            yield self.topics, self.members
            self._change()

    def assigned(self, assignments: Assignments) -> None:
        """Tell the members, some of which miss it."""
        self.generation_id += 1
        for member in self.members:
            if self._is_regular or self._random.random() < 0.85:
                member.assignment = tuple(sorted(assignments[member.member_id]))
                member.generation_id = self.generation_id
                member.assignor.on_assignment(Assignment(member.assignment), self.generation_id)

    # Changes

    def _change(self) -> None:
        random = self._random
        for _ in range(random.randint(0, 3)):
            if len(self.members) > 1 and random.random() < 0.5:
                self.members.remove(random.choice(self.members))
            else:
                self._add_member()
        if random.random() < 0.3:
            self._add_topic()
        if len(self.topics) > 1 and random.random() < 0.15:
            del self.topics[random.choice(sorted(self.topics))]
        if not self._equal and random.random() < 0.5:
            random.choice(self.members).topics = self._some_topics()
        if self._equal:
            for member in self.members:
                member.topics = sorted(self.topics)
        if self._claims_falsely and len(self.members) > 1:
            first, second = random.sample(self.members, 2)
            claimed = tuple(dict.fromkeys((*second.assignment, *first.assignment[:1])))
            second.assignor.on_assignment(Assignment(claimed), second.generation_id)
            second.assignment = claimed
        random.shuffle(self.members)

    def _add_topic(self) -> None:
        random = self._random
        self._next += 1
        everywhere = random.random() < 0.3
        same_as = random.choice(sorted(self.topics)) if self.topics and random.random() < 0.4 else None
        count = random.randint(1, 9) if same_as is None else len(self.topics[same_as])
        self.topics[f"topic-{self._next * 7919 % 1000}"] = tuple(
            frozenset(RACKS if everywhere else random.sample(RACKS, random.randint(1, 2)))
            if self._has_racks
            else frozenset()
            for _ in range(count)
        )

    def _add_member(self) -> None:
        random = self._random
        topics = sorted(self.topics) if self._equal else self._some_topics()
        member = GroupMember(f"client-{random.getrandbits(64):x}", ASSIGNORS[self._assignor](), topics)
        if self._has_racks and random.random() < 0.8:
            member.rack = random.choice((*RACKS, "south"))
        if random.random() < 0.3:
            member.instance_id = f"instance-{random.getrandbits(32)}"
        if not self._is_regular and random.random() < 0.2:
            member.version = random.randint(0, 2)
        self.members.append(member)

    def _some_topics(self) -> list[str]:
        topics = sorted(self.topics)
        chosen = self._random.sample(topics, self._random.randint(1, len(topics)))
        return [*chosen, "missing"] if self._random.random() < 0.1 else chosen
