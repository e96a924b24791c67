"""What a seed draws: the cluster, the clients and their configurations, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from aioproducer.testing.simulation.trouble import CLUSTER_FAULTS, NETWORK_FAULTS, REQUEST_FAULTS, SLOW_FAULTS

SLACK = 0.6
"""Seconds by which a wait may exceed its limit: latencies, and 0.5 s while a queue is served before an expiry."""

Kind = Literal["plain", "idempotent", "transactional", "pool"]
Loop = Literal["closed", "open"]

_FAULTS = (*NETWORK_FAULTS, *CLUSTER_FAULTS, *REQUEST_FAULTS)

_WAITS = ("request_timeout_ms", "socket_connection_setup_timeout_max_ms", "linger_ms")


@dataclass(slots=True, kw_only=True)
class ClientPlan:
    """One producer or pool, and the tasks that send by it."""

    name: str
    kind: Kind
    config: dict[str, Any]
    loops: list[Loop]
    pause: float
    """Mean seconds between two rounds of a task."""
    crashes: bool = False
    """Whether the client ends during the faults, without closing its transaction."""
    has_successor: bool = False
    """Whether another one with the same transactional id takes over after the crash."""

    @property
    def longest_send(self) -> float:
        """Seconds within which each record has its outcome."""
        return float(self.config["max_block_ms"] + self.config["delivery_timeout_ms"]) / 1000

    @property
    def max_block(self) -> float:
        """``max_block_ms`` in seconds."""
        return float(self.config["max_block_ms"]) / 1000

    @property
    def longest_end(self) -> float:
        """Seconds within which each call that ends a transaction returns: its records, then the coordinator."""
        return self.longest_send + self.max_block


@dataclass(slots=True, kw_only=True)
class Story:
    """Everything that a seed draws before its play."""

    nodes: int
    transaction_version: int
    properties: dict[str, object]
    topics: dict[str, int]
    """Number of partitions by name."""
    send_buffer_bytes: int
    latency: float
    """Mean latency in seconds."""
    seconds_of_trouble: float
    fault_rate: float
    """Faults in a second, on average."""
    faults: tuple[str, ...]
    """The kinds of faults that come."""
    clients: list[ClientPlan] = field(default_factory=list)
    is_administered: bool = False
    """Whether topics are made, deleted and grown, and records deleted."""
    clock_errors: dict[int, int] = field(default_factory=dict)
    """Milliseconds by which the clock of a node is ahead."""
    readers: int = 1
    """Readers of each topic and isolation level."""


def draw_story(
    random: Random, *, kinds: tuple[Kind, ...] = ("plain", "idempotent", "transactional", "pool"), version: int = 2
) -> Story:
    """Draw a story with clients of these kinds, on a cluster with this ``transaction.version``."""
    nodes = random.choice([1, 2, 3, 3])
    lag_ms = random.choice([1000, 3000])
    story = Story(
        nodes=nodes,
        transaction_version=version,
        properties={
            "min.insync.replicas": str(random.choice([1, min(2, nodes)])),
            "replica.lag.time.max.ms": str(lag_ms),
            "replica.fetch.wait.max.ms": str(min(500, lag_ms // 2)),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "auto.create.topics.enable": "false",
        },
        topics={f"topic{index}": random.randint(1, 3) for index in range(random.randint(1, 2))},
        send_buffer_bytes=random.choice([0, 0, 1000, 65536]),
        latency=random.choice([0.0002, 0.001, 0.005]),
        seconds_of_trouble=random.choice([1.0, 2.0, 3.0]),
        fault_rate=random.choice([0.0, 2.0, 5.0, 8.0]),
        # Without KIP-890 a late EndTxn ends a later transaction: test_transaction_versions.
        faults=tuple(each for each in _FAULTS if random.random() < 0.6 and (version >= 2 or each != "late end")),
    )
    for index in range(random.choice([1, 1, 2])):
        story.clients.append(draw_client(random, f"client{index}", random.choice(kinds)))
    if nodes == 3 and random.random() < 0.5:
        story.faults += ("power loss",)
    story.faults += tuple(each for each in SLOW_FAULTS if random.random() < 0.4)
    story.is_administered = random.random() < 0.3
    if random.random() < 0.3:
        story.clock_errors = {node: random.choice([-700, 0, 5, 700]) for node in range(1, nodes + 1)}
    for client in story.clients:
        _go_to_extremes(random, client.config)
    return story


def _go_to_extremes(random: Random, config: dict[str, Any]) -> None:
    """Let some clients have the configuration of a tiny or of a huge program."""
    match random.randrange(8):
        case 0:
            config.update(batch_size=1, max_request_size=1024, buffer_memory=1500)
        case 1:
            config.update(batch_size=1 << 20, buffer_memory=1 << 25, linger_ms=200)
            config["delivery_timeout_ms"] += 200


def late_end_story(random: Random, version: int) -> Story:
    """A story in which nothing goes wrong but that EndTxn requests come late, when the client has sent them again."""
    story = draw_story(random, kinds=("transactional",), version=version)
    story.faults = ("late end",)
    story.is_administered = False
    story.clock_errors = {}
    story.fault_rate = 5.0
    story.seconds_of_trouble = 3.0
    story.topics = {"topic0": 3, "topic1": 2}
    for client in story.clients:
        client.config["request_timeout_ms"] = 300
        client.config["delivery_timeout_ms"] = client.config["linger_ms"] + 5000
        client.crashes = False
    return story


def story_with(random: Random, *, faults: tuple[str, ...], **config: Any) -> Story:
    """A story of three nodes and idempotent producers with these faults, and keys of the clients' configuration."""
    story = draw_story(random, kinds=("idempotent",))
    story.nodes = 3
    story.properties["min.insync.replicas"] = "2"
    story.faults = faults
    story.fault_rate = 5.0
    for client in story.clients:
        client.config.update(config)
        client.crashes = False
    return story


