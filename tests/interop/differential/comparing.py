"""Comparing the observations of two clusters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.interop.differential.known import Difference
from tests.interop.differential.normal import Tree, flatten


class Found(NamedTuple):
    """A value that differs between the clusters."""

    path: str
    kafka: Tree
    embedded: Tree

    def __str__(self) -> str:
        return f"{self.path}\n    Apache Kafka: {self.kafka!r}\n    embedded:     {self.embedded!r}"


class _Missing:
    def __repr__(self) -> str:
        return "(nothing)"


def _paths(observed: Mapping[str, Tree]) -> dict[str, Tree]:
    return {
        f"{label}{'.' if path else ''}{path}": value
        for label, tree in observed.items()
        for path, value in flatten(tree)
    }


def differences(kafka: Mapping[str, Tree], embedded: Mapping[str, Tree]) -> list[Found]:
    """Return every value that differs, in the order of the observations."""
    ours, theirs = _paths(embedded), _paths(kafka)
    missing = _Missing()
    found = []
    for path in dict.fromkeys([*theirs, *ours]):
        kafka_value, our_value = theirs.get(path, missing), ours.get(path, missing)
        # True is not 1 here.
        if kafka_value is missing or our_value is missing or repr(kafka_value) != repr(our_value):
            found.append(Found(path, kafka_value, our_value))  # type: ignore[arg-type]  # shown, never looked at
    return found


def _matches(difference: Difference, path: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in difference.path.split("*"))
    return re.fullmatch(pattern, path, re.DOTALL) is not None


def judge(scenario: str, found: Iterable[Found], known: Sequence[Difference]) -> tuple[list[Found], list[Difference]]:
    """Return the differences that ``known`` does not list, and listed ones that did not occur."""
    listed = [difference for difference in known if difference.scenario == scenario]
    occurred: set[Difference] = set()
    unlisted = []
    for item in found:
        reasons = [difference for difference in listed if _matches(difference, item.path)]
        occurred.update(reasons)
        if not reasons:
            unlisted.append(item)
    return unlisted, [difference for difference in listed if difference not in occurred]
