"""The diagram of rooms in docs/architecture.md, drawn from the arrows that the suite enforces.

``python -m tests.docs.house`` prints it.
"""

from __future__ import annotations

import graphlib

from tests.test_arrows import ARROWS, PACKAGE

# Rooms that are combined for a first overview.
GROUPS = {
    "errors": (
        "errors",
        "error_codes",
        "_common.error_texts",
        "_common.diagnosis",
        "record",
        "_common.views",
        "_common.texts",
        "_common.client_log",
        "offsets",
    ),
    "plug-ins": ("serializers", "deserializers", "partitioner", "interceptors", "hooks", "metrics", "consumer_metrics"),
    "producer": (
        "producer",
        "transaction_pool",
        "_client.hot_path",
        "_client.slow_path",
        "_client.ownership",
        "_client.bulk",
        "_client.arrow",
        "_client.threadsafe",
        "_client.transactions",
        "_client.open_transactions",
        "_client.pool_queue",
    ),
    "admin": ("admin", "_client.admin_calls", "_client.group_admin", "_client.transaction_admin"),
    "factory": ("_client.factory", "_client.validation"),
    "core": (
        "core.batching",
        "core.columns",
        "core.fetching",
        "core.membership",
        "core.metadata",
        "core.outcomes",
        "core.requests",
        "core.transactions",
        "core.waiting",
    ),
    "broker": (
        "broker",
        "broker.broker",
        "broker.cluster",
        "broker.config",
        "broker.controller",
        "broker.coordination",
        "broker.faults",
        "broker.groups",
        "broker.handlers",
        "broker.image",
        "broker.log",
        "broker.replicas",
        "broker.server",
        "broker.transactions",
        "broker.yielding",
    ),
    "wire": ("wire", "compression"),
    "spark": ("spark", "spark.transactional"),
}
# The rooms that decide, and neither wait nor read a clock.
SANS_IO = {"core", "protocol", "wire"}
# No path leads through these.
LEFT_OUT = {"__init__", "__main__", "_build", "_client", "_common", "_common.uncompiled", "core"}


def _group(room: str) -> str:
    return next((group for group, rooms in GROUPS.items() if room in rooms), room)


def _exists(room: str) -> bool:
    path = PACKAGE.joinpath(*room.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def arrows() -> dict[str, set[str]]:
    """Return which group may import which, without the arrows that follow from others."""
    graph: dict[str, set[str]] = {}
    for room, others in ARROWS.items():
        if room not in LEFT_OUT and _exists(room):
            reached = {_group(other) for other in others - LEFT_OUT if _exists(other)} - {_group(room)}
            graph.setdefault(_group(room), set()).update(reached)
    # From the innermost outwards, with all reachable groups.
    below: dict[str, set[str]] = {}
    for group in graphlib.TopologicalSorter(graph).static_order():
        below[group] = set().union(graph[group], *(below[other] for other in graph[group]))
    return {
        group: {other for other in others if not any(other in below[between] for between in others)}
        for group, others in graph.items()
    }


def picture() -> str:
    """Return the diagram in the language of Mermaid."""
    graph = arrows()
    lines = ["flowchart TD"]
    for group in sorted(graph):
        lines.append(f'    {_id(group)}["{group}"]' + (":::decides" if group in SANS_IO else ""))
    for group in sorted(graph):
        for other in sorted(graph[group]):
            lines.append(f"    {_id(group)} --> {_id(other)}")
    lines.append("    classDef decides stroke-width:3px")
    return "\n".join(lines) + "\n"


def _id(group: str) -> str:
    return group.replace("-", "_")


if __name__ == "__main__":
    print(picture(), end="")
