"""Values at their limits, and rejected values with their error messages."""

from __future__ import annotations

from typing import Any

import pytest

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import Message, Records, codec, decode, encode
from aioproducer.protocol.messages import (
    ApiVersionsResponse,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetFetchRequest,
    ProduceRequest,
    ProduceResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from aioproducer.protocol.messages.metadata import (
    Cursor,
    MetadataRequestTopic,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aioproducer.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)


def one_partition(records: Records) -> ProduceRequest:
    return ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])]
    )


def written(message: Message, version: int) -> bytes:
    return b"".join(encode(message, version))


class TestRecords:
    @pytest.mark.parametrize("version", [3, 9, 13])
    def test_are_passed_by_reference(self, version: int) -> None:
        header, body = bytearray(b"header"), memoryview(b"a longer body")
        buffers = encode(one_partition([header, body]), version)
        assert buffers[1] is header
        assert buffers[2] is body
        flat = b"".join(buffers)
        single = encode(one_partition(body), version)
        assert single[1] is body
        assert flat == written(one_partition(b"headera longer body"), version)

    @pytest.mark.parametrize(("version", "pieces"), [(8, 2), (13, 3)])
    def test_are_not_followed_by_empty_buffers(self, version: int, pieces: int) -> None:
        buffers = encode(one_partition(b"records"), version)
        assert len(buffers) == pieces
        assert all(buffers)

    def test_of_many_partitions_keep_their_order(self) -> None:
        data = [PartitionProduceData(index=i, records=[b"<%d" % i, b"%d>" % i]) for i in range(3)]
        message = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)])
        read = decode(ProduceRequest, 8, written(message, 8))
        assert [p.records for p in read.topic_data[0].partition_data] == [b"<00>", b"<11>", b"<22>"]

    def test_are_a_view_of_the_input(self) -> None:
        frame = bytearray(written(one_partition(b"records"), 13))
        view = decode(ProduceRequest, 13, frame).topic_data[0].partition_data[0].records
        assert isinstance(view, memoryview)
        assert view.obj is frame
        frame[frame.index(b"records")] = ord("R")
        assert view == b"Records"

    def test_are_counted_in_bytes(self) -> None:
        wide = memoryview(bytes(8)).cast("i")
        assert written(one_partition([wide]), 3) == written(one_partition(bytes(8)), 3)

    @pytest.mark.parametrize("records", [b"", [], [b""]])
    def test_empty_is_not_null(self, records: Records) -> None:
        for version in (3, 13):
            read = decode(ProduceRequest, version, written(one_partition(records), version))
            assert read.topic_data[0].partition_data[0].records == b""

    def test_can_be_null(self) -> None:
        for version in (3, 13):
            read = decode(ProduceRequest, version, written(one_partition(None), version))
            assert read.topic_data[0].partition_data[0].records is None

    def test_larger_than_a_frame_are_rejected(self) -> None:
        mebibyte = bytes(2**20)
        with pytest.raises(ProtocolError, match=r"records of version 13 is too long: 2147483648 bytes"):
            encode(one_partition([mebibyte] * 2048), 13)


class TestBytes:
    def test_are_copied(self) -> None:
        frame = bytearray(written(SaslAuthenticateRequest(auth_bytes=b"secret"), 2))
        read = decode(SaslAuthenticateRequest, 2, frame)
        frame[:] = bytes(len(frame))
        assert read.auth_bytes == b"secret"
        assert type(read.auth_bytes) is bytes

    def test_null_is_rejected(self) -> None:
        message = SaslAuthenticateRequest()
        message.auth_bytes = None  # type: ignore[assignment]  # what is tested
        with pytest.raises(ProtocolError, match=r"SaslAuthenticateRequest.auth_bytes of version 2 cannot be None"):
            encode(message, 2)
        with pytest.raises(ProtocolError, match=r"SaslAuthenticateRequest.auth_bytes of version 2 is null"):
            decode(SaslAuthenticateRequest, 2, b"\0\0")


