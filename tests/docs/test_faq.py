"""Answers of docs/faq.md that a change of the code could make wrong."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from aioproducer import Producer
from aioproducer.errors import ConfigurationError
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "faq.md").read_text()


def test_each_heading_is_a_question_and_each_answer_is_short() -> None:
    questions = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert len(questions) >= 10
    for text in questions:
        question, _, answer = text.partition("\n")
        assert question.endswith("?"), question
        assert len(answer.split()) <= 90, question


def test_limits_in_answers_are_the_defaults() -> None:
    config = Producer(bootstrap_servers="localhost:1").config
    assert "`delivery_timeout_ms` (two minutes)" in PAGE
    assert config.delivery_timeout_ms == 120_000
    assert "`max_block_ms` (one minute)" in PAGE
    assert config.max_block_ms == 60_000
    assert "`buffer_memory` (32 MiB)" in PAGE
    assert config.buffer_memory == 32 * 1024 * 1024


def test_kerberos_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="Kerberos"):
        Producer(bootstrap_servers="localhost:1", security_protocol="SASL_SSL", sasl_mechanism="GSSAPI")
    assert 'sasl_mechanism="GSSAPI"` is a `ConfigurationError`' in PAGE


def test_import_needs_what_windows_lacks() -> None:
    code = "import os; del os.register_at_fork\nimport aioproducer.producer"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 1
    assert "has no attribute 'register_at_fork'" in run.stderr
    assert "needs `os.register_at_fork`" in PAGE
