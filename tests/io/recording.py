"""A hook that records every event."""

from __future__ import annotations

from typing import Any, NamedTuple

from aioproducer.hooks import HOOKS


class Event(NamedTuple):
    hook: str
    arguments: tuple[Any, ...]


class Recording:
    """Every hook; ``events`` has their calls, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def names(self, *only: str) -> list[str]:
        return [event.hook for event in self.events if not only or event.hook in only]

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [event.arguments for event in self.events if event.hook == name]


def _recorder(name: str) -> Any:
    def record(self: Recording, *arguments: Any) -> None:
        self.events.append(Event(name, arguments))

    return record


for _hook in HOOKS:
    for _name in vars(_hook):
        if _name.startswith("on_"):
            setattr(Recording, _name, _recorder(_name))
