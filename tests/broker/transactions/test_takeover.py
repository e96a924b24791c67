"""Coordinators that move, die and restart, and markers that are late, lost or for deleted partitions."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.broker.groups import GroupCoordinator
from aioproducer.broker.image import TRANSACTION_STATE_TOPIC
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.markers import Marker, MarkerSender
from aioproducer.broker.transactions.states import ProducerIdAndEpoch
from aioproducer.errors import (
    InvalidProducerEpochError,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    TransactionCoordinatorFencedError,
)
from aioproducer.protocol.messages import AddOffsetsToTxnRequest, WriteTxnMarkersRequest
from aioproducer.protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic
from tests import waiting

from .stage import TIMEOUT, Stage, staged

THREE = {"default.replication.factor": 3, "replica.lag.time.max.ms": 1000}


async def in_sync(stage: Stage, topic: str = TRANSACTION_STATE_TOPIC) -> None:
    """Wait until every live node is in the ISR of each of its partitions."""
    image = stage.cluster.image
    alive = {node.node_id for node in image.alive_nodes()}

    def are_in_sync() -> bool:
        return all(alive & set(state.replicas) <= set(state.isr) for state in image.topics[topic].partitions)

    await waiting.until(are_in_sync, TIMEOUT, pause=0.005)


async def move(stage: Stage) -> int:
    """Move the coordinator's partition to another node; return that when it coordinates."""
    await in_sync(stage)
    state = stage.cluster.image.partition(TRANSACTION_STATE_TOPIC, 0)
    other = next(node for node in state.isr if node != state.leader)
    stage.cluster.controller.elect_leader(TRANSACTION_STATE_TOPIC, 0, other)
    assert await stage.coordinator() == other
    return other


