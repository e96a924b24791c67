"""Which room of the package may import which, and that the rooms that decide do no input and output."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "aioproducer"

_ERRORS = {"errors", "error_codes", "error_texts", "diagnosis", "texts", "client_log"}
_PLUGINS = {"serializers", "partitioner", "interceptors", "hooks", "metrics"}
_FORMATS = {"wire", "protocol", "compression"}
_CLIENT = _ERRORS | _PLUGINS | _FORMATS | {"record", "config", "security", "core", "transport", "io"}

# A room (a top-level module or folder) and the other rooms it may import. Nobody may import what is not in its row.
ARROWS: dict[str, set[str]] = {
    "build": set(),
    "uncompiled": set(),
    "views": {"uncompiled"},
    "error_codes": set(),
    "error_texts": {"error_codes", "texts"},
    "record": {"texts", "uncompiled"},
    "producer_record": {"record"},
    "texts": set(),
    "client_log": {"texts"},
    "errors": {"error_codes", "error_texts", "record", "texts"},
    "diagnosis": {"errors", "error_codes", "record", "texts"},
    "compression": _ERRORS,
    "wire": _ERRORS | {"compression", "uncompiled"},
    "protocol": _ERRORS | {"wire", "compression", "record", "uncompiled"},
    "partitioner": _ERRORS | {"record", "wire"},
    "serializers": _ERRORS | {"record"},
    "interceptors": _ERRORS | {"record", "producer_record"},
    "hooks": _ERRORS | {"record", "producer_record"},
    "metrics": _ERRORS | {"record", "uncompiled"},
    "config": _ERRORS | _PLUGINS | {"record", "compression"},
    "security": _ERRORS | {"config"},
    "core": _ERRORS | _FORMATS | {"record", "partitioner", "uncompiled", "views"},
    "transport": _ERRORS | {"uncompiled", "views"},
    "io": _ERRORS | _PLUGINS | _FORMATS | {"record", "producer_record", "config", "core", "transport"},
    "validation": _ERRORS | {"record", "wire"},
    "ownership": _ERRORS,
    "arrow": {"core"},
    "bulk": _ERRORS | {"record", "core", "arrow"},
    "threadsafe": _ERRORS | {"record", "core", "bulk", "ownership", "validation"},
    "slow_path": _ERRORS | {"record", "core", "io", "wire", "config", "interceptors", "validation", "producer_record"},
    "factory": _CLIENT,
    "hot_path": _ERRORS | {"record", "wire", "core", "ownership", "validation", "slow_path", "uncompiled"},
    "producer": _CLIENT
    | {"build", "hot_path", "slow_path", "ownership", "validation", "bulk", "threadsafe", "factory", "producer_record"},
    "admin": _CLIENT | {"factory"},
    "consumer": _CLIENT | {"admin"},
    "broker": _ERRORS | _FORMATS | {"record", "transport", "security", "config"},
    "gateway": _ERRORS | _FORMATS | {"record", "transport", "security", "config"},
    "testing": _CLIENT | {"producer", "admin", "consumer", "broker", "gateway"},
    "spark": _CLIENT | {"producer", "admin", "bulk", "arrow", "validation"},
    "cli": _CLIENT | {"producer", "admin", "consumer", "broker", "gateway"},
    "__init__": _CLIENT | {"producer", "bulk", "build", "producer_record"},
    "__main__": {"cli"},
}

# Time and bytes come in as arguments, nothing waits.
SANS_IO = _FORMATS | {"core", "partitioner", "record", "metrics", "errors", "error_codes", "error_texts", "texts"}
WAITING = {"asyncio", "selectors", "select", "socket", "ssl", "threading", "concurrent", "subprocess", "time", "uvloop"}


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for alternative in node.orelse:
                yield alternative
                yield from _runtime_nodes(alternative)
            continue
        yield node
        yield from _runtime_nodes(node)


def _modules(path: Path, node: ast.AST) -> list[str]:
    """The full names of the modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    if node.level:
        base = ["aioproducer", *path.relative_to(PACKAGE).parent.parts][: -(node.level - 1) or None]
        return [".".join([*base, *(node.module or alias.name).split(".")]) for alias in node.names]
    if node.module == "aioproducer":
        return [f"aioproducer.{alias.name}" for alias in node.names]
    return [node.module or ""]


def _rooms_imported(path: Path, tree: ast.AST) -> set[str]:
    rooms = set()
    for node in ast.walk(tree):
        for module in _modules(path, node):
            parts = module.split(".")
            # The version alone may be had from the package itself.
            if parts[0] == "aioproducer" and parts[1:] != ["__version__"]:
                rooms.add(parts[1] if len(parts) > 1 else "__init__")
    return rooms - {_room(path)}


def test_every_file_is_in_a_room_with_a_rule() -> None:
    assert {_room(path) for path in _sources()} <= ARROWS.keys()


def test_arrows_have_no_cycle() -> None:
    graphlib.TopologicalSorter(ARROWS).prepare()


def test_nothing_of_the_client_points_outward() -> None:
    for room in ARROWS.keys() - {"testing", "spark", "cli", "__main__"}:
        assert not ARROWS[room] & {"testing", "spark", "cli"}
    assert not (ARROWS["broker"] | ARROWS["gateway"]) & {"core", "io", "producer"}


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    outward = _rooms_imported(path, _tree(path)) - ARROWS[_room(path)]
    assert not outward, f"{path.relative_to(PACKAGE.parent)} imports {sorted(outward)}"


@pytest.mark.parametrize(
    "path", [path for path in _sources() if _room(path) in SANS_IO], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_rooms_that_decide_do_not_wait(path: Path) -> None:
    imported = {module.split(".")[0] for node in _runtime_nodes(_tree(path)) for module in _modules(path, node)}
    assert not imported & WAITING, f"{path.relative_to(PACKAGE.parent)} imports {sorted(imported & WAITING)}"


def test_imports_of_every_kind_are_seen() -> None:
    core = PACKAGE / "core" / "example.py"
    source = "from aioproducer.io import a\nimport aioproducer.broker.log\nfrom aioproducer import cli, __version__\n"
    assert _rooms_imported(core, ast.parse(source)) == {"io", "broker", "cli"}
    assert _rooms_imported(
        core, ast.parse("from ..io.node import a\nfrom . import batch\nfrom .. import producer\n")
    ) == {
        "io",
        "producer",
    }
    assert _rooms_imported(core, ast.parse("def f():\n    import aioproducer\n")) == {"__init__"}
    guarded = ast.parse("if TYPE_CHECKING:\n    import asyncio\nelse:\n    import socket\ndef f():\n    import time\n")
    seen = {module for node in _runtime_nodes(guarded) for module in _modules(core, node)}
    assert seen == {"socket", "time"}