class TestString:
    @pytest.mark.parametrize("version", [0, 9])
    def test_longest(self, version: int) -> None:
        topics = [MetadataRequestTopic(name="ä" * 16383 + "x")]
        message = MetadataRequest(topics=topics)
        assert decode(MetadataRequest, version, written(message, version)) == message
        topics[0].name = "ä" * 16384
        with pytest.raises(ProtocolError, match=r"name of version . is too long: 32768 bytes \(maximum 32767\)"):
            encode(message, version)

    def test_too_long_in_a_frame(self) -> None:
        with pytest.raises(ProtocolError, match=r"is too long: 32768 bytes \(maximum 32767\)"):
            decode(MetadataRequest, 9, b"\x02\x81\x80\x02" + b"x" * 32768 + bytes(5))

    def test_not_utf8(self) -> None:
        with pytest.raises(ProtocolError, match=r"SaslHandshakeRequest.mechanism of version 1 is not UTF-8"):
            decode(SaslHandshakeRequest, 1, b"\0\1\xff")
        with pytest.raises(
            ProtocolError, match=r"SaslHandshakeRequest.mechanism of version 1 cannot be written as UTF-8"
        ):
            encode(SaslHandshakeRequest(mechanism="\ud800"), 1)

    def test_null(self) -> None:
        message = MetadataRequest(topics=[MetadataRequestTopic(name=None)])
        assert decode(MetadataRequest, 10, written(message, 10)) == message
        with pytest.raises(ProtocolError, match=r"MetadataRequestTopic.name of version 9 cannot be None"):
            encode(message, 9)
        with pytest.raises(ProtocolError, match=r"SaslHandshakeRequest.mechanism of version 1 is null"):
            decode(SaslHandshakeRequest, 1, b"\xff\xff")
        with pytest.raises(ProtocolError, match=r"SaslHandshakeRequest.mechanism of version 1 has the length -2"):
            decode(SaslHandshakeRequest, 1, b"\xff\xfe")

    def test_claims_more_than_is_there(self) -> None:
        text = r"SaslHandshakeRequest.mechanism of version 1 states 5 bytes, but only 4 bytes follow"
        with pytest.raises(ProtocolError, match=text):
            decode(SaslHandshakeRequest, 1, b"\0\5SCRA")


class TestArray:
    def test_null(self) -> None:
        for version in (1, 13):
            assert decode(MetadataRequest, version, written(MetadataRequest(topics=None), version)).topics is None
        with pytest.raises(ProtocolError, match=r"MetadataRequest.topics of version 0 cannot be None"):
            encode(MetadataRequest(topics=None), 0)
        with pytest.raises(ProtocolError, match=r"MetadataRequest.topics of version 0 is null"):
            decode(MetadataRequest, 0, b"\xff\xff\xff\xff")
        with pytest.raises(ProtocolError, match=r"MetadataRequest.topics of version 1 has the length -2"):
            decode(MetadataRequest, 1, b"\xff\xff\xff\xfe")

    def test_claims_more_elements_than_can_be_there(self) -> None:
        text = r"MetadataRequest.topics of version 0 states 3 elements, but only 4 bytes follow"
        with pytest.raises(ProtocolError, match=text):
            decode(MetadataRequest, 0, b"\0\0\0\3\0\0\0\0")

    def test_of_numbers(self) -> None:
        partition = MetadataResponsePartition(replica_nodes=[1, -1, 2**31 - 1])
        message = MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[partition])])
        for version in (0, 9):
            assert decode(MetadataResponse, version, written(message, version)) == message
        partition.replica_nodes = [2**31]
        with pytest.raises(ProtocolError, match=r"replica_nodes of version 9 cannot hold \[2147483648\]"):
            encode(message, 9)
        partition.replica_nodes = None  # type: ignore[assignment]  # what is tested
        with pytest.raises(ProtocolError, match=r"replica_nodes of version 9 cannot be None"):
            encode(message, 9)

    def test_of_numbers_rejects_impossible_counts_and_null(self) -> None:
        partition = b"\0\0" + bytes(4) + bytes(4)
        head = bytes(4) + b"\0\0\0\1" + b"\0\0" + b"\0\1t" + b"\0\0\0\1" + partition
        with pytest.raises(
            ProtocolError, match="replica_nodes of version 0 states 2 elements, but only 7 bytes follow"
        ):
            decode(MetadataResponse, 0, head + b"\0\0\0\2" + bytes(7))
        with pytest.raises(ProtocolError, match="replica_nodes of version 0 is null"):
            decode(MetadataResponse, 0, head + b"\xff\xff\xff\xff" + bytes(8))

    def test_of_strings(self) -> None:
        message = SaslHandshakeResponse(mechanisms=["PLAIN", "SCRAM-SHA-256"])
        assert written(message, 1) == b"\0\0\0\0\0\2\0\5PLAIN\0\x0dSCRAM-SHA-256"
        assert decode(SaslHandshakeResponse, 1, written(message, 1)) == message
        with pytest.raises(ProtocolError, match="mechanisms of version 1 is null"):
            decode(SaslHandshakeResponse, 1, b"\0\0\0\0\0\1\xff\xff")

    def test_of_more_than_127_elements(self) -> None:
        for count in (126, 127, 128, 20_000):
            message = MetadataRequest(topics=[MetadataRequestTopic(name="")] * count)
            assert decode(MetadataRequest, 9, written(message, 9)) == message


