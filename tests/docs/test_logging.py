"""docs/logging.md lists every logger of the package, with the levels that its module uses."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "logging.md"
LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}

# Calls of getLogger with a variable: the package's logger by default, and those of other packages, to silence them.
BY_ARGUMENT = {("aioproducer._common.client_log", "name"), ("aioproducer.security.oauth.msk", "name")}


def _rows() -> dict[str, set[str]]:
    """Return the loggers of the last table, with their levels."""
    table = PAGE.read_text().partition("## All loggers")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| ([A-Za-z, ]+) \|", table, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return {name: set(levels.split(", ")) for name, levels in rows}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in [*(ROOT / "aioproducer").rglob("*.py"), ROOT / "pyspark_aioproducer.py"]:
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts), ast.parse(path.read_text(encoding="utf-8"))


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _loggers(module: str, tree: ast.AST) -> Iterator[str]:
    for function, call in _calls(tree):
        if function == "logging.getLogger" and call.args:
            argument = call.args[0]
            if isinstance(argument, ast.Constant):
                yield str(argument.value)
            elif ast.unparse(argument) == "__name__":
                yield module
            else:
                assert (module, ast.unparse(argument)) in BY_ARGUMENT


def test_every_logger_of_the_sources_is_listed() -> None:
    assert {logger for module, tree in _modules() for logger in _loggers(module, tree)} == _rows().keys()


def test_levels_are_those_that_the_modules_use() -> None:
    """This checks loggers with their module's name; others are used by several modules, under several names."""
    rows = _rows()
    compared = 0
    for module, tree in _modules():
        if module not in rows:
            continue
        used = {LEVELS[function.rpartition(".")[2]] for function, _ in _calls(tree) if _is_log_call(function)}
        dynamic = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {level for level in set(LEVELS.values()) if f"logging.{level}" in dynamic}
        assert rows[module] == used, module
        compared += 1
    assert compared > 25


def _is_log_call(function: str) -> bool:
    owner, _, level = function.rpartition(".")
    return owner in ("logger", "_logger") and level in LEVELS


def test_levels_have_logging_s_names() -> None:
    known = logging.getLevelNamesMapping().keys() | {"all"}
    assert set().union(*_rows().values()) <= known


def test_every_logger_is_below_the_package_s() -> None:
    """One call changes the level of all."""
    assert all(name.partition(".")[0] == "aioproducer" for name in _rows())
