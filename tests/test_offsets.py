"""Offsets and groups that a transaction commits."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from aioproducer import ConsumerGroupMetadata, OffsetAndMetadata

MEMBER = ConsumerGroupMetadata("readers", 3, "reader-1", "one")


def test_only_offset_and_group_id_are_required() -> None:
    assert OffsetAndMetadata(5) == OffsetAndMetadata(5, metadata="", leader_epoch=None)
    assert ConsumerGroupMetadata("readers") == ConsumerGroupMetadata(
        "readers", generation_id=-1, member_id="", group_instance_id=None
    )


@pytest.mark.parametrize("value", [OffsetAndMetadata(5, "m", 0), MEMBER])
def test_values_are_immutable_hashable_and_can_be_copied(value: OffsetAndMetadata | ConsumerGroupMetadata) -> None:
    for name in value.__dataclass_fields__:
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 1)
    assert not hasattr(value, "__dict__")
    for same in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), replace(value)):
        assert same == value
        assert hash(same) == hash(value)


@pytest.mark.parametrize("offset", [0, 2**63 - 1])
@pytest.mark.parametrize("leader_epoch", [None, 0, 2**31 - 1])
def test_limits_of_an_offset_are_valid(offset: int, leader_epoch: int | None) -> None:
    assert OffsetAndMetadata(offset, leader_epoch=leader_epoch).offset == offset


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"offset": -1}, ValueError, "offset must be between 0 and 9223372036854775807, not -1"),
        ({"offset": 2**63}, ValueError, "offset must be between"),
        ({"offset": True}, TypeError, "offset must be an int, not bool"),
        ({"offset": "5"}, TypeError, "offset must be an int, not str"),
        ({"offset": 5, "metadata": None}, TypeError, "metadata must be a str, not NoneType"),
        ({"offset": 5, "leader_epoch": -1}, ValueError, "leader_epoch must be between 0 and 2147483647, not -1"),
        ({"offset": 5, "leader_epoch": 2**31}, ValueError, "leader_epoch must be between"),
    ],
)
def test_an_invalid_offset_is_rejected(fields: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        OffsetAndMetadata(**fields)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"group_id": ""}, ValueError, "group_id must not be empty"),
        ({"group_id": b"readers"}, TypeError, "group_id must be a str, not bytes"),
        ({"group_id": "readers", "member_id": None}, TypeError, "member_id must be a str, not NoneType"),
        ({"group_id": "readers", "group_instance_id": 1}, TypeError, "group_instance_id must be a str or None"),
        ({"group_id": "readers", "generation_id": -2}, ValueError, "generation_id must be between -1 and"),
        ({"group_id": "readers", "generation_id": None}, TypeError, "generation_id must be an int"),
        ({"group_id": "readers", "generation_id": 3}, ValueError, "generation_id 3 needs a member_id"),
    ],
)
def test_an_invalid_group_is_rejected(fields: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ConsumerGroupMetadata(**fields)  # type: ignore[arg-type]  # what is tested