def administered_story(random: Random) -> Story:
    """A story with Admin calls and no faults."""
    story = story_with(random, faults=())
    story.is_administered = True
    return story


def draw_client(random: Random, name: str, kind: Kind) -> ClientPlan:
    """Draw the configuration of a client, from tiny to huge, and its tasks."""
    request_timeout_ms = random.choice([300, 1000, 3000])
    linger_ms = random.choice([0, 0, 5, 50])
    acks = random.choice(["all", "all", "1"]) if kind == "plain" else "all"
    config: dict[str, Any] = {
        "client_id": name,
        "acks": acks,
        "enable_idempotence": kind != "plain",
        "max_in_flight_requests_per_connection": random.choice([1, 2, 5, 5]),
        "compression_type": random.choice(["none", "none", "none", "gzip", "lz4"]),
        "linger_ms": linger_ms,
        "batch_size": random.choice([0, 200, 1000, 16384]),
        "buffer_memory": random.choice([4096, 65536, 1 << 20]),
        "request_timeout_ms": request_timeout_ms,
        "delivery_timeout_ms": linger_ms + request_timeout_ms + random.choice([0, 1000, 8000]),
        "max_block_ms": random.choice([1000, 5000, 20_000]),
        "retries": 2**31 - 1,
        "retry_backoff_ms": random.choice([10, 100]),
        "reconnect_backoff_ms": random.choice([0, 50]),
        "socket_connection_setup_timeout_ms": 500,
        "socket_connection_setup_timeout_max_ms": 1000,
        "connections_max_idle_ms": random.choice([200, 540_000, 540_000]),
        "metadata_max_age_ms": random.choice([500, 300_000]),
        "metadata_recovery_rebootstrap_trigger_ms": random.choice([1000, 300_000]),
    }
    if kind in ("transactional", "pool"):
        config["transaction_timeout_ms"] = random.choice([3000, 10_000])
        config["max_request_size"] = 2048
        config["buffer_memory"] = random.choice([16384, 1 << 20])
    loops: list[Loop] = [random.choice(["closed", "open"]) for _ in range(random.randint(1, 3))]
    if kind == "transactional":
        del loops[1:]
    pause = random.choice([0.01, 0.03, 0.1])
    crashes = kind in ("transactional", "idempotent") and random.random() < 0.3
    return ClientPlan(
        name=name,
        kind=kind,
        config=config,
        loops=loops,
        pause=pause,
        crashes=crashes,
        has_successor=crashes and random.random() < 0.6,
    )


def healing_bound(story: Story) -> float:
    """Seconds after the end of all faults within which each topic takes a record.

    A client may be in the middle of a request, of a connection set-up and of a backoff, and may have to learn the
    leader first.
    """
    longest_ms = sum(max(int(client.config[key]) for client in story.clients) for key in _WAITS)
    return 2 * longest_ms / 1000 + 2 + SLACK
