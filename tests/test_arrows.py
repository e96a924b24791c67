"""Import rules between the rooms of the package; the rooms without io do no input and output."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "aioproducer"

# Rooms with files or folders that are separate rooms.
DIVIDED = {"_client", "_common", "broker", "core"}
# Packages that are rooms inside a room; the other files of the outer room are one room.
INNER = {("spark", "transactional")}

_ERRORS = {"errors", "error_codes", "_common.error_texts", "_common.diagnosis", "_common.texts", "_common.client_log"}
_PLUGINS = {"serializers", "deserializers", "partitioner", "interceptors", "hooks", "metrics", "consumer_metrics"}
_FORMATS = {"wire", "protocol", "compression"}
_CORE = {
    "core.batching",
    "core.columns",
    "core.fetching",
    "core.membership",
    "core.metadata",
    "core.outcomes",
    "core.requests",
    "core.transactions",
    "core.waiting",
}
_CLIENT = _ERRORS | _PLUGINS | _FORMATS | _CORE | {"record", "offsets", "config", "security", "transport", "io"}

# Imports that each room of core may have in addition to those of its row.
_BELOW_CORE = _ERRORS | _FORMATS | {"record", "partitioner", "_common.uncompiled", "_common.views"}

# The rooms of the broker share these, and nothing with the rooms that make the client's decisions.
_BELOW_BROKER = _ERRORS | _FORMATS

# A room (a top-level module or folder, or one in a divided room) and the other rooms that it may import.
ARROWS: dict[str, set[str]] = {
    "_build": set(),
    "_common": set(),
    "_common.uncompiled": set(),
    "_common.views": {"_common.uncompiled"},
    "error_codes": set(),
    "_common.error_texts": {"error_codes", "_common.texts"},
    "record": {"_common.texts", "_common.uncompiled"},
    "offsets": {"record"},
    "_common.texts": set(),
    "_common.client_log": {"_common.texts"},
    "errors": {"error_codes", "_common.error_texts", "record", "_common.texts"},
    "_common.diagnosis": {"errors", "error_codes", "record", "_common.texts"},
    "compression": _ERRORS,
    "wire": _ERRORS | {"compression", "_common.uncompiled", "_common.views"},
    "protocol": _ERRORS | {"wire", "compression", "record", "_common.uncompiled"},
    "partitioner": _ERRORS | {"record", "wire"},
    "serializers": _ERRORS | {"record"},
    "deserializers": _ERRORS | {"record"},
    "interceptors": _ERRORS | {"record"},
    "hooks": _ERRORS | {"record"},
    "metrics": _ERRORS | {"record", "_common.uncompiled"},
    "consumer_metrics": {"metrics", "protocol", "record"},
    "config": _ERRORS | _PLUGINS | {"record", "compression"},
    "security": _ERRORS | {"config", "core.requests"},
    "core": set(),
    "core.outcomes": _BELOW_CORE,
    "core.requests": _BELOW_CORE | {"_build"},
    "core.metadata": _BELOW_CORE | {"core.requests"},
    "core.fetching": _BELOW_CORE | {"core.metadata", "core.requests"},
    "core.waiting": _BELOW_CORE | {"core.outcomes"},
    "core.batching": _BELOW_CORE | {"core.outcomes", "core.requests", "core.waiting"},
    "core.columns": _BELOW_CORE | {"core.batching", "core.outcomes"},
    "core.transactions": _BELOW_CORE | {"offsets", "core.batching", "core.requests"},
    "core.membership": _BELOW_CORE | {"offsets", "core.requests", "core.transactions"},
    "transport": _ERRORS | {"_common.uncompiled", "_common.views"},
    "io": _ERRORS | _PLUGINS | _FORMATS | _CORE | {"record", "config", "offsets", "transport"},
    "_client": set(),
    "_client.validation": _ERRORS | {"record", "wire"},
    "_client.ownership": _ERRORS,
    "_client.arrow": {"core.columns"},
    "_client.bulk": _ERRORS | _CORE | {"record", "_client.arrow"},
    "_client.threadsafe": _ERRORS
    | {"record", "core.outcomes", "_client.bulk", "_client.ownership", "_client.validation"},
    "_client.slow_path": _ERRORS | _CORE | {"record", "io", "wire", "config", "_client.validation"},
    "_client.open_transactions": _ERRORS | {"record"},
    "_client.transactions": _ERRORS
    | _CORE
    | {
        "config",
        "io",
        "metrics",
        "offsets",
        "record",
        "wire",
        "_client.bulk",
        "_client.hot_path",
        "_client.open_transactions",
    },
    "_client.admin_calls": _ERRORS | {"io", "offsets"},
    "_client.group_admin": _ERRORS | _CORE | {"io", "offsets", "protocol", "record", "_client.admin_calls"},
    "_client.transaction_admin": _ERRORS | _CORE | {"io", "offsets", "protocol", "record", "_client.admin_calls"},
    "_client.pool_queue": _ERRORS,
    "_client.factory": _CLIENT,
    "_client.hot_path": _ERRORS
    | _CORE
    | {
        "interceptors",
        "record",
        "serializers",
        "wire",
        "_client.ownership",
        "_client.validation",
        "_client.slow_path",
        "_common.uncompiled",
    },
    "producer": _CLIENT
    | {
        "_build",
        "_client.hot_path",
        "_client.slow_path",
        "_client.ownership",
        "_client.validation",
        "_client.bulk",
        "_client.threadsafe",
        "_client.transactions",
        "_client.factory",
    },
    "transaction_pool": _ERRORS
    | {
        "config",
        "core.metadata",
        "core.transactions",
        "io",
        "metrics",
        "transport",
        "producer",
        "_client.pool_queue",
        "_client.transactions",
        "_client.validation",
    },
    "admin": _CLIENT
    | {
        "_client.admin_calls",
        "_client.factory",
        "_client.group_admin",
        "_client.transaction_admin",
        "_client.validation",
    },
    "consumer": _CLIENT
    | {
        "_client.factory",
        "_client.transaction_admin",
        "_client.validation",
        "_common.uncompiled",
        "admin",
    },
    "broker": {"broker.broker", "broker.cluster", "broker.config"},
    "broker.image": _BELOW_BROKER,
    "broker.faults": _BELOW_BROKER,
    "broker.log": _BELOW_BROKER,
    "broker.config": _BELOW_BROKER | {"broker.log", "config"},
    "broker.server": _BELOW_BROKER | {"transport"},
    "broker.controller": _BELOW_BROKER | {"broker.config", "broker.image", "broker.log"},
    "broker.replicas": _BELOW_BROKER
    | {"broker.config", "broker.controller", "broker.image", "broker.log", "broker.server"},
    "broker.yielding": set(),
    "broker.coordination": _BELOW_BROKER
    | {
        "broker.config",
        "broker.controller",
        "broker.image",
        "broker.log",
        "broker.replicas",
        "broker.yielding",
    },
    "broker.groups": _BELOW_BROKER
    | {
        "broker.config",
        "broker.controller",
        "broker.coordination",
        "broker.image",
        "broker.log",
        "broker.replicas",
        "broker.yielding",
    },
    "broker.transactions": _BELOW_BROKER
    | {
        "broker.config",
        "broker.controller",
        "broker.coordination",
        "broker.image",
        "broker.log",
        "broker.replicas",
        "broker.server",
    },
    "broker.handlers": _BELOW_BROKER
    | {
        "broker.config",
        "broker.controller",
        "broker.faults",
        "broker.groups",
        "broker.image",
        "broker.log",
        "broker.replicas",
        "broker.server",
        "broker.transactions",
        "broker.yielding",
        "config",
    },
    "broker.broker": _BELOW_BROKER
    | {
        "broker.config",
        "broker.controller",
        "broker.faults",
        "broker.groups",
        "broker.handlers",
        "broker.image",
        "broker.log",
        "broker.replicas",
        "broker.server",
        "broker.transactions",
        "transport",
    },
    "broker.cluster": _BELOW_BROKER
    | {
        "broker.broker",
        "broker.config",
        "broker.controller",
        "broker.faults",
        "broker.image",
        "broker.log",
        "transport",
    },
    "gateway": _ERRORS | _FORMATS | {"record", "transport", "core.requests"},
    "testing": _CLIENT
    | {
        "producer",
        "transaction_pool",
        "admin",
        "consumer",
        "broker",
        "broker.cluster",
        "broker.controller",
        "broker.groups",
        "broker.image",
        "broker.log",
        "broker.replicas",
        "gateway",
    },
    "spark.transactional": _ERRORS | {"record"},
    "spark": _CLIENT
    | {
        "producer",
        "admin",
        "consumer",
        "spark.transactional",
        "_client.bulk",
        "_client.arrow",
        "_client.open_transactions",
        "_client.transactions",
        "_client.validation",
    },
    "cli": _CLIENT
    | {
        "_build",
        "_client.factory",
        "producer",
        "admin",
        "consumer",
        "broker",
        "gateway",
        "spark",
        "spark.transactional",
    },
    "__init__": _CLIENT
    | {"_build", "_client.bulk", "_client.transactions", "consumer", "producer", "transaction_pool"},
    "__main__": {"cli"},
}

# Time and bytes are arguments; nothing waits.
SANS_IO = (
    _FORMATS
    | _CORE
    | {
        "partitioner",
        "record",
        "metrics",
        "consumer_metrics",
        "errors",
        "error_codes",
        "spark.transactional",
        "_common.error_texts",
        "_common.texts",
    }
)
WAITING = {"asyncio", "selectors", "select", "socket", "ssl", "threading", "concurrent", "subprocess", "time", "uvloop"}


def _room(path: Path) -> str:
    return _room_of(path.relative_to(PACKAGE).with_suffix("").parts)


def _room_of(parts: Sequence[str]) -> str:
    """Return the room of a module, by the parts of its name without the package's."""
    if not parts:
        return "__init__"
    if tuple(parts[:2]) in INNER or (
        parts[0] in DIVIDED and len(parts) > 1 and parts[1] != "__init__" and _is_module(parts[:2])
    ):
        return f"{parts[0]}.{parts[1]}"
    # A file or folder of the top level, or a name that the __init__.py of a divided room defines.
    return parts[0]