class TestFixed:
    def test_a_value_that_does_not_fit(self) -> None:
        with pytest.raises(ProtocolError, match=r"ProduceRequest of version 13 cannot hold acks=32768, timeout_ms=1: "):
            encode(ProduceRequest(acks=2**15, timeout_ms=1), 13)

    @pytest.mark.parametrize("topic_id", [b"", bytes(15), bytes(17), None])
    def test_a_uuid_has_16_bytes(self, topic_id: Any) -> None:
        message = ProduceRequest(topic_data=[TopicProduceData(topic_id=topic_id)])
        with pytest.raises(
            ProtocolError, match=r"TopicProduceData.topic_id of version 13 is .*, which is not 16 bytes"
        ):
            encode(message, 13)

    def test_any_byte_but_zero_is_true(self) -> None:
        assert decode(MetadataRequest, 4, b"\xff\xff\xff\xff\x02").allow_auto_topic_creation is True
        assert decode(MetadataRequest, 4, b"\xff\xff\xff\xff\x00").allow_auto_topic_creation is False


class TestFieldsOfOtherVersions:
    def test_are_rejected_unless_they_have_their_defaults(self) -> None:
        assert written(MetadataRequest(topics=None), 3) == b"\xff\xff\xff\xff"
        text = r"MetadataRequest.allow_auto_topic_creation is set to False, but version 3 has no such field"
        with pytest.raises(UnsupportedVersionError, match=text):
            encode(MetadataRequest(allow_auto_topic_creation=False), 3)

    def test_are_dropped_if_ignorable(self) -> None:
        message = ProduceRequest(topic_data=[TopicProduceData(name="t", topic_id=b"\1" * 16)])
        assert decode(ProduceRequest, 12, written(message, 12)).topic_data == [TopicProduceData(name="t")]
        assert decode(ProduceRequest, 13, written(message, 13)).topic_data == [TopicProduceData(topic_id=b"\1" * 16)]

    def test_a_null_array_is_not_its_default(self) -> None:
        with pytest.raises(UnsupportedVersionError, match=r"OffsetFetchRequest.topics is set to None"):
            encode(OffsetFetchRequest(topics=None), 8)
        encode(OffsetFetchRequest(topics=[]), 8)

    def test_structs(self) -> None:
        def response(leader_id: int) -> ProduceResponse:
            partition = PartitionProduceResponse(current_leader=LeaderIdAndEpoch(leader_id=leader_id))
            return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])

        encode(response(-1), 9)
        with pytest.raises(UnsupportedVersionError, match=r"PartitionProduceResponse.current_leader is set to"):
            encode(response(1), 9)
        assert decode(ProduceResponse, 10, written(response(1), 10)) == response(1)

    def test_are_read_as_their_defaults(self) -> None:
        read = decode(FetchRequest, 4, written(FetchRequest(max_wait_ms=5), 4))
        assert read == FetchRequest(max_wait_ms=5)
        assert read.replica_state.replica_epoch == -1


class TestNullableStruct:
    def test_is_preceded_by_a_byte(self) -> None:
        without = DescribeTopicPartitionsRequest()
        with_cursor = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="t", partition_index=3))
        assert written(without, 0) == b"\x01\x00\x00\x07\xd0\xff\x00"
        assert written(with_cursor, 0) == b"\x01\x00\x00\x07\xd0\x01\x02t\x00\x00\x00\x03\x00\x00"
        assert decode(DescribeTopicPartitionsRequest, 0, written(without, 0)) == without
        assert decode(DescribeTopicPartitionsRequest, 0, written(with_cursor, 0)) == with_cursor
        with pytest.raises(ProtocolError, match=r"DescribeTopicPartitionsRequest.cursor of version 0 begins with 2"):
            decode(DescribeTopicPartitionsRequest, 0, b"\x01\x00\x00\x07\xd0\x02\x00")


