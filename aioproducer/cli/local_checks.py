"""The checks of ``aioproducer doctor`` that need no broker: versions, build, codecs and event loop."""

from __future__ import annotations

import asyncio
import platform
import re
import ssl
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

from aioproducer import __version__, _build
from aioproducer._build import COMPILED_MODULES, PURE_VARIABLE, is_pure_wanted, take_uncompiled_warning
from aioproducer.cli.checks import Check
from aioproducer.compression import codec
from aioproducer.security.redaction import described

DEVELOPMENT_EXTRAS = frozenset({"bench", "build", "demo", "docs", "examples", "lint", "test", "wheel"})
"""Extras for the development of this project, not for users."""

_SAMPLE = b"A batch of records repeats itself. " * 200


def versions() -> list[Check]:
    """Return the versions of what the package runs on."""
    name, version = platform.libc_ver()
    return [
        Check.ok("aioproducer", __version__),
        Check.ok("Python", f"{platform.python_version()} ({platform.python_implementation()}, {platform.machine()})"),
        Check.ok("system", platform.platform()),
        Check.ok("C library", f"{name} {version}")
        if name
        else Check.unknown("C library", "Python finds no name in its own executable"),
        Check.ok("TLS library", ssl.OPENSSL_VERSION),
    ]


def packages(requirements: Sequence[str] | None, version_of: Callable[[str], str | None]) -> list[Check]:
    """Return the dependencies with their versions, and the extras.

    Args:
        requirements: those in the package's metadata; None if it is not installed.
        version_of: the installed version of a package, or None.
    """
    if requirements is None:
        text = "aioproducer is imported from a folder and not installed: pip install aioproducer, for its dependencies"
        return [Check.note("metadata", text)]
    checks = []
    extras: dict[str, list[tuple[str, str]]] = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*([^;\s]*)", requirement)
        assert match is not None, requirement
        name, needed = match.groups()
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if extra is not None:
            if extra[1] not in DEVELOPMENT_EXTRAS and name != "aioproducer":
                extras.setdefault(extra[1], []).append((name, needed))
            continue
        version = version_of(name)
        if version is None:
            checks.append(Check.failed(name, f"not installed, needs {needed}: pip install '{name}{needed}'"))
        else:
            checks.append(Check.ok(name, f"{version} (needs {needed})"))
    return [*checks, *(_extra(name, needs, version_of) for name, needs in sorted(extras.items()))]


def _extra(extra: str, needs: Iterable[tuple[str, str]], version_of: Callable[[str], str | None]) -> Check:
    found = [(name, version_of(name), needed) for name, needed in needs]
    if all(version is None for _, version, _ in found):
        return Check.ok(f"[{extra}]", "not installed")
    text = ", ".join(f"{name} {version or 'not installed'} (needs {needed})" for name, version, needed in found)
    if any(version is None for _, version, _ in found):
        return Check.note(f"[{extra}]", f"{text}: pip install 'aioproducer[{extra}]' for all of it")
    return Check.ok(f"[{extra}]", text)


def installed_packages() -> list[Check]:
    """Return ``packages`` for this environment."""
    try:
        requirements = metadata.requires("aioproducer") or []
    except metadata.PackageNotFoundError:
        requirements = None
    return packages(requirements, installed_version)


def installed_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def build() -> list[Check]:
    """Return where the package was loaded from, and how it was built."""
    folder = Path(_build.__file__).parent
    origins = [str(found.origin) for found in map(find_spec, COMPILED_MODULES) if found is not None]
    compiled = sum(origin.endswith(tuple(EXTENSION_SUFFIXES)) for origin in origins)
    return [Check.ok("folder", folder), *build_checks(folder, compiled, len(COMPILED_MODULES))]


def build_checks(folder: Path, compiled: int, total: int) -> list[Check]:
    """Return the kind of a build with ``compiled`` of its ``total`` hot modules compiled."""
    if compiled == total:
        # A profile-guided build has the code of all modules in one library (setup.py).
        guided = any(folder.glob("libaioproducer-*.so"))
        return [
            Check.ok("modules", f"compiled, all {total}"),
            Check.ok("profile-guided", "yes" if guided else "no"),
        ]
    if compiled:
        text = (
            f"{compiled} of {total} modules are compiled, which no build does: pip install --force-reinstall --no-deps "
            "aioproducer"
        )
        return [Check.failed("modules", text)]
    if is_pure_wanted():
        return [Check.note("modules", f"uncompiled, because {PURE_VARIABLE} is set in the environment")]
    return [Check.note("modules", take_uncompiled_warning() or "uncompiled")]


def codecs() -> list[Check]:
    """Return a check for each compression type: it compresses a sample and gets it back."""
    return [_codec(name, library) for name, library in _LIBRARIES.items()]


def _gzip_library() -> str:
    isal = installed_version("isal")
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}" + ("" if isal is None else f", isal {isal}")


def _snappy_library() -> str:
    return f"cramjam {installed_version('cramjam')}"


def _lz4_library() -> str:
    import lz4

    return f"lz4 {installed_version('lz4')}, liblz4 {lz4.library_version_string()}"


def _zstd_library() -> str:
    import zstandard

    return f"zstandard {installed_version('zstandard')}, libzstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}"


_LIBRARIES: dict[str, Callable[[], str]] = {
    "gzip": _gzip_library,
    "snappy": _snappy_library,
    "lz4": _lz4_library,
    "zstd": _zstd_library,
}


def _codec(name: str, library: Callable[[], str]) -> Check:
    try:
        compressed = codec(name).compress([_SAMPLE])
        returned = codec(name).decompress(compressed, len(_SAMPLE))
        text = library()
    except Exception as error:  # a broken library may raise any exception, which the report must show
        return Check.failed(name, described(error))
    if returned != _SAMPLE:
        return Check.failed(name, f"{text} returns other bytes than it was given: install the library again")
    return Check.ok(name, f"{text}, {len(_SAMPLE)} bytes to {len(compressed)} and back")


def event_loop() -> list[Check]:
    """Return the running event loop, and whether uvloop is there."""
    kind = type(asyncio.get_running_loop())
    uvloop = installed_version("uvloop")
    return [
        Check.ok(
            "default", f"{kind.__module__}.{kind.__qualname__}, Python {sys.version_info[0]}.{sys.version_info[1]}"
        ),
        Check.ok("uvloop", "not installed: pip install 'aioproducer[uvloop]'" if uvloop is None else uvloop),
    ]
