"""Random events: what holds after each, and that the journal tells the same story at every cut."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aioproducer.broker.config import BrokerConfig
from aioproducer.broker.controller.controller import Controller, TopicSpec
from aioproducer.broker.controller.journal import FILE_NAME, Journal
from aioproducer.broker.image import NO_LEADER, BrokerRegistration, ClusterImage, PartitionState
from aioproducer.broker.log import MemoryStorage
from aioproducer.errors import KafkaError

NODES = 4
TOPICS = ("a", "b")
NODE_IDS = st.integers(1, NODES)
NODE_SETS = st.sets(NODE_IDS, min_size=1)


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.received: dict[tuple[bytes, int], PartitionState] = {}
        self.images: list[tuple[int, ClusterImage]] = []
        self.producer_ids: set[int] = set()

    @initialize()
    def begin(self) -> None:
        self._load()
        self.controller.register(*map(_node, range(1, NODES + 1)))

    def _load(self) -> None:
        self.images.clear()
        journal = Journal(self.storage)
        self.controller = Controller(journal.load("cluster"), journal, BrokerConfig())
        self.controller.begin(NODES)
        self.controller.attach(self)

    def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
        for state in changed:
            before = self.received.get((state.topic_id, state.index))
            if before is not None:
                assert state.partition_epoch > before.partition_epoch
                assert state.leader_epoch - before.leader_epoch >= (state.leader != before.leader)
            self.received[state.topic_id, state.index] = state
        for state in removed:
            del self.received[state.topic_id, state.index]

    def configs_changed(self, topics: object) -> None:
        pass

    @rule(
        name=st.sampled_from(TOPICS),
        partitions=st.integers(0, 4),
        factor=st.integers(1, NODES + 1),
        unclean=st.booleans(),
    )
    def create(self, name: str, partitions: int, factor: int, unclean: bool) -> None:
        configs = {"unclean.leader.election.enable": "true"} if unclean else {}
        self._try(lambda: self.controller.create_topic(TopicSpec(name, partitions, factor, configs=configs)))

    @rule(name=st.sampled_from(TOPICS))
    def delete(self, name: str) -> None:
        self._try(lambda: self.controller.delete_topic(name))

    @rule(name=st.sampled_from(TOPICS), total=st.integers(1, 6))
    def more_partitions(self, name: str, total: int) -> None:
        self._try(lambda: self.controller.create_partitions(name, total))

    @rule(name=st.sampled_from(TOPICS), value=st.sampled_from(["true", "false", None]))
    def configure(self, name: str, value: str | None) -> None:
        self._try(lambda: self.controller.alter_topic_configs(name, {"unclean.leader.election.enable": value}))

    @rule(nodes=NODE_SETS)
    def fence(self, nodes: set[int]) -> None:
        self.controller.fence(*nodes)

    @rule(nodes=NODE_SETS)
    def begin_shutdown(self, nodes: set[int]) -> None:
        self.controller.begin_shutdown(*nodes)

    @rule(nodes=NODE_SETS)
    def register(self, nodes: set[int]) -> None:
        dead = [node_id for node_id in nodes if not self.controller.image.is_alive(node_id)]
        if dead:
            self.controller.register(*map(_node, dead))

    @rule(data=st.data(), isr=st.lists(NODE_IDS, max_size=NODES), stale=st.integers(-1, 1))
    def alter_partition(self, data: st.DataObject, isr: list[int], stale: int) -> None:
        states = self.controller.image.partitions()
        if states:
            state = data.draw(st.sampled_from(states))
            self._try(
                lambda: self.controller.alter_partition(
                    state.leader, state.topic, state.index, state.leader_epoch, state.partition_epoch + stale, isr
                )
            )

    @rule(data=st.data(), node_id=NODE_IDS, unclean=st.booleans())
    def elect(self, data: st.DataObject, node_id: int, unclean: bool) -> None:
        states = self.controller.image.partitions()
        if states:
            state = data.draw(st.sampled_from(states))
            if unclean:
                self._try(lambda: self.controller.elect_unclean(state.topic, state.index))
            else:
                self._try(lambda: self.controller.elect_leader(state.topic, state.index, node_id))

    @rule(count=st.integers(1, 3))
    def allocate(self, count: int) -> None:
        for _ in range(count):
            producer_id = self.controller.allocate_producer_id()
            assert producer_id not in self.producer_ids
            self.producer_ids.add(producer_id)

    @rule()
    def crash(self) -> None:
        self._load()
        for state in self.controller.image.partitions():
            before = self.received[state.topic_id, state.index]
            assert state.isr == before.isr
            assert state.leader_epoch == before.leader_epoch + (before.leader != NO_LEADER)
            self.received[state.topic_id, state.index] = state

    def _try(self, event: object) -> None:
        before = deepcopy(self.controller.image)
        try:
            event()  # type: ignore[operator]  # any event, whatever it returns
        except KafkaError:
            assert self.controller.image == before

    @invariant()
    def leaders_and_isrs(self) -> None:
        image = self.controller.image
        eligible = image.eligible_nodes()
        for state in image.partitions():
            assert state.isr
            assert len(set(state.isr)) == len(state.isr)
            assert set(state.isr) <= set(state.replicas)
            if state.leader == NO_LEADER:
                assert eligible.isdisjoint(state.isr)
            else:
                assert state.leader in state.isr
                assert set(state.isr) <= eligible
                assert state.last_known_leader == NO_LEADER

    @invariant()
    def everybody_was_told(self) -> None:
        states = {(state.topic_id, state.index): state for state in self.controller.image.partitions()}
        assert states == self.received
        assert {topic.topic_id: topic for topic in self.controller.image.topics.values()} == (
            self.controller.image.topics_by_id
        )

    @invariant()
    def keep(self) -> None:
        self.images.append((len(self.storage.read(FILE_NAME) or b""), deepcopy(self.controller.image)))

    def teardown(self) -> None:
        whole = self.storage.read(FILE_NAME) or b""
        for size, image in self.images:
            for torn in (0, 7):
                copy = MemoryStorage()
                cut = whole[: size + torn]
                copy.replace(FILE_NAME, cut if torn == 0 or b"\n" not in cut[size:] else cut[:size])
                assert Journal(copy).load("cluster") == image


def _node(node_id: int) -> BrokerRegistration:
    return BrokerRegistration(node_id, "h", 9092, f"rack-{node_id % 2}", is_alive=False, epoch=-1)


Cluster.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCluster = Cluster.TestCase