class TestTaggedFields:
    body = b"\0\0" + b"\1" + bytes(4)
    """An ApiVersions response of version 3 up to its tags."""

    def test_defaults_are_left_out(self) -> None:
        assert written(ApiVersionsResponse(), 3) == self.body + b"\0"

    def test_are_ordered_by_tag(self) -> None:
        message = ApiVersionsResponse(zk_migration_ready=True, finalized_features_epoch=7)
        tags = b"\2" + b"\1\x08" + bytes(7) + b"\7" + b"\3\1\1"
        assert written(message, 3) == self.body + tags
        assert decode(ApiVersionsResponse, 3, self.body + tags) == message

    def test_a_tagged_array_accepts_any_sequence(self) -> None:
        empty: Any = ()
        assert written(ProduceResponse(node_endpoints=empty), 13) == written(ProduceResponse(), 13)
        some: Any = (NodeEndpoint(node_id=1, host="h", port=9092),)
        read = decode(ProduceResponse, 13, written(ProduceResponse(node_endpoints=some), 13))
        assert read.node_endpoints == list(some)

    def test_unknown_fields_are_skipped(self) -> None:
        tags = b"\3" + b"\1\x08" + bytes(7) + b"\7" + b"\x09\3abc" + b"\x80\x01\0"
        assert decode(ApiVersionsResponse, 3, self.body + tags) == ApiVersionsResponse(finalized_features_epoch=7)
        assert decode(SaslAuthenticateRequest, 2, b"\1\1\5\2hi") == SaslAuthenticateRequest()

    @pytest.mark.parametrize(
        ("tags", "text"),
        [
            (b"\2\5\0\5\0", "has the tag 5 behind the tag 5"),
            (b"\2\5\0\4\0", "has the tag 4 behind the tag 5"),
            (b"\1\5\2a", "the tag 5 of ApiVersionsResponse of version 3 states 2 bytes, but only 1 bytes follow"),
            (b"\1\3\2\1\0", "the tag 3 of ApiVersionsResponse of version 3 has 1 bytes too many"),
            (b"\1\1\7" + bytes(8), "is cut off"),
            (b"\2\5\0", "the data ends inside a variable-length integer"),
            (b"\x80\x80\x80\x80\x80\x01", "a variable-length integer has more than 5 bytes"),
        ],
    )
    def test_malformed(self, tags: bytes, text: str) -> None:
        with pytest.raises(ProtocolError, match=text):
            decode(ApiVersionsResponse, 3, self.body + tags)

    def test_a_value_that_does_not_fit(self) -> None:
        with pytest.raises(
            ProtocolError, match=r"finalized_features_epoch of version 3 cannot hold 9223372036854775808"
        ):
            encode(ApiVersionsResponse(finalized_features_epoch=2**63), 3)


def test_a_buffer_of_any_shape_is_read() -> None:
    encoded = written(MetadataRequest(topics=None), 3) + b""
    assert decode(MetadataRequest, 3, memoryview(encoded).cast("i")) == MetadataRequest(topics=None)


def test_an_empty_message_has_a_buffer() -> None:
    assert encode(MetadataRequest(topics=None), 1) == [b"\xff\xff\xff\xff"]


def test_no_reader_is_generated_for_messages_that_are_only_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client writes requests and reads responses: generating the other functions too took twice as long."""
    made: list[str] = []

    def recorded(source: str, filename: str, mode: str) -> Any:
        made.append(source.partition("(")[0])
        return compile(source, filename, mode)

    monkeypatch.setattr(codec, "compile", recorded, raising=False)
    codec.struct_codec.cache_clear()
    codec.message_codec.cache_clear()
    request = encode(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 13)
    assert made == ["def write"]
    encode(MetadataRequest(topics=[]), 13)
    assert made == ["def write"]
    assert decode(MetadataRequest, 13, b"".join(request)).topics == [MetadataRequestTopic(name="t")]
    assert made == ["def write", "def read"]
