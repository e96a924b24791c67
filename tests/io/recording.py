"""A hook that remembers everything it is told."""

from __future__ import annotations

from typing import Any, NamedTuple

from aioproducer.hooks import HOOKS


class Told(NamedTuple):
    hook: str
    arguments: tuple[Any, ...]


class Recording:
    """Every hook there is; ``told`` has what they were called with, in order."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def names(self, *only: str) -> list[str]:
        return [told.hook for told in self.told if not only or told.hook in only]

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [told.arguments for told in self.told if told.hook == name]


def _recorder(name: str) -> Any:
    def record(self: Recording, *arguments: Any) -> None:
        self.told.append(Told(name, arguments))

    return record


for _hook in HOOKS:
    for _name in vars(_hook):
        if _name.startswith("on_"):
            setattr(Recording, _name, _recorder(_name))
