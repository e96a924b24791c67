"""Translates the project's docstrings for the API reference; mkdocs.yml names this file as an extension of griffe.

The docstrings have Google's sections, and two forms of reStructuredText that Markdown lacks: ``::`` before a block of
code, and definitions, which are a line of names with an indented text below it.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DEFINITION = re.compile(r"^(\w+(?:, \w+)*)\n((?:    .+(?:\n|\Z))+)", re.MULTILINE)
_DEFINITIONS = re.compile(rf"(?:{_DEFINITION.pattern})+", re.MULTILINE)
_COLONS = re.compile(r"^::$|(?<=\w:):$", re.MULTILINE)


def markdown(docstring: str) -> str:
    """Return the docstring with definitions as Google's section ``Attributes:``, and without ``::``."""
    return _DEFINITIONS.sub(lambda found: f"Attributes:\n{_attributes(found[0])}", _COLONS.sub("", docstring))


def _attributes(definitions: str) -> str:
    """Return an item for each name: Google's sections have no items with two."""
    return "".join(
        f"    {name}: {text.strip()}\n".replace("\n    ", "\n        ")
        for names, text in _DEFINITION.findall(definitions)
        for name in names.split(", ")
    )


class ProjectDocstrings(griffe.Extension):
    """Translates each docstring when its object is found."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
