"""Checking that the modules that Python would import here correspond to the sources.

A compiled module takes precedence over the source beside it. If it is older than its source, or some modules of the set
are missing, the tests would not test the sources.
"""

from __future__ import annotations

import functools
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

EXTENSION_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))

# `from PACKAGE.MODULE cimport NAME`, and `cimport PACKAGE.MODULE`.
_CIMPORT = re.compile(r"^\s*(?:from\s+(aioproducer[\w.]*)\s+cimport|cimport\s+(aioproducer[\w.]*))", re.MULTILINE)


def what_is_wrong(root: Path, modules: Iterable[str]) -> str | None:
    """Return why the compiled modules in the package below ``root`` must not be tested; ``None`` if nothing is wrong.

    Args:
        modules: the names of the modules that are compiled in a compiled build.
    """
    compiled = {path.relative_to(root) for path in (root / "aioproducer").rglob(f"*{EXTENSION_SUFFIX}")}
    if not compiled:
        return None
    expected = {Path(*name.split(".")).with_suffix(EXTENSION_SUFFIX): name for name in modules}
    if compiled != expected.keys():
        names = ", ".join(sorted(map(str, compiled ^ expected.keys())))
        return _advice(f"compiled modules are missing, or there are some that nothing compiles any more: {names}")
    declarations = functools.cache(functools.partial(_declarations, root))
    stale = {
        name: [
            str(source.relative_to(root))
            for source in sorted({_source(root, name, ".py"), *declarations(name)})
            if source.stat().st_mtime_ns > (root / path).stat().st_mtime_ns
        ]
        for path, name in expected.items()
    }
    older = [f"{name} (of {', '.join(sources)})" for name, sources in stale.items() if sources]
    return _advice(f"compiled modules are older than their sources: {'; '.join(older)}") if older else None


def _advice(reason: str) -> str:
    return (
        f"{reason}.\n`make compiled` compiles them again (in an environment of your own: `python setup.py build_ext "
        "--inplace`); AIOPRODUCER_PURE=1 tests the sources."
    )


def _source(root: Path, name: str, suffix: str) -> Path:
    return root.joinpath(*name.split(".")).with_suffix(suffix)


def _declarations(root: Path, name: str) -> frozenset[Path]:
    """Yield the .pxd file of a module, and all that it includes."""
    found: set[Path] = set()
    names = [name]
    while names:
        path = _source(root, names.pop(), ".pxd")
        if path not in found and path.exists():
            found.add(path)
            names.extend(one or other for one, other in _CIMPORT.findall(path.read_text()))
    return frozenset(found)
