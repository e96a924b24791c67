"""What a seed draws: the cluster, the clients and their configurations, and what goes wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from aioproducer.testing.simulation.trouble import CLUSTER_FAULTS, NETWORK_FAULTS, REQUEST_FAULTS, SLOW_FAULTS

SLACK = 0.6
"""Seconds by which a wait may exceed its limit: latencies, and 0.5 s while a queue is served before an expiry."""

Kind = Literal["plain", "idempotent", "transactional", "pool", "group", "transform"]
"""What a client does; ``group`` and ``transform`` are a consumer group with a producer that fills its topics."""

KINDS: tuple[Kind, ...] = ("plain", "idempotent", "transactional", "pool", "group", "transform")
GROUP_KINDS: tuple[Kind, ...] = ("group", "transform")

RESULTS = "results"
"""The topic of the group that consumes, transforms and produces."""

Loop = Literal["closed", "open"]

_FAULTS = (*NETWORK_FAULTS, *CLUSTER_FAULTS, *REQUEST_FAULTS)

_SMALL_PARTITIONS = 2
"""Partitions of the topic of a small story, at most."""

_SMALL_MEMBERS = 3
"""Members of its group, at most."""

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
    reads: float = 0.1
    """Probability that a transaction reads a topic."""
    pace: float = math.inf
    """Rounds of a task in a second, at most."""
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
class GroupPlan:
    """A consumer group, and what happens to its members."""

    name: str
    config: dict[str, Any]
    """Of each consumer."""
    members: int
    """Members at a time, at most."""
    event_rate: float
    """Members that come or go, and rebalances, in a second, on average."""
    pause: float
    """Mean seconds in which a member handles records, when it is slow."""
    pace: float = math.inf
    """Rounds of a member in a second, at most."""
    has_kills: bool
    is_static: bool
    """Whether the members have ``group_instance_id``, which the next one in the place of a member has again."""
    producer: ClientPlan | None = None
    """The producers of the results, if the group transforms: one for each member."""

    @property
    def commits_itself(self) -> bool:
        """Whether each commit is a call of the members."""
        return not self.config["enable_auto_commit"]

    @property
    def longest_rebalance(self) -> float:
        """Seconds within which a group without faults has its next generation, and its members their offsets."""
        config = self.config
        longest_ms = config["max_poll_interval_ms"] + config["session_timeout_ms"] + 4 * config["request_timeout_ms"]
        if self.producer is not None:
            # The offsets of an open transaction have no outcome before it has timed out.
            longest_ms += self.producer.config["transaction_timeout_ms"] + 1000
        return float(longest_ms) / 1000

    @property
    def longest_close(self) -> float:
        """Seconds within which a member closes: its last commits, then its leave."""
        return float(self.config["default_api_timeout_ms"]) / 1000


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
    groups: list[GroupPlan] = field(default_factory=list)
    is_administered: bool = False
    """Whether topics are made, deleted and grown, and records deleted."""
    clock_errors: dict[int, int] = field(default_factory=dict)
    """Milliseconds by which the clock of a node is ahead."""
    readers: int = 1
    """Readers of each topic and isolation level."""
    seconds_after_trouble: float = 1.0
    """Seconds in which clients send when the faults have ended."""
    has_late_readers: bool = False
    """Whether, of each topic, only the reader of one isolation level reads during the faults."""


def draw_story(random: Random, *, kinds: tuple[Kind, ...] = KINDS, version: int = 2) -> Story:
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
    of_groups: list[Kind] = []
    for index in range(random.choice([1, 1, 2])):
        kind = random.choice(kinds)
        if kind in GROUP_KINDS:
            of_groups.append(kind)
            kind = random.choice(["idempotent", "transactional"])
        story.clients.append(draw_client(random, f"client{index}", kind))
    if nodes == 3 and random.random() < 0.5:
        story.faults += ("power loss",)
    story.faults += tuple(each for each in SLOW_FAULTS if random.random() < 0.4)
    story.is_administered = random.random() < 0.3
    if random.random() < 0.3:
        story.clock_errors = {node: random.choice([-700, 0, 5, 700]) for node in range(1, nodes + 1)}
    for client in story.clients:
        _go_to_extremes(random, client.config)
    # Each kind once: only one group may write the results.
    for kind in sorted(set(of_groups)):
        story.groups.append(draw_group(random, f"{kind}-members", transforms=kind == "transform"))
        # Tests may let sessions end sooner than Kafka allows by default.
        story.properties["group.min.session.timeout.ms"] = "100"
    return story


def small(random: Random, story: Story) -> Story:
    """Make a story small: its faults come in a shorter time, among fewer requests.

    Nearly all that a play costs are its requests, and most of them are fetches: by followers and readers, of each
    append. A small story has as many faults, in a third of the time, and clients that send less often.
    """
    story.seconds_of_trouble = random.choice([0.4, 0.7, 1.0])
    story.seconds_after_trouble = 0.2
    story.fault_rate *= 2.5
    story.has_late_readers = True
    if len(story.topics) > 1 or max(story.topics.values()) > _SMALL_PARTITIONS:
        story.topics = {"topic0": random.randint(1, _SMALL_PARTITIONS)}
    del story.clients[1:]
    for client in story.clients:
        client.pace = random.choice([8.0, 16.0, 32.0])
        del client.loops[2:]
    for group in story.groups:
        group.event_rate *= 2
        group.pace = random.choice([4.0, 8.0])
        group.members = min(group.members, _SMALL_MEMBERS)
        group.pause = min(group.pause, 0.2)
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


def story_with(
    random: Random, *, faults: tuple[str, ...], kinds: tuple[Kind, ...] = ("idempotent",), **config: Any
) -> Story:
    """A story of three nodes and clients of these kinds, with these faults, and keys of the clients' configuration."""
    story = draw_story(random, kinds=kinds)
    story.nodes = 3
    story.properties["min.insync.replicas"] = "2"
    story.faults = faults
    story.fault_rate = 5.0
    for client in story.clients:
        client.config.update(config)
        client.crashes = False
    return story


