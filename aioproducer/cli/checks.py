"""The findings of ``aioproducer doctor``: checks, each with a result and, if it failed, what to do."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aioproducer._common.texts import counted


class Status(enum.Enum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    """It works, but with a difference worth knowing."""
    UNKNOWN = "unknown"
    """It cannot be checked here; the text says why."""
    FAILED = "failed"


class Check(NamedTuple):
    """A check; the text of one that failed says what to do."""

    name: str
    status: Status
    text: str

    @classmethod
    def ok(cls, name: str, text: object) -> Check:
        return cls(name, Status.OK, str(text))

    @classmethod
    def note(cls, name: str, text: object) -> Check:
        return cls(name, Status.NOTE, str(text))

    @classmethod
    def unknown(cls, name: str, text: object) -> Check:
        return cls(name, Status.UNKNOWN, str(text))

    @classmethod
    def failed(cls, name: str, text: object) -> Check:
        return cls(name, Status.FAILED, str(text))

    def line(self, width: int) -> str:
        """Return the check as a line, its name padded to ``width`` characters."""
        text = " ".join(self.text.split())
        mark = {Status.UNKNOWN: "unknown: ", Status.FAILED: "FAILED: "}.get(self.status, "")
        return f"  {self.name:<{width}}  {mark}{text}"


Sections = Mapping[str, Sequence[Check]]


def failures(sections: Sections) -> list[str]:
    """Return section and name of each check that failed."""
    return [f"{section}: {check.name}" for section, checks in sections.items() for check in checks if _failed(check)]


def _failed(check: Check) -> bool:
    return check.status is Status.FAILED


def section_lines(title: str, checks: Sequence[Check]) -> list[str]:
    """Return a section as lines: its title, then a line for each check."""
    width = max((len(check.name) for check in checks), default=0)
    return [title, *(check.line(width) for check in checks), ""]


def summary_line(sections: Sections) -> str:
    """Return the last line of the report."""
    failed = failures(sections)
    if not failed:
        return "All checks passed."
    return f"{counted(len(failed), 'check')} failed: {'; '.join(failed)}."


def as_json(sections: Sections) -> dict[str, object]:
    """Return the report for a script."""
    return {
        "ok": not failures(sections),
        "sections": {
            title: [{"name": check.name, "status": check.status.value, "text": check.text} for check in checks]
            for title, checks in sections.items()
        },
    }
