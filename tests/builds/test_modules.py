"""The build under test is the requested one, in every module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import aioproducer
from aioproducer._build import COMPILED_MODULES, PURE_VARIABLE, is_pure_wanted

ASKED_FOR = os.environ.get("AIOPRODUCER_BUILD", "")

PACKAGE = Path(aioproducer.__file__).parent


def _file(name: str) -> Path:
    found = import_module(name).__file__
    assert found is not None
    return Path(found)


@pytest.mark.parametrize("name", COMPILED_MODULES)
def test_every_module_is_from_the_build_under_test(name: str) -> None:
    file = _file(name)
    assert file.is_relative_to(PACKAGE)
    assert ASKED_FOR in ("", "pure", "compiled", "sanitized")
    compiled = ASKED_FOR in ("compiled", "sanitized") if ASKED_FOR else aioproducer.Producer.compiled
    assert file.name.endswith(EXTENSION_SUFFIXES[0] if compiled else ".py"), file
    if ASKED_FOR == "sanitized":
        # AddressSanitizer replaces a load by a call of this function.
        assert b"__asan_report_load" in file.read_bytes()


def test_the_producer_reports_its_build() -> None:
    compiled = any(_file(name).suffix != ".py" for name in COMPILED_MODULES)
    assert aioproducer.Producer.compiled is compiled
    if ASKED_FOR:
        assert compiled is (ASKED_FOR != "pure")
    if is_pure_wanted():
        assert not compiled


def test_every_declaration_file_belongs_to_a_compiled_module() -> None:
    declared = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.pxd")}
    assert declared <= set(COMPILED_MODULES)


def test_all_other_modules_of_the_package_are_sources() -> None:
    """Only modules in COMPILED_MODULES are compiled: the source of any other one would be untested."""
    compiled = {
        path.relative_to(PACKAGE.parent).as_posix().partition(".")[0].replace("/", ".")
        for path in PACKAGE.rglob(f"*{EXTENSION_SUFFIXES[0]}")
    }
    assert compiled <= set(COMPILED_MODULES)


@pytest.mark.parametrize("pure", ["0", "1"])
def test_sources_in_a_zip_file_run_if_the_source_build_is_requested(tmp_path: Path, pure: str) -> None:
    """Spark's --py-files passes sources in this way."""
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for source in PACKAGE.rglob("*.py"):
            writer.write(source, source.relative_to(PACKAGE.parent))
    script = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); from aioproducer import Producer; print(Producer.compiled)"
    )
    environment = {**os.environ, PURE_VARIABLE: pure}
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr) == ("False\n", "")


WARNING = """
import logging, os, sys, threading
sys.path.insert(0, sys.argv[1])
from aioproducer import Producer
logging.basicConfig(format="%(levelname)s %(name)s %(process)d %(message)s")

def make(client_id):
    return Producer(bootstrap_servers="localhost:1", client_id=client_id)

threads = [threading.Thread(target=make, args=[f"p{number}"]) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if not (child := os.fork()):
    make("child"), make("child")
    os._exit(0)
os.waitpid(child, 0)
print(os.getpid(), child)
"""


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("pure", ["0", "1"])
def test_the_first_uncompiled_producer_of_a_process_warns(tmp_path: Path, pure: str, zipped: bool) -> None:
    """pip silently installs the uncompiled build if it finds no C compiler."""
    place = tmp_path / "package.zip"
    if zipped:
        with zipfile.ZipFile(place, "w") as writer:
            for source in PACKAGE.rglob("*.py"):
                writer.write(source, source.relative_to(PACKAGE.parent))
    else:
        shutil.copytree(PACKAGE, place / PACKAGE.name, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WARNING, str(place)],
        env={**os.environ, PURE_VARIABLE: pure},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    if pure == "1":
        assert found.stderr == ""
        return
    lines = found.stderr.splitlines()
    processes = found.stdout.split()
    assert [line.split()[:3] for line in lines] == [["WARNING", "aioproducer", process] for process in processes]
    cure = "install the package on this machine" if zipped else "--force-reinstall --no-deps --no-cache-dir --no-binary"
    for line in lines:
        assert "runs uncompiled in this process, which takes 3.5 to 8 times the CPU" in line
        assert cure in line
        assert "AIOPRODUCER_PURE=1 in the environment accepts the uncompiled build" in line


def test_a_compiled_producer_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    if not aioproducer.Producer.compiled:
        pytest.skip("the sources are under test")
    aioproducer.Producer(bootstrap_servers="localhost:1")
    assert "uncompiled" not in caplog.text
