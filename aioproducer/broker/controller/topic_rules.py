"""What a topic may be called, and which replica lists a client may ask for: Kafka's rules with Kafka's words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from aioproducer.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, InvalidTopicError

MAX_NAME_LENGTH = 249
"""Of a topic: file names have room for 255 characters, some of which the partition's number takes."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Whether a topic may be called so (Kafka's Topic.validate).

    Raises:
        InvalidTopicError: it may not; the text says why.
    """
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif _LEGAL_NAME.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise InvalidTopicError(f"Topic name is invalid: {reason}")


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Whether a topic's name differs from all others by more than '.' and '_', which metrics do not tell apart.

    Raises:
        InvalidTopicError: it does not; the text names the other topic.
    """
    if "." not in name and "_" not in name:
        return
    unified = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == unified:
            raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {other}")


def check_replicas(replicas: Sequence[int], known_nodes: Collection[int], replication_factor: int | None) -> None:
    """Whether a client may ask for these replicas of a partition.

    ``replication_factor`` is that of the topic's other partitions, ``None`` for the first.

    Raises:
        InvalidReplicaAssignmentError: no replica, one twice, one unknown, or another number than the others have.
    """
    if not replicas:
        raise InvalidReplicaAssignmentError("The manual partition assignment includes an empty replica list.")
    previous = None
    for node_id in sorted(replicas):
        if node_id not in known_nodes:
            raise InvalidReplicaAssignmentError(
                f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
            )
        if node_id == previous:
            raise InvalidReplicaAssignmentError(
                f"The manual partition assignment includes the broker {node_id} more than once."
            )
        previous = node_id
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignmentError(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def ordered_assignments(
    assignments: Mapping[int, Sequence[int]], known_nodes: Collection[int], eligible_nodes: Collection[int]
) -> list[list[int]]:
    """The replica lists of a new topic by partition index, as a client gave them.

    Raises:
        InvalidReplicaAssignmentError: a list breaks a rule, names no node in service, or an index is left out.
    """
    replication_factor = None
    for index, replicas in assignments.items():
        check_replicas(replicas, known_nodes, replication_factor)
        replication_factor = len(replicas)
        check_in_service(index, replicas, eligible_nodes)
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignmentError("partitions should be a consecutive 0-based integer sequence")
    return [list(assignments[index]) for index in range(len(assignments))]


def check_in_service(index: int, replicas: Iterable[int], eligible_nodes: Collection[int]) -> None:
    """Whether one of the replicas that a client asked for could lead the partition.

    Raises:
        InvalidReplicaAssignmentError: none of them is in service.
    """
    if not any(node_id in eligible_nodes for node_id in replicas):
        raise InvalidReplicaAssignmentError(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )


def check_new_total(name: str, present: int, total: int) -> None:
    """Whether a topic of ``present`` partitions may be given ``total``.

    Raises:
        InvalidPartitionsError: that is no increase.
    """
    if total == present:
        raise InvalidPartitionsError(f"Topic already has {present} partition(s).")
    if total < present:
        raise InvalidPartitionsError(
            f"The topic {name} currently has {present} partition(s); {total} would not be an increase."
        )
