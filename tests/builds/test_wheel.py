"""Wheels built from the sdist, with a C compiler and without one, produce and consume."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from aioproducer._build import COMPILED_MODULES

ROOT = Path(__file__).parents[2]
NEEDED = ["aioproducer", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "training.py"]
NO_COMPILER = "/bin/false"
COMPILED_FILES = {f"{name.replace('.', '/')}{EXTENSION_SUFFIXES[0]}" for name in COMPILED_MODULES}

ROUND_TRIP = """
import asyncio, json, sys
# As where Cython is not installed: it is not needed to run.
sys.modules["cython"] = None
import aioproducer
from importlib import import_module
from aioproducer._build import COMPILED_MODULES
from aioproducer.testing import EmbeddedCluster

async def main():
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("clicks")
        async with aioproducer.Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=5) as producer:
            deliveries = [producer.send("clicks", b"value %d" % i, b"key", headers=[("h", b"x")]) for i in range(100)]
            offsets = [(await delivery).offset for delivery in deliveries]
            many = await producer.send_many("clicks", [b"many"] * 1000)
        return offsets, [record.value.decode() for record in cluster.records("clicks")]

offsets, values = asyncio.run(main())
print(json.dumps({
    "compiled": aioproducer.Producer.compiled,
    "files": [import_module(name).__file__ for name in COMPILED_MODULES],
    "offsets": offsets,
    "values": values,
}))
"""

# Two processors under load need this long for compiling.
pytestmark = pytest.mark.timeout(1200)


def _run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Exclude the test environment and the developer's compiler flags.
    ours = {name for name in os.environ if name.startswith(("AIOPRODUCER_", "PYTHONPATH", "COV_"))}
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        command, cwd=folder, env={**inherited, **environment}, capture_output=True, text=True, check=False
    )


def _hook(name: str, folder: Path, target: Path, **environment: str) -> tuple[Path, str]:
    """Run the function that a build frontend such as pip calls; return the file, and the output."""
    target.mkdir(exist_ok=True)
    code = f"import sys; from setuptools import build_meta; print(build_meta.{name}(sys.argv[1]))"
    run = _run([sys.executable, "-c", code, str(target)], folder, **environment)
    assert run.returncode == 0, run.stdout + run.stderr
    return target / run.stdout.splitlines()[-1], run.stdout + run.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist, made from the files of a checkout."""
    folder = tmp_path_factory.mktemp("sdist")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy2(ROOT / name, checkout / name)
    archive, _ = _hook("build_sdist", checkout, folder / "dist")
    # CPython 3.11.2 of Debian 12 has no filters yet, and later versions warn without one.
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder / archive.name.removesuffix(".tar.gz")


def _no_cython(tmp_path: Path) -> str:
    """A folder for PYTHONPATH that makes Cython impossible to import."""
    package = tmp_path / "no cython" / "Cython"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no Cython here')\n")
    return str(package.parent)


def _copy(sdist: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sdist, tmp_path / "source"))


