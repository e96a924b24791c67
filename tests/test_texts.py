"""Singular and plural in messages; escaped text of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from aioproducer._common.diagnosis import buffer_full, connection_failed, delivery_timed_out, line_full
from aioproducer._common.texts import LONGEST_FOREIGN_TEXT, are, counted, plural, printable, were
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.errors import KafkaError, broker_error
from aioproducer.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from aioproducer.record import Node
from aioproducer.transport.addresses import peer_name
from tests.core.accumulating import NODE, Bench


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2, "batch", "2 batches"),
        (3, "retry", "3 retries"),
        (1, "retry", "1 retry"),
        (2, "failed partition", "2 failed partitions"),
    ],
)
def test_nouns_agree_with_their_number(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
    assert text.endswith(plural(count, noun))


def test_verbs_agree_with_their_number() -> None:
    assert [are(count) for count in (0, 1, 2)] == ["are", "is", "are"]
    assert [were(count) for count in (0, 1, 2)] == ["were", "was", "were"]


def test_errors_of_one_record_are_in_the_singular() -> None:
    assert "1 record for t-0 was not acknowledged" in str(
        delivery_timed_out("t-0", 1, 10, sent=True, may_have_been_written=True)
    )
    assert "with 1 send waiting" in str(buffer_full(10, 100, 5, 1))
    assert "has no room for 1 byte: 1 send with 100 bytes already waits" in str(line_full(1, 100, 100, 1))


HOSTILE = "up\n2026-01-01 ERROR forged\x1b[2J\u202egnp.exe"
ESCAPED = r"up\n2026-01-01 ERROR forged\x1b[2J\u202egnp.exe"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, größer, 日本", "plain text, größer, 日本"),
        (HOSTILE, ESCAPED),
        ("\ud800", r"\ud800"),
        ("a" * 200, "a" * 200),
        ("a" * 201, "a" * 197 + "..."),
        ("\n" * 10_000_000, r"\n" * 98 + "\\..."),
    ],
)
def test_foreign_text_is_escaped_and_shortened(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert len(printable(text)) <= LONGEST_FOREIGN_TEXT


def _refused(message: str) -> Sequence[KafkaError]:
    """Return the errors of a batch of two records that a broker refuses, as a whole and for each record."""
    bench = Bench()
    first, second = bench.send_batch(2)
    [batch] = bench.accumulator.drain(NODE, bench.now)
    bench.completion.refused(batch, 87, bench.now, message, {0: message, 1: message})
    return [error for each in (first, second) if isinstance(error := each.exception(), KafkaError)]


def test_broker_messages_are_escaped_in_errors() -> None:
    """Line breaks once forged log lines, escape sequences reached terminals, and huge messages were kept whole."""
    errors = [
        broker_error(29, HOSTILE),
        *_refused(HOSTILE),
        connection_failed(peer_name(HOSTILE, 9092), ConnectionRefusedError()),
    ]
    assert len(errors) == 4
    for error in errors:
        assert ESCAPED in str(error)
        assert str(error).isprintable()
    assert str(Node(1, HOSTILE, 9092, HOSTILE)) == f"{ESCAPED}:9092 (id 1) (rack {ESCAPED})"
    for error in (broker_error(29, "x" * 1_000_000), *_refused("x" * 1_000_000)):
        assert len(str(error)) < 1000


def test_cluster_ids_are_escaped_in_errors() -> None:
    metadata = ClusterMetadata([("host", 1)], random=Random(0))
    for cluster_id in ("first", HOSTILE):
        metadata.add_topic(cluster_id, 0)
        metadata.build_request(0)
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)], cluster_id=cluster_id
        )
        failure = metadata.handle_response(response, 0, version=12).failure
    assert failure is not None
    assert f"changed from first to {ESCAPED}:" in str(failure)
