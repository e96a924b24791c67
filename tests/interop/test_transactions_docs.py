"""docs/transactions.md: its blocks run in order against Apache Kafka, and its tables have existing names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer import errors
from aioproducer.config import CONFIG_DEF
from tests.docs.blocks import ROOT, Page, blocks_of, check_output
from tests.kafka.cluster import KafkaCluster

DOCUMENT = ROOT / "docs" / "transactions.md"


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(1, properties={"auto.create.topics.enable": "true"}) as cluster:
        yield cluster


@pytest.mark.timeout(300)
def test_blocks_print_the_documented_output(kafka: KafkaCluster, tmp_path: Path) -> None:
    page = Page(tmp_path, kafka)
    printed = ""
    try:
        for block in blocks_of(DOCUMENT):
            if block.language == "text":
                check_output(block, block.text, printed)
            else:
                assert block.language == "python", block
                printed = page.run(block)
    finally:
        page.close()


def test_named_errors_and_keys_exist() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    names = set(re.findall(r"`(\w+Error)`", text)) - {"ValueError"}
    assert len(names) > 5
    for name in names:
        assert issubclass(getattr(errors, name), errors.KafkaError), name
    attributes = {key.attribute for key in CONFIG_DEF.keys.values()}
    keys = set(re.findall(r"`(\w+_(?:ms|memory|id))`", text)) - {"acquire_timeout_ms", "producer_id"}
    assert keys <= attributes, keys - attributes