class TestTakeover:
    @pytest.mark.parametrize("version", [5, 4], ids=["new", "old"])
    async def test_another_node_continues_an_open_transaction(
        self, monkeypatch: pytest.MonkeyPatch, version: int
    ) -> None:
        async with staged(monkeypatch, 3, transaction_version=2 if version == 5 else 1, **THREE) as stage:
            producer = await stage.begun(0, version=4 if version == 5 else 3)
            before = await stage.describe()
            old = await stage.coordinator()
            await move(stage)
            assert await stage.describe() == before
            assert (await stage.end(producer, version=version, node_id=old)).error_code == Code.NOT_COORDINATOR
            await stage.finished(producer, version=version)
            assert stage.markers.outcomes() == [("t", 0, True)]
            assert stage.markers.written[0].coordinator_epoch == 1

    @pytest.mark.parametrize("commit", [True, False])
    async def test_a_logged_outcome_is_completed(self, monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
        async with staged(monkeypatch, 3, **THREE) as stage:
            producer = await stage.begun(0, 1, 2)
            stage.faults.postpone("WriteTxnMarkers", 60_000, None)
            assert (await stage.end(producer, commit=commit)).error_code == Code.NONE
            await stage.cluster.kill(await stage.coordinator())
            stage.faults.clear()
            state = await stage.until("CompleteCommit" if commit else "CompleteAbort")
            assert (state.producer_epoch, state.topics) == (producer.epoch + 1, [])
            assert {("t", index, commit) for index in range(3)} == set(stage.markers.outcomes())
            assert await stage.ended(producer, commit=commit) == Code.NONE

    async def test_during_a_takeover_every_request_is_concurrent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A takeover answers CONCURRENT_TRANSACTIONS, which franz-go 1.21.4 and 1.22.3 first had to handle."""
        async with staged(monkeypatch, 3, **THREE) as stage:
            producer = await stage.begun(0)
            stage.faults.postpone("WriteTxnMarkers", 60_000, None)
            answer = await stage.end(producer)
            following = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
            await move(stage)
            assert (await stage.end(producer)).error_code == Code.CONCURRENT_TRANSACTIONS
            assert (await stage.init()).error_code == Code.CONCURRENT_TRANSACTIONS
            assert (await stage.init(following)).error_code == Code.CONCURRENT_TRANSACTIONS
            assert await stage.add(following, 0, version=4) == Code.CONCURRENT_TRANSACTIONS
            stage.faults.clear()
            assert await stage.ended(producer) == Code.NONE
            assert await stage.add(following, 0, version=4) == Code.NONE

    async def test_a_node_that_leads_again_loads_again_with_a_new_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            await stage.cluster.restart(1)
            assert (await stage.describe()).transaction_state == "Ongoing"
            await stage.finished(producer)
            assert stage.markers.written[0].coordinator_epoch > 0

    async def test_a_loading_coordinator_answers_that_it_is_loading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            transactions = stage.broker().transactions
            transactions.shards.leadership(0, False)
            assert (await stage.end(producer, node_id=1)).error_code == Code.NOT_COORDINATOR
            transactions.shards.leadership(0, True)
            ended = await transactions.end_transaction("id", producer, commit=True, client_version=2)
            assert ended.code == Code.COORDINATOR_LOAD_IN_PROGRESS
            assert transactions.describe("id").error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
            assert await stage.ended(producer) == Code.NONE

    async def test_with_too_few_replicas_nothing_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client repeats its request until there are enough replicas."""
        isr = {**THREE, "transaction.state.log.min.isr": 3}
        async with staged(monkeypatch, 3, **isr) as stage:
            producer = await stage.begun(0)
            await in_sync(stage)
            node = await stage.coordinator()
            await stage.cluster.kill(next(other for other in (1, 2, 3) if other != node))
            answer = await stage.end(producer)
            assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE
            assert (await stage.describe()).transaction_state == "Ongoing"
            assert stage.markers.written == []
            await stage.cluster.restart(next(other for other in (1, 2, 3) if not stage.broker(other).is_running))
            await in_sync(stage)
            assert await stage.ended(producer) == Code.NONE


class TestMarkers:
    async def test_markers_of_one_node_come_in_one_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            names = [f"id-{number}" for number in range(5)]
            producers = {name: await stage.begun(0, 1, transactional_id=name) for name in names}
            rule = stage.faults.delay("WriteTxnMarkers", 30, None)
            await asyncio.gather(*(stage.end(producers[name], transactional_id=name) for name in names))
            for name in names:
                await stage.until("CompleteCommit", name)
            assert rule.used < 5
            assert len(stage.markers.written) == 10

    @pytest.mark.parametrize("when", ["before", "after", "half"])
    async def test_lost_requests_are_sent_again(self, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            stage.faults.disconnect("WriteTxnMarkers", when, 3)
            await stage.finished(producer)
            assert len(stage.markers.written) == (1 if when == "before" else 4)
            assert stage.faults.unmet() == []

    @pytest.mark.parametrize("error", [NotLeaderOrFollowerError, NotEnoughReplicasError, KafkaStorageError])
    async def test_retriable_errors_are_retried(self, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError]) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0, 1)
            stage.markers.errors = [error(), error(), error()]
            await stage.finished(producer)
            assert set(stage.markers.outcomes()) == {("t", 0, True), ("t", 1, True)}
            assert len(stage.markers.written) == 2

    @pytest.mark.parametrize("error", [InvalidProducerEpochError, TransactionCoordinatorFencedError])
    async def test_a_fenced_coordinator_gives_up(
        self, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError]
    ) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            stage.markers.errors = [error()]
            await stage.end(producer)
            sender = stage.broker().transactions._markers
            await waiting.until(lambda: not stage.markers.errors and not sender._tasks)
            assert not sender._retries
            assert stage.markers.written == []
            assert (await stage.end(producer)).error_code == Code.CONCURRENT_TRANSACTIONS
            # The next node that loads the partition tries again.
            stage.broker().transactions.shards.leadership(0, False)
            stage.broker().transactions.shards.leadership(0, True)
            assert await stage.ended(producer) == Code.NONE

    async def test_a_defect_leaves_no_transaction_open(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        send = MarkerSender._send
        failures = [RuntimeError("a defect")]

        async def failing(self: MarkerSender, node_id: int, markers: list[Marker]) -> None:
            if failures:
                raise failures.pop()
            await send(self, node_id, markers)

        monkeypatch.setattr(MarkerSender, "_send", failing)
        async with staged(monkeypatch) as stage:
            await stage.finished(await stage.begun(0))
            assert stage.markers.outcomes() == [("t", 0, True)]
        assert "a defect" in caplog.text

    async def test_markers_follow_a_leader_that_moves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, 3, **THREE) as stage:
            producer = await stage.begun(0)
            await in_sync(stage, "t")
            old = stage.leader(0)
            new = next(node for node in (1, 2, 3) if node != old)
            stage.faults.postpone("WriteTxnMarkers", 60_000)
            await stage.end(producer)
            await waiting.until(lambda: not stage.faults.unmet())
            stage.cluster.controller.elect_leader("t", 0, new)
            stage.faults.let_go()
            await stage.until("CompleteCommit")
            assert [marked.node_id for marked in stage.markers.written] == [new]

    async def test_a_partition_without_a_leader_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, 2, transaction__state__log__min__isr=1) as stage:
            stage.cluster.create_topic("lone", assignments={0: [3 - await stage.coordinator()]})
            node = stage.leader(0, "lone")
            producer = await stage.initialized()
            assert await stage.add(producer, 0, topic="lone") == Code.NONE
            await stage.cluster.kill(node)
            await stage.end(producer)
            sender = stage.broker(await stage.coordinator()).transactions._markers
            await waiting.until(lambda: sender._retries)
            assert (await stage.describe()).transaction_state == "PrepareCommit"
            await stage.cluster.restart(node)
            await stage.until("CompleteCommit")
            assert [(marked.topic, marked.node_id) for marked in stage.markers.written] == [("lone", node)]

    async def test_a_deleted_topic_needs_no_marker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            stage.cluster.create_topic("gone")
            producer = await stage.initialized()
            assert set((await stage.added(producer, {"t": [0], "gone": [0]})).values()) == {Code.NONE}
            stage.cluster.controller.delete_topic("gone")
            await stage.finished(producer)
            assert stage.markers.outcomes() == [("t", 0, True)]

    async def test_a_topic_that_is_deleted_during_the_end_is_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            stage.faults.postpone("WriteTxnMarkers", 60_000)
            await stage.end(producer)
            await waiting.until(lambda: not stage.faults.unmet())
            stage.cluster.controller.delete_topic("t")
            stage.faults.let_go()
            await stage.finished(producer)
            assert stage.markers.written == []

    async def test_group_coordinators_write_markers_to_their_own_partitions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        completed: list[tuple[object, ...]] = []
        codes = [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR, Code.NONE]

        async def complete_transaction(
            groups: GroupCoordinator,
            partition_index: int,
            producer_id: int,
            producer_epoch: int,
            *,
            committed: bool,
            coordinator_epoch: int,
            transaction_version: int,
        ) -> int:
            completed.append((partition_index, producer_id, producer_epoch, committed, transaction_version))
            return codes.pop(0)

        monkeypatch.setattr(GroupCoordinator, "complete_transaction", complete_transaction, raising=False)
        async with staged(monkeypatch, offsets__topic__num__partitions=1) as stage:
            producer = await stage.initialized()
            request = AddOffsetsToTxnRequest(
                transactional_id="id", producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="g"
            )
            stage.cluster.create_topic("__consumer_offsets", 1)
            assert (await stage.ask(request, 3)).error_code == Code.NONE
            await stage.finished(producer, version=4)
            assert completed == [(0, producer.producer_id, producer.epoch, True, 0)] * 3
            assert stage.markers.written == []