def _is_module(parts: Sequence[str]) -> bool:
    path = PACKAGE.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node except those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for alternative in node.orelse:
                yield alternative
                yield from _runtime_nodes(alternative)
            continue
        yield node
        yield from _runtime_nodes(node)


def _modules(path: Path, node: ast.AST) -> list[str]:
    """Yield the full names of the modules of an import statement."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    if node.level:
        base = ["aioproducer", *path.relative_to(PACKAGE).parent.parts][: -(node.level - 1) or None]
        return [".".join([*base, *(node.module or alias.name).split(".")]) for alias in node.names]
    if node.module == "aioproducer" or node.module in {f"aioproducer.{room}" for room in DIVIDED}:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [node.module or ""]


def _rooms_imported(path: Path, tree: ast.AST) -> set[str]:
    rooms = set()
    for node in ast.walk(tree):
        for module in _modules(path, node):
            parts = module.split(".")
            # Only the version may be imported from the package itself.
            if parts[0] == "aioproducer" and parts[1:] != ["__version__"]:
                rooms.add(_room_of(parts[1:]))
    return rooms - {_room(path)}


def _module_name(path: Path) -> str:
    """Return the name of a file's module without the package's, empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def _modules_imported() -> dict[str, set[str]]:
    """Return the modules of the package with their imports, including those only for type checkers."""
    names = {_module_name(path) for path in _sources()}
    graph = {}
    for path in _sources():
        imported = set()
        for node in ast.walk(_tree(path)):
            for module in _modules(path, node):
                package, _, name = module.partition(".")
                if package != "aioproducer":
                    continue
                given = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
                inner = {f"{name}.{other}" for other in given} & names
                imported |= inner or {name if name in names else name.rpartition(".")[0]}
        graph[_module_name(path)] = (imported & names) - {_module_name(path)}
    return graph