def _members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _install(wheel: Path, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def _check_round_trip(target: Path, tmp_path: Path, *, compiled: bool, **environment: str) -> None:
    run = _run([sys.executable, "-c", ROUND_TRIP], tmp_path, PYTHONPATH=str(target), **environment)
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(run.stdout)
    assert result["compiled"] is compiled
    assert all(Path(file).is_relative_to(target) for file in result["files"])
    assert {Path(file).suffix for file in result["files"]} == {".so" if compiled else ".py"}
    assert result["offsets"] == list(range(100))
    assert sorted(result["values"]) == sorted([f"value {i}" for i in range(100)] + ["many"] * 1000)


def test_the_sdist_contains_the_sources_of_the_compiled_modules(sdist: Path) -> None:
    names = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*")}
    declarations = {path.relative_to(ROOT).as_posix() for path in (ROOT / "aioproducer").rglob("*.pxd")}
    assert declarations <= names
    assert {f"{name.replace('.', '/')}.py" for name in COMPILED_MODULES} <= names
    assert "training.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_the_sdist_contains_the_compiled_modules_in_c(sdist: Path) -> None:
    """The C files belong to the sources beside them, and name no folder of the machine that made them."""
    translated = {path.relative_to(sdist).as_posix(): path for path in sdist.rglob("*.c")}
    assert translated.keys() == {f"translated/{name.replace('.', '/')}.c" for name in COMPILED_MODULES}
    made_in = str(sdist.parent)
    assert not [name for name, path in translated.items() if made_in in path.read_text()]
    origin = json.loads((sdist / "translated" / "origin.json").read_text())
    assert re.fullmatch(r"Cython \d+\.\d+[\w.]*", origin["translator"])


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_with_a_compiler_the_wheel_is_compiled(sdist: Path, tmp_path: Path) -> None:
    """The build runs without optimisation, which takes a minute, and again with one module that does not compile.

    Neither build has Cython, and neither needs it, until a source has changed.
    """
    source = _copy(sdist, tmp_path)
    options = {"CFLAGS": "-O0", "AIOPRODUCER_REQUIRE_COMPILED": "1", "PYTHONPATH": _no_cython(tmp_path)}
    wheel, printed = _hook("build_wheel", source, tmp_path / "dist", **options)
    assert f"aioproducer: compiling {len(COMPILED_FILES)} modules" in printed
    assert re.search(r"from the C files of this sdist \(Cython 3[\d.]*\)", printed)
    assert re.search(r"^aioproducer: compiled, in \d+ s of CPU time$", printed, re.MULTILINE)
    assert not re.findall(r"^.*:\d+:\d+: warning: .*", printed, re.MULTILINE)
    members = _members(wheel)
    assert {name for name in members if name.endswith(".so")} == COMPILED_FILES
    assert {f"{name.replace('.', '/')}.py" for name in COMPILED_MODULES} <= members
    assert {"aioproducer/py.typed", "aioproducer/core/outcomes/future_type.pyi"} <= members
    assert not [name for name in members if name.endswith((".pxd", ".c"))]
    target = _install(wheel, tmp_path / "installed")
    _check_round_trip(target, tmp_path, compiled=True)
    _check_round_trip(target, tmp_path, compiled=False, AIOPRODUCER_PURE="1")

    # The others are up to date in the build's folder, but must not be in the wheel.
    broken = source / "translated" / "aioproducer" / "wire" / "varint.c"
    broken.write_text(f'#include "no_such_header.h"\n{broken.read_text()}')
    code = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    failed = _run([sys.executable, "-c", code], source, **options)
    assert failed.returncode != 0
    assert "no_such_header.h" in failed.stderr
    del options["AIOPRODUCER_REQUIRE_COMPILED"]
    wheel, printed = _hook("build_wheel", source, tmp_path / "broken", **options)
    assert [line for line in printed.splitlines() if line.startswith("aioproducer: its modules are not compiled")]
    assert not [name for name in _members(wheel) if name.endswith(".so")]
    _check_round_trip(_install(wheel, tmp_path / "installed broken"), tmp_path, compiled=False)

    changed = source / "aioproducer" / "wire" / "varint.pxd"
    changed.write_text(f"{changed.read_text()}\n# changed\n")
    _, printed = _hook("build_wheel", source, tmp_path / "changed", **options)
    assert "aioproducer: its modules are not compiled and run slower: Cython cannot be imported" in printed


def test_without_a_compiler_the_wheel_runs_uncompiled(sdist: Path, tmp_path: Path) -> None:
    source = _copy(sdist, tmp_path)
    wheel, printed = _hook("build_wheel", source, tmp_path / "dist", CC=NO_COMPILER)
    (line,) = [line for line in printed.splitlines() if line.startswith("aioproducer:")]
    assert line == (
        f"aioproducer: its modules are not compiled and run slower: {NO_COMPILER} cannot be run or does not find "
        "Python.h (Debian, Ubuntu: apt install gcc python3-dev)"
    )
    assert not [name for name in _members(wheel) if name.endswith(".so")]
    _check_round_trip(_install(wheel, tmp_path / "installed"), tmp_path, compiled=False)


def test_an_impossible_profile_guided_build_fails(sdist: Path, tmp_path: Path) -> None:
    """It once made a wheel without any compiled module, and pip did not show the reason."""
    code = "from setuptools import build_meta; build_meta.build_wheel('.')"
    run = _run([sys.executable, "-c", code], _copy(sdist, tmp_path), CC=NO_COMPILER, AIOPRODUCER_PROFILE_GUIDED="1")
    assert run.returncode == 1
    assert f"{NO_COMPILER} cannot be run or does not find Python.h" in run.stderr
    assert "or it does not take -fprofile-use" in run.stderr
    assert not list(tmp_path.rglob("*.whl"))


@pytest.mark.interop
@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each module has its own code")
def test_a_profile_guided_wheel_has_all_modules_in_one_library(sdist: Path, tmp_path: Path) -> None:
    source = _copy(sdist, tmp_path)
    options = {"CFLAGS": "-O0", "AIOPRODUCER_REQUIRE_COMPILED": "1"}
    wheel, _ = _hook("build_wheel", source, tmp_path / "dist", **options, AIOPRODUCER_PROFILE_GUIDED="1")
    with zipfile.ZipFile(wheel) as archive:
        sizes = {each.filename: each.file_size for each in archive.infolist() if each.filename.endswith(".so")}
    (library,) = sizes.keys() - COMPILED_FILES
    assert library.startswith("aioproducer/libaioproducer-")
    assert sizes.keys() >= COMPILED_FILES
    assert sizes[library] > 1_000_000
    assert max(sizes[name] for name in COMPILED_FILES) < 50_000
    target = _install(wheel, tmp_path / "installed")
    _check_round_trip(target, tmp_path, compiled=True)
    _check_round_trip(target, tmp_path, compiled=False, AIOPRODUCER_PURE="1")

    # A build without a profile in the same folder recompiles every module, and removes the library.
    for translated in (source / "translated").rglob("*.c"):
        translated.touch()
    wheel, _ = _hook("build_wheel", source, tmp_path / "plain", **options)
    assert {name for name in _members(wheel) if name.endswith(".so")} == COMPILED_FILES
    _check_round_trip(_install(wheel, tmp_path / "installed plain"), tmp_path, compiled=True)


def test_without_cython_a_changed_source_runs_uncompiled(sdist: Path, tmp_path: Path) -> None:
    source = _copy(sdist, tmp_path)
    changed = source / "aioproducer" / "wire" / "varint.py"
    changed.write_text(f"{changed.read_text()}\n# Patched by a distribution.\n")
    wheel, printed = _hook("build_wheel", source, tmp_path / "dist", PYTHONPATH=_no_cython(tmp_path))
    assert "run slower: Cython cannot be imported (no Cython here)" in printed
    assert not [name for name in _members(wheel) if name.endswith(".so")]


def test_a_source_only_build_is_for_every_machine(sdist: Path, tmp_path: Path) -> None:
    wheel, printed = _hook("build_wheel", _copy(sdist, tmp_path), tmp_path / "dist", AIOPRODUCER_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "aioproducer:" not in printed
    assert not [name for name in _members(wheel) if name.endswith(".so")]