class TestWriteTxnMarkers:
    async def ask(self, stage: Stage, *markers: WritableTxnMarker, version: int = 2, node_id: int = 1) -> object:
        response = await stage.ask(WriteTxnMarkersRequest(markers=list(markers)), version, node_id)
        return [
            (marker.producer_id, topic.name, partition.partition_index, partition.error_code)
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        ]

    def marker(self, *indexes: int, topic: str = "t", **fields: object) -> WritableTxnMarker:
        topics = [WritableTxnMarkerTopic(name=topic, partition_indexes=list(indexes))]
        values: dict[str, object] = {
            "producer_id": 7,
            "producer_epoch": 3,
            "transaction_result": True,
            "topics": topics,
            "coordinator_epoch": 4,
            **fields,
        }
        return WritableTxnMarker(**values)  # type: ignore[arg-type]  # the fields by name

    async def test_each_partition_has_its_own_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            stage.markers.errors = [InvalidProducerEpochError()]
            answer = await self.ask(stage, self.marker(0, 1, 9), self.marker(2, producer_id=8))
            assert answer == [(7, "t", 0, 47), (7, "t", 1, 0), (7, "t", 9, 3), (8, "t", 2, 0)]

    async def test_a_follower_writes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, 2) as stage:
            follower = 3 - stage.leader(0)
            assert await self.ask(stage, self.marker(0), node_id=follower) == [(7, "t", 0, 6)]

    @pytest.mark.parametrize(("version", "transaction_version"), [(1, 0), (2, 2)])
    async def test_markers_have_the_version_of_their_transaction(
        self, monkeypatch: pytest.MonkeyPatch, version: int, transaction_version: int
    ) -> None:
        async with staged(monkeypatch) as stage:
            marker = self.marker(0, transaction_version=2)
            assert await self.ask(stage, marker, version=version) == [(7, "t", 0, 0)]
            [marked] = stage.markers.written
            assert marked == (1, "t", 0, 7, 3, True, 4, transaction_version)

    async def test_a_request_without_markers_has_an_empty_response(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            assert await self.ask(stage) == []
