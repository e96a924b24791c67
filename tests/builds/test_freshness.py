"""A compiled module that differs from its sources is detected before it is tested."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aioproducer._build import COMPILED_MODULES
from tests.builds.freshness import EXTENSION_SUFFIX, what_is_wrong
from tests.nested_pytest import inherited_environment

ROOT = Path(__file__).parents[2]
MODULES = ("aioproducer.core.upper", "aioproducer.core.lower", "aioproducer.plain")
DECLARATIONS = {
    "core/upper.pxd": "cimport cython\nfrom aioproducer.core.lower cimport Lower\n",
    "core/lower.pxd": "from libc.string cimport memcpy\nfrom aioproducer.core.lowest cimport Lowest\n",
    "core/lowest.pxd": "from aioproducer.core.upper cimport Upper\n",
}
COMPILED_AT = 1_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three compiled modules: upper includes lower's declarations, lower those of a module with only declarations."""
    package = tmp_path / "aioproducer"
    (package / "core").mkdir(parents=True)
    for name, text in DECLARATIONS.items():
        (package / name).write_text(text)
    for name in MODULES:
        path = tmp_path.joinpath(*name.split("."))
        path.with_suffix(".py").write_text("")
        path.with_suffix(EXTENSION_SUFFIX).write_bytes(b"")
    for path in package.rglob("*.*"):
        os.utime(path, (COMPILED_AT, COMPILED_AT))
    return tmp_path


def _change(root: Path, name: str) -> str | None:
    os.utime(root / "aioproducer" / name, (COMPILED_AT + 1, COMPILED_AT + 1))
    return what_is_wrong(root, MODULES)


def test_modules_as_old_as_their_sources_are_fresh(root: Path) -> None:
    assert what_is_wrong(root, MODULES) is None


def test_sources_without_compiled_modules_are_fresh(root: Path) -> None:
    for path in root.rglob(f"*{EXTENSION_SUFFIX}"):
        path.unlink()
    assert what_is_wrong(root, MODULES) is None


def test_a_module_older_than_its_source_is_stale(root: Path) -> None:
    wrong = _change(root, "plain.py")
    assert wrong == (
        "compiled modules are older than their sources: aioproducer.plain (of aioproducer/plain.py).\n"
        "`make compiled` compiles them again (in an environment of your own: `python setup.py build_ext --inplace`); "
        "AIOPRODUCER_PURE=1 tests the sources."
    )


def test_a_newer_declaration_makes_all_modules_that_include_it_stale(root: Path) -> None:
    wrong = _change(root, "core/lowest.pxd")
    assert wrong is not None
    assert "aioproducer.core.upper (of aioproducer/core/lowest.pxd)" in wrong
    assert "aioproducer.core.lower (of aioproducer/core/lowest.pxd)" in wrong
    assert "plain" not in wrong


def test_a_declaration_that_no_other_module_includes_affects_only_its_own(root: Path) -> None:
    lower = root / "aioproducer" / "core" / "lower.pxd"
    lower.write_text("")
    os.utime(lower, (COMPILED_AT, COMPILED_AT))
    wrong = _change(root, "core/upper.pxd")
    assert wrong is not None
    assert "core.upper (of aioproducer/core/upper.pxd)" in wrong
    assert "core.lower" not in wrong


def test_a_missing_module_is_stale(root: Path) -> None:
    (root / "aioproducer" / f"plain{EXTENSION_SUFFIX}").unlink()
    wrong = what_is_wrong(root, MODULES)
    assert wrong is not None
    assert f"missing, or there are some that nothing compiles any more: aioproducer/plain{EXTENSION_SUFFIX}" in wrong


def test_a_module_that_is_no_longer_compiled_is_reported(root: Path) -> None:
    wrong = what_is_wrong(root, MODULES[:2])
    assert wrong is not None
    assert f"aioproducer/plain{EXTENSION_SUFFIX}" in wrong


def test_pytest_refuses_to_run_over_stale_modules(tmp_path: Path) -> None:
    """End to end: pytest reports stale compiled modules and runs no test."""
    package = tmp_path / "aioproducer"
    shutil.copytree(ROOT / "aioproducer", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in COMPILED_MODULES:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(EXTENSION_SUFFIX)
        path.write_bytes(b"")
        os.utime(path, (COMPILED_AT, COMPILED_AT))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import pytest; sys.exit(pytest.main(sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(tmp_path), "-q", "-p", "no:cacheprovider", "tests/test_record.py"]
    environment = inherited_environment()

    def run(pure: str) -> subprocess.CompletedProcess[str]:
        given = {**environment, "AIOPRODUCER_PURE": pure, "AIOPRODUCER_BUILD": ""}
        return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=120, check=False)

    refused = run(pure="0")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR, refused.stdout + refused.stderr
    assert "compiled modules are older than their sources: aioproducer." in refused.stderr
    assert "`make compiled` compiles them again" in refused.stderr
    assert " passed" not in refused.stdout
    sources = run(pure="1")
    assert sources.returncode == 0, sources.stdout + sources.stderr
