"""The wheels in dist/ run in systems without a compiler: `make test-wheels`, after `make wheels`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh_root import run, wheels


@pytest.mark.fresh_root
@pytest.mark.timeout(3600)
def test_each_wheel_runs_the_demo_without_a_compiler() -> None:
    if os.environ.get("AIOPRODUCER_TEST_WHEELS") != "1":
        pytest.skip("takes minutes: `make test-wheels` runs it, after `make wheels`")
    reason = run.why_not()
    if reason is not None:
        pytest.skip(reason)
    ended = subprocess.run([sys.executable, wheels.__file__], capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("version", ["3.11", "3.14"])
def test_a_wheel_is_tested_with_the_version_in_its_name(version: str) -> None:
    tag = version.replace(".", "")
    platform = "manylinux2014_x86_64.manylinux_2_17_x86_64"
    assert wheels.version_of(Path(f"dist/aioproducer-0.1.0-cp{tag}-cp{tag}-{platform}.whl")) == version


@pytest.mark.parametrize("tags", ["cp311-cp311-linux_x86_64", "py3-none-any", "cp311-cp311-musllinux_1_2_x86_64"])
def test_other_wheels_are_rejected(tags: str) -> None:
    with pytest.raises(run.FreshRootError, match=r"not a manylinux wheel for one CPython on x86-64: run `make wheels`"):
        wheels.version_of(Path(f"dist/aioproducer-0.1.0-{tags}.whl"))