def crowded_story(random: Random) -> Story:
    """A story in which many batches of one partition are in flight, and some of their requests fail."""
    story = story_with(random, faults=("error", "disconnect"), max_in_flight_requests_per_connection=5, linger_ms=0)
    story.topics = {"topic0": 1}
    story.is_administered = False
    story.latency = 0.005
    story.fault_rate = 10.0
    for client in story.clients:
        client.loops = ["open", "open", "closed"]
        client.pause = 0.01
    return story


def draining_story(random: Random) -> Story:
    """A story with one task for each producer, which often waits in ``drain`` for a small memory."""
    story = story_with(random, faults=("stop", "slow"), buffer_memory=2048, batch_size=200, max_request_size=1024)
    for client in story.clients:
        client.loops = ["open"]
        client.pause = 0.01
    return story


def abandoning_story(random: Random) -> Story:
    """A story with transactional producers that end suddenly, without a successor."""
    story = story_with(random, faults=(), kinds=("transactional",))
    for client in story.clients:
        client.crashes = True
        client.has_successor = False
        client.pause = 0.1
    return story


def administered_story(random: Random) -> Story:
    """A story with Admin calls and no faults."""
    story = story_with(random, faults=())
    story.is_administered = True
    return story


def reading_story(random: Random) -> Story:
    """A small story with transactions, half of which read a topic to its end."""
    story = small(random, draw_story(random, kinds=("transactional", "pool")))
    story.seconds_of_trouble = 1.0
    for client in story.clients:
        client.reads = 0.5
    return story


def restless_group_story(random: Random) -> Story:
    """A story with a group whose members commit themselves, and often lose their partitions."""
    story = draw_story(random, kinds=("group",))
    for group in story.groups:
        group.members = 3
        group.event_rate = 10.0
        group.has_kills = False
        group.config.update(enable_auto_commit=False, session_timeout_ms=1500, heartbeat_interval_ms=500)
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


def draw_group(random: Random, name: str, *, transforms: bool) -> GroupPlan:
    """Draw a consumer group: the configuration of its consumers, and of its producers if it transforms."""
    request_timeout_ms = random.choice([300, 1000])
    session_timeout_ms = random.choice([600, 1500])
    config: dict[str, Any] = {
        "group_id": name,
        "auto_offset_reset": "earliest",
        "partition_assignment_strategy": random.choice(["range", "roundrobin", "sticky", "cooperative-sticky"]),
        "isolation_level": "read_committed" if transforms else random.choice(["read_committed", "read_uncommitted"]),
        "enable_auto_commit": not transforms and random.random() < 0.5,
        "auto_commit_interval_ms": random.choice([50, 500, 600_000]),
        "session_timeout_ms": session_timeout_ms,
        "heartbeat_interval_ms": session_timeout_ms // 4,
        "max_poll_interval_ms": random.choice([1500, 4000]),
        "request_timeout_ms": request_timeout_ms,
        "default_api_timeout_ms": request_timeout_ms + random.choice([500, 3000]),
        "max_partition_fetch_bytes": random.choice([300, 100_000]),
        "fetch_max_wait_ms": 200,
        "retry_backoff_ms": random.choice([10, 100]),
        "retry_backoff_max_ms": 200,
        "reconnect_backoff_ms": random.choice([0, 50]),
        "socket_connection_setup_timeout_ms": 500,
        "socket_connection_setup_timeout_max_ms": 1000,
        "metadata_max_age_ms": random.choice([500, 300_000]),
    }
    producer: ClientPlan | None = None
    if transforms:
        producer = draw_client(random, f"{name}-producer", "transactional")
        # All results of a transaction have to be delivered in time, also when the members hurry.
        producer.config.update(batch_size=16384, buffer_memory=1 << 20, transaction_timeout_ms=3000)
        producer.config["delivery_timeout_ms"] += 1000
        producer.crashes = True
    return GroupPlan(
        name=name,
        config=config,
        members=random.choice([1, 2, 3, 4]),
        event_rate=random.choice([0.5, 2.0, 4.0]),
        pause=random.choice([0.02, 0.2, 1.0]),
        has_kills=random.random() < 0.6,
        is_static=random.random() < 0.4,
        producer=producer,
    )


def healing_bound(story: Story) -> float:
    """Seconds after the end of all faults within which each topic takes a record.

    A client may be in the middle of a request, of a connection set-up and of a backoff, and may have to learn the
    leader first.
    """
    longest_ms = sum(max(int(client.config[key]) for client in story.clients) for key in _WAITS)
    return 2 * longest_ms / 1000 + 2 + SLACK
