"""Our assignors against those of Kafka's jars: random groups over several rebalances, all in one JVM."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from aioproducer.core.membership.assignors import ASSIGNORS, Assignments
from aioproducer.core.membership.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.core.membership.cases import RandomGroup
from tests.kafka import jars

GROUPS = 200
ROUNDS = 4


class _Script:
    """The jobs for Java, and the check of each line of its output."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.checks: list[Callable[[str], None]] = []

    def expect(self, line: str, check: Callable[[str], None]) -> None:
        self.lines.append(line)
        self.checks.append(check)

    def run(self) -> int:
        """Run all jobs; return the number of answers."""
        classpath = f"{jars.resolve(jars.BROKER[jars.NEWEST])}/*"
        command = [jars.java(), "-Xmx256m", *jars.SHORT_LIVED, "-cp", classpath]
        command.append(str(Path(__file__).with_name("Assignors.java")))
        text = "\n".join(self.lines) + "\n"
        run = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 0, run.stderr[-3000:]
        answers = run.stdout.splitlines()
        assert len(answers) == len(self.checks), run.stderr[-3000:]
        for answer, check in zip(answers, self.checks, strict=True):
            check(answer)
        return len(answers)


def _racks(partitions: tuple[frozenset[str], ...]) -> str:
    return ";".join(",".join(sorted(racks)) or "-" for racks in partitions)


def _equals(expected: object, context: str) -> Callable[[str], None]:
    def check(answer: str) -> None:
        assert answer == expected, context

    return check


def _same_assignment(
    ours: Assignments, members: dict[str, Subscription], context: str, wrong: list[str]
) -> Callable[[str], None]:
    """Compare the assignments, unless Kafka's is ``wrong``.

    Its general sticky assignment moves a partition back to the owner in an older generation, without checking that this
    member still reads the topic. The member then rejects the partition, or a NullPointerException ends the assignment.
    """

    def check(answer: str) -> None:
        if answer.startswith("error java.lang.NullPointerException"):
            wrong.append(context)
            return
        assert not answer.startswith("error"), f"{answer}\n{context}\n{ours}"
        theirs = {
            member_id: sorted(decode_assignment(bytes.fromhex(data)).partitions)
            for member_id, data in (part.split("=") for part in answer.split(" "))
        }
        if any(where.topic not in members[member_id].topics for member_id in theirs for where in theirs[member_id]):
            wrong.append(context)
            return
        assert {member_id: sorted(partitions) for member_id, partitions in ours.items()} == theirs, context

    return check


def _groups(name: str) -> Iterator[tuple[int, RandomGroup]]:
    for seed in range(GROUPS):
        yield seed, RandomGroup(Random(f"{name} {seed}"), name)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_assignments_equal_kafkas(name: str) -> None:
    script = _Script()
    wrong: list[str] = []
    for seed, group in _groups(name):
        script.lines.append(f"new {name}")
        for number, (topics, members) in enumerate(group.rounds(ROUNDS)):
            context = f"{name}, seed {seed}, round {number}"
            for topic, partitions in group.topics.items():
                script.lines.append(f"topic {topic} {_racks(partitions)}")
            for member in members:
                encoded = member.encoded()
                newest = encode_subscription(decode_subscription(encoded))
                line = f"member {member.member_id} {member.instance_id or '-'} {encoded.hex()}"
                script.expect(line, _equals(newest.hex(), context))
            subscriptions = group.subscriptions()
            assignments = group.leader.assign(topics, subscriptions)
            context += f"\n{group.topics}\n{subscriptions}"
            script.expect("assign", _same_assignment(assignments, subscriptions, context, wrong))
            group.assigned(assignments)
            for member in members:
                if member.generation_id == group.generation_id:
                    data = member.assignor.user_data(member.topics)
                    line = f"assigned {group.generation_id} {encode_assignment(Assignment(member.assignment)).hex()}"
                    script.expect(line, _equals(data.hex() if data is not None else "-", context))
    assert script.run() > GROUPS * ROUNDS
    assert len(wrong) < GROUPS * ROUNDS / 50, wrong[0]
    if name in ("range", "roundrobin"):
        assert not wrong, wrong[0]
