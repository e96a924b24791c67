"""``aioproducer doctor`` at Apache Kafka's listener with TLS and SASL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from aioproducer.cli import main
from tests.kafka.security import PASSWORD, SASL_TLS, SecureCluster, properties_value

WRONG = "Wr0ng-of-this-test"


def steps(file: Path, configuration: Mapping[str, object], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and the output of the command."""
    lines = (f"{name.replace('_', '.')}={properties_value(str(value))}\n" for name, value in configuration.items())
    file.write_text("".join(lines), encoding="latin-1")
    code = main(["doctor", "--config", str(file), "--json"])
    written = capfd.readouterr()
    assert written.err == ""
    return code, written.out


def test_every_step_of_a_connection_with_tls_and_a_login_is_checked(
    secure: SecureCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out = steps(tmp_path / "client", secure.configuration(SASL_TLS, "SCRAM-SHA-256"), capfd)
    sections = json.loads(out)["sections"]
    (bootstrap,) = (checks for title, checks in sections.items() if title.startswith("bootstrap "))
    assert code == 0, out
    assert [check["name"] for check in bootstrap] == ["name", "TCP", "TLS", "SCRAM-SHA-256 login", "ApiVersions"]
    assert {check["status"] for check in bootstrap} == {"ok"}
    assert PASSWORD not in out


def test_a_rejected_login_is_a_failed_check_without_the_password(
    secure: SecureCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configuration = secure.configuration(SASL_TLS, "SCRAM-SHA-256", sasl_password=WRONG)
    code, out = steps(tmp_path / "client", configuration, capfd)
    sections = json.loads(out)["sections"]
    (bootstrap,) = (checks for title, checks in sections.items() if title.startswith("bootstrap "))
    assert (code, bootstrap[-1]["name"], bootstrap[-1]["status"]) == (1, "SCRAM-SHA-256 login", "failed")
    assert "sasl_password" in bootstrap[-1]["text"].replace(".", "_")
    assert WRONG not in out
