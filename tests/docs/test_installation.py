"""docs/installation.md lists every extra, and the brokers, Pythons and requests of the suite and the code."""

from __future__ import annotations

import re
import tomllib

from aioproducer.cli.local_checks import DEVELOPMENT_EXTRAS
from aioproducer.protocol import APIS, ApiKey
from tests.docs.blocks import ROOT
from tests.kafka import jars

PAGE = (ROOT / "docs" / "installation.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_extras_are_listed_with_their_packages() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w, -]+) \|", PAGE, re.MULTILINE))
    extras = {
        name: ", ".join(re.split(r"[><=]", requirement)[0] for requirement in requirements)
        for name, requirements in PROJECT["optional-dependencies"].items()
        if name not in DEVELOPMENT_EXTRAS
    }
    assert rows == extras
    assert list(rows) == sorted(rows)


def test_tested_brokers_are_those_of_the_suite() -> None:
    assert set(re.findall(r"^\| Apache Kafka ([\d.]+), KRaft \|", PAGE, re.MULTILINE)) == set(jars.BROKER)


def test_tested_pythons_are_those_of_the_suite() -> None:
    (tested,) = re.findall(r"^\| Python \| CPython ([^|]+) \|", PAGE, re.MULTILINE)
    declared = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert re.findall(r"3\.\d+", tested) == declared
    (others,) = re.findall(r"^VERSIONS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared == ["3.11", *others.split()]


def test_least_versions_are_those_of_the_requests() -> None:
    """Produce 3 and InitProducerId 0 came with Kafka 0.11, SaslAuthenticate with 1.0 (KIP-98, KIP-152)."""
    assert "It needs Produce version 3" in PAGE
    assert APIS[ApiKey.PRODUCE].min_version == 3
    assert APIS[ApiKey.INIT_PRODUCER_ID].min_version == 0
    assert APIS[ApiKey.METADATA].min_version == 0
    assert APIS[ApiKey.API_VERSIONS].min_version == 0
