"""The language in which messages are declared."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from aioproducer.protocol import APIS, ZERO_UUID, Message
from aioproducer.protocol.messages import ProduceRequest, ProduceResponse, SaslAuthenticateRequest
from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from aioproducer.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, TopicProduceData
from aioproducer.protocol.schema import LATEST, STRING, Struct, int32, parse_versions


@pytest.mark.parametrize(
    ("text", "versions"),
    [("3+", range(3, LATEST + 1)), ("2-5", range(2, 6)), ("7", range(7, 8)), ("none", range(0))],
)
def test_ranges_of_versions_are_parsed(text: str, versions: range) -> None:
    assert parse_versions(text) == versions


@pytest.mark.parametrize("text", ["", "all", "3-", "-3+", "1,2"])
def test_malformed_versions_are_rejected(text: str) -> None:
    if text == "-3+":
        assert -3 in parse_versions(text)
        return
    with pytest.raises(ValueError, match="invalid literal"):
        parse_versions(text)


def test_every_field_has_a_default() -> None:
    response = PartitionProduceResponse()
    assert response.index == 0
    assert response.log_append_time_ms == -1
    assert response.error_message is None
    assert response.record_errors == []
    assert response.current_leader == LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    assert TopicProduceData().topic_id == ZERO_UUID


def test_defaults_are_not_shared() -> None:
    first, second = ProduceResponse(), ProduceResponse()
    first.responses.append(Any)  # type: ignore[arg-type]  # whatever it is, it must not appear in the second
    assert second.responses == []
    assert PartitionProduceResponse().current_leader is not PartitionProduceResponse().current_leader


@pytest.mark.parametrize("message_class", [ProduceRequest, TopicProduceData, Struct])
def test_unknown_fields_are_rejected(message_class: type[Message]) -> None:
    with pytest.raises(TypeError, match="topics"):
        message_class(topics=[])
    with pytest.raises(AttributeError, match="topics"):
        message_class().topics = []  # type: ignore[attr-defined]  # what is tested


def test_a_base_without_fields_has_its_own_constructor() -> None:
    assert Struct() == Struct()

    class Derived(Struct):
        first: int = int32("0+")

    assert Derived(first=1).first == 1


def test_a_message_with_fields_cannot_be_extended() -> None:
    with pytest.raises(TypeError, match="Extended cannot extend a message that has fields"):

        class Extended(NodeEndpoint):
            more: int = int32("0+")


def test_fields_are_passed_by_name_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        NodeEndpoint(1, "host", 9092)  # type: ignore[misc, arg-type]  # what is tested


def test_messages_are_equal_if_class_and_fields_are() -> None:
    assert NodeEndpoint(node_id=1, host="a") == NodeEndpoint(node_id=1, host="a")
    assert NodeEndpoint(node_id=1, host="a") != NodeEndpoint(node_id=1, host="b")
    assert LeaderIdAndEpoch() != "LeaderIdAndEpoch()"
    with pytest.raises(TypeError, match="unhashable"):
        hash(NodeEndpoint())


def test_messages_can_be_copied_and_pickled() -> None:
    message = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t")])
    assert copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message


def test_repr_shows_byte_counts_instead_of_records_and_secrets() -> None:
    """Records and authentication bytes are shown as their sizes only."""
    assert (
        repr(SaslAuthenticateRequest(auth_bytes=b"\0user\0secret")) == "SaslAuthenticateRequest(auth_bytes=<12 bytes>)"
    )
    assert repr(PartitionProduceData(index=2)) == "PartitionProduceData(index=2, records=None)"
    assert repr(PartitionProduceData(records=[b"ab", memoryview(b"cde")])) == (
        "PartitionProduceData(index=0, records=<5 bytes>)"
    )
    assert repr(PartitionProduceData(records=b"ab")) == "PartitionProduceData(index=0, records=<2 bytes>)"
    assert repr(TopicProduceData(name="t", topic_id=b"\1" * 16)) == (
        f"TopicProduceData(name='t', topic_id={'01' * 16}, partition_data=[])"
    )
    assert repr(STRING) == "STRING"


def test_requests_know_their_responses() -> None:
    assert ProduceRequest.response_class() is ProduceResponse
    assert ProduceRequest().response_class() is ProduceResponse
    for api in APIS.values():
        assert api.request.response_class() is api.response


def test_messages_are_small() -> None:
    for api in APIS.values():
        for message_class in (api.request, api.response):
            assert not hasattr(message_class(), "__dict__")
