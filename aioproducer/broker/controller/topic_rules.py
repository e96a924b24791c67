"""Valid topic names, and valid replica lists in a client's request: Kafka's rules and error texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from aioproducer.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, InvalidTopicError

MAX_NAME_LENGTH = 249
"""Maximum length of a topic's name. A file name has at most 255 characters, including the partition's number."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Check the name of a topic (Kafka's Topic.validate).

    Raises:
        InvalidTopicError: the name is invalid; the text has the reason.
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
    """Check that a name differs from all others by more than '.' and '_', which are equal in names of metrics.

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
    """Check the replicas that a client requests for a partition.

    ``replication_factor`` is that of the topic's other partitions, ``None`` for the first.

    Raises:
        InvalidReplicaAssignmentError: there is no replica, a node is named twice or unknown, or the number of replicas
            differs from that of the other partitions.
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
    """Return the replica lists that a client requests for a new topic, ordered by partition index.

    Raises:
        InvalidReplicaAssignmentError: a list breaks a rule or names no node in service, or an index is missing.
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
    """Check that one of the requested replicas can lead the partition.

    Raises:
        InvalidReplicaAssignmentError: none of them is in service.
    """
    if not any(node_id in eligible_nodes for node_id in replicas):
        raise InvalidReplicaAssignmentError(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )


def check_new_total(name: str, present: int, total: int) -> None:
    """Check that ``total`` partitions are more than the ``present`` ones of a topic.

    Raises:
        InvalidPartitionsError: they are not.
    """
    if total == present:
        raise InvalidPartitionsError(f"Topic already has {present} partition(s).")
    if total < present:
        raise InvalidPartitionsError(
            f"The topic {name} currently has {present} partition(s); {total} would not be an increase."
        )
