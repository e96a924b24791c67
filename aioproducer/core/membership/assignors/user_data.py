"""What the sticky assignor adds to a member's subscription (the schemas in Kafka's ``StickyAssignor``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aioproducer.core.membership.assignors.java_order import in_hash_order, string_hash
from aioproducer.core.membership.subscription import flat
from aioproducer.errors import ProtocolError
from aioproducer.offsets import numbers_by_topic
from aioproducer.protocol.frames import decode_version_prefixed, encode
from aioproducer.protocol.messages import consumer_protocol
from aioproducer.protocol.schema import Data, array, int32
from aioproducer.record import TopicPartition

# In front of the bytes no version is written. A reader tries the newest one first.
_VERSIONS = (1, 0)


class StickyUserData(Data, versions="0-1"):
    """The partitions that a member had, and since version 1 its generation."""

    previous_assignment: list[consumer_protocol.TopicPartition] = array(consumer_protocol.TopicPartition, "0+")
    generation: int = int32("1+", default=-1)


def encode_user_data(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Return the bytes, with the topics in the order of Kafka's."""
    topics = numbers_by_topic(partitions)
    # HashMap.computeIfAbsent, which Kafka uses here, puts a new entry to the front of its bucket.
    previous = [
        consumer_protocol.TopicPartition(topic=topic, partitions=topics[topic])
        for topic in in_hash_order(reversed(topics), string_hash)
    ]
    return b"".join(encode(StickyUserData(previous_assignment=previous, generation=generation_id), 1))


def decode_user_data(data: bytes) -> tuple[Sequence[TopicPartition], int | None]:
    """Return the partitions and the generation of a member; None if its version has no generation.

    Raises:
        ProtocolError: the bytes are of neither version.
    """
    for version in _VERSIONS:
        try:
            message = decode_version_prefixed(StickyUserData, version.to_bytes(2, "big") + data)
        except ProtocolError:
            if version == _VERSIONS[-1]:
                raise
        else:
            return tuple(flat(message.previous_assignment)), message.generation if version else None
    raise AssertionError("there is a last version")