def _circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the largest sets of modules that all import each other, directly or indirectly."""

    def reached_from(module: str) -> set[str]:
        reached: set[str] = set()
        waiting = [module]
        while waiting:
            found = graph[waiting.pop()] - reached
            reached |= found
            waiting += found
        return reached

    reached = {module: reached_from(module) for module in graph}
    circles = [{other for other in reached[module] if module in reached[other]} for module in sorted(graph)]
    return [circle for number, circle in enumerate(circles) if circle and circle not in circles[:number]]


def test_no_import_circle_has_more_than_two_modules() -> None:
    """Imports for type checkers count: a circle is read as one piece, whether or not it runs as one.

    Two modules that import each other are one part in two files; a comment at the import gives the reason.
    """
    assert not [sorted(circle) for circle in _circles(_modules_imported()) if len(circle) > 2]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}, "f": {"a"}}
    assert _circles(graph) == [{"a", "b", "c"}, {"d", "e"}]
    graph = _modules_imported()
    assert "broker.handlers.produce" in graph["broker.handlers"]
    assert "broker.broker" in graph["broker"]
    assert "errors" in graph["broker.image"]
    assert "broker.handlers.context" in graph["broker.handlers.produce"]


def test_every_file_belongs_to_a_room_with_an_import_rule() -> None:
    assert {_room(path) for path in _sources()} <= ARROWS.keys()


def test_the_import_rules_have_no_cycle() -> None:
    """``prepare`` raises ``CycleError`` for a cycle."""
    graphlib.TopologicalSorter(ARROWS).prepare()


def test_the_client_imports_nothing_of_testing_spark_or_cli() -> None:
    for room in ARROWS.keys() - {"testing", "spark", "cli", "__main__"}:
        assert not ARROWS[room] & {"testing", "spark", "cli"}
    for room in ARROWS:
        if room.partition(".")[0] in {"broker", "gateway"}:
            # The gateway authenticates as a client does.
            shared = {"core.requests"} if room == "gateway" else set()
            assert not ARROWS[room] & ({"io", "producer"} | _CORE) - shared


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_rules(path: Path) -> None:
    outward = _rooms_imported(path, _tree(path)) - ARROWS[_room(path)]
    assert not outward, f"{path.relative_to(PACKAGE.parent)} imports {sorted(outward)}"


@pytest.mark.parametrize(
    "path", [path for path in _sources() if _room(path) in SANS_IO], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_rooms_without_io_import_no_module_that_waits(path: Path) -> None:
    imported = {module.split(".")[0] for node in _runtime_nodes(_tree(path)) for module in _modules(path, node)}
    assert not imported & WAITING, f"{path.relative_to(PACKAGE.parent)} imports {sorted(imported & WAITING)}"


def test_imports_of_every_kind_are_detected() -> None:
    core = PACKAGE / "core" / "batching" / "example.py"
    source = "from aioproducer.io import a\nimport aioproducer.broker.log\nfrom aioproducer import cli, __version__\n"
    assert _rooms_imported(core, ast.parse(source)) == {"io", "broker.log", "cli"}
    assert _rooms_imported(core, ast.parse("from aioproducer.broker import BrokerCluster, faults\n")) == {
        "broker",
        "broker.faults",
    }
    assert _rooms_imported(
        core, ast.parse("from ...io.node import a\nfrom . import batch\nfrom .. import waiting\n")
    ) == {"io", "core.waiting"}
    assert _rooms_imported(core, ast.parse("def f():\n    import aioproducer\n")) == {"__init__"}
    guarded = ast.parse("if TYPE_CHECKING:\n    import asyncio\nelse:\n    import socket\ndef f():\n    import time\n")
    seen = {module for node in _runtime_nodes(guarded) for module in _modules(core, node)}
    assert seen == {"socket", "time"}
