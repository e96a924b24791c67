"""Groups as DescribeGroups and ListGroups return them."""

from __future__ import annotations

from typing import Final

from aioproducer.broker.groups.classic_group import ClassicGroup
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.states import GroupState
from aioproducer.protocol.messages.groups import DescribedGroup, ListedGroup

GROUP_TYPE: Final = "classic"
FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 6


def described(group: ClassicGroup) -> DescribedGroup:
    """The group for DescribeGroups; members have metadata and assignments only if it is stable."""
    protocol_name = (group.protocol_name or "") if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name or "",
        members=[member.described(protocol_name) for member in group.members.values()],
    )


def described_unknown(group_id: str, version: int) -> DescribedGroup:
    """A group that does not exist: dead up to version 5, with an error as well from 6 on (KIP-1043)."""
    unknown = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
        unknown.error_code = Code.GROUP_ID_NOT_FOUND
        unknown.error_message = f"Group {group_id} not found."
    return unknown


def listed(group: ClassicGroup) -> ListedGroup:
    """The group for ListGroups."""
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=GROUP_TYPE,
    )
