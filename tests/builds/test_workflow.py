"""Makefile, package metadata and the workflow of wheels agree on versions of Python and on tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def versions() -> list[str]:
    found = re.search(r"^WHEEL_VERSIONS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def test_each_tested_version_has_a_wheel(project: dict[str, Any], versions: list[str]) -> None:
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in project["project"]["classifiers"] if line.startswith(prefix + "3.")]
    assert named
    assert set(named) <= set(versions)


def test_cibuildwheel_builds_the_versions_of_the_wheels(project: dict[str, Any], versions: list[str]) -> None:
    built = project["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{version.replace('.', '')}-*" for version in versions]


def test_linux_wheels_are_profile_guided_with_everything_that_training_uses(project: dict[str, Any]) -> None:
    linux = project["tool"]["cibuildwheel"]["linux"]
    assert linux["environment"]["AIOPRODUCER_PROFILE_GUIDED"] == "1"
    assert "[arrow,build,uvloop]" in linux["before-build"]
    training = (ROOT / "training.py").read_text()
    assert set(re.findall(r"^ +import (\w+)$", training, re.MULTILINE)) == {"pyarrow", "uvloop"}


def test_platforms_that_were_never_tested_do_not_fail_a_release() -> None:
    text = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    tested, untested = text.split("\n  untested:\n")
    assert "CIBW_ARCHS: x86_64" in tested
    assert "continue-on-error" not in tested
    assert "continue-on-error: true" in untested
    assert all(system in untested for system in ("arm", "macos", "windows"))


def test_each_expression_of_tests_left_out_on_an_rdma_device_selects_a_test() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    contract = re.search(r"^RDMA_CONTRACT := (.+)$", text, re.MULTILINE)
    left_out = re.search(r"^RDMA_LEFT_OUT := (.+)$", text, re.MULTILINE)
    assert contract is not None
    assert left_out is not None
    files = re.findall(r"tests/transport/\w+\.py", contract[1])
    tests = [name for file in files for name in re.findall(r"def (test_\w+)", (ROOT / file).read_text())]
    expressions = re.split(r"\s+or\s+", left_out[1].strip())
    assert {part for part in expressions if not any(part in name for name in tests)} == set()
