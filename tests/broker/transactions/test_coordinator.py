"""Transactional ids as clients see them: requests to nodes of a cluster in memory, in both generations."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.broker import BrokerConfig
from aioproducer.broker.image import TRANSACTION_STATE_TOPIC
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import ProducerIdAndEpoch
from aioproducer.protocol import APIS, ApiKey, Request, Response
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    MetadataRequest,
    WriteTxnMarkersRequest,
)
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from aioproducer.protocol.messages.transactions import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction

from .stage import WALL_MS, Stage, staged

NEW_AND_OLD = pytest.mark.parametrize("version", [5, 4], ids=["new", "old"])
"""EndTxn's version determines the generation in which a transaction ends."""


def of(version: int) -> int:
    """The level of ``transaction.version`` of a cluster with clients that use EndTxn of ``version``."""
    return 2 if version == 5 else 1


class TestTopic:
    async def test_finding_a_coordinator_creates_the_topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, 3, transaction__state__log__num__partitions=5) as stage:
            request = FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"])
            first = await stage.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["a"]), 6)
            assert [found.error_code for found in first.coordinators] == [Code.COORDINATOR_NOT_AVAILABLE]
            topic = stage.cluster.image.topics[TRANSACTION_STATE_TOPIC]
            assert topic.is_internal
            assert [len(partition.replicas) for partition in topic.partitions] == [3] * 5
            assert topic.configs == {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": "2",
                "segment.bytes": "104857600",
                "unclean.leader.election.enable": "false",
            }
            found = await stage.ask(request, 6)
            for coordinator in found.coordinators:
                index = stage.broker().transactions.shards.partition_for(coordinator.key)
                assert coordinator.node_id == topic.partitions[index].leader

    async def test_requesting_its_metadata_creates_the_same_topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, transaction__state__log__num__partitions=7) as stage:
            topics = [MetadataRequestTopic(name=TRANSACTION_STATE_TOPIC)]
            await stage.ask(MetadataRequest(topics=topics), 12)
            assert len(stage.cluster.image.topics[TRANSACTION_STATE_TOPIC].partitions) == 7

    async def test_all_of_its_partitions_are_coordinated_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a topic with as many partitions, most logs were once opened later, and then had no coordinator."""
        async with staged(monkeypatch, transaction__state__log__num__partitions=50) as stage:
            await stage.coordinator()
            transactions = stage.broker().transactions
            names = {transactions.shards.partition_for(f"id-{number}"): f"id-{number}" for number in range(400)}
            assert len(names) == 50
            for name in names.values():
                assert (await stage.init(transactional_id=name, node_id=1)).error_code == Code.NONE

    def test_it_has_50_partitions_by_default(self) -> None:
        assert BrokerConfig().transaction_state_log_num_partitions == 50


class TestInitProducerId:
    @pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
    async def test_a_timeout_beyond_the_limit_is_rejected(
        self, monkeypatch: pytest.MonkeyPatch, timeout_ms: int
    ) -> None:
        async with staged(monkeypatch) as stage:
            answer = await stage.init(timeout_ms=timeout_ms)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (50, -1, -1)
            assert (await stage.describe()).error_code == Code.TRANSACTIONAL_ID_NOT_FOUND

    async def test_the_limit_of_the_timeout_is_configurable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, transaction__max__timeout__ms=100) as stage:
            assert (await stage.init(timeout_ms=101)).error_code == Code.INVALID_TRANSACTION_TIMEOUT
            assert (await stage.init(timeout_ms=100)).error_code == Code.NONE

    async def test_an_empty_id_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            await stage.coordinator()
            assert (await stage.init(transactional_id="", node_id=1)).error_code == Code.INVALID_REQUEST

    async def test_a_second_producer_fences_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            first = await stage.initialized()
            second = await stage.initialized()
            assert second == (first.producer_id, first.epoch + 1)
            for version, code in ((0, 47), (1, 47), (2, 90), (3, 90), (4, 90), (5, 90)):
                assert await stage.add(first, 0, version=version) == code
                assert (await stage.end(first, version=version)).error_code == code
            for version, code in ((3, 47), (4, 90), (5, 90)):
                assert (await stage.init(first, version=version)).error_code == code

    @NEW_AND_OLD
    async def test_an_open_transaction_is_aborted_first(self, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        """KAFKA-19367: its end raises the epoch once, the new producer once more."""
        async with staged(monkeypatch, transaction_version=of(version)) as stage:
            first = await stage.begun(0, 1, version=3)
            assert (await stage.init()).error_code == Code.CONCURRENT_TRANSACTIONS
            second = await stage.initialized()
            assert second == (first.producer_id, first.epoch + 2)
            assert stage.markers.outcomes() == [("t", 0, False), ("t", 1, False)]
            assert {marked.epoch for marked in stage.markers.written} == {first.epoch + 1}
            assert await stage.ended(first, version=version) == Code.PRODUCER_FENCED

    async def test_a_stale_producer_that_continues_aborts_the_new_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Measured on Apache Kafka: the epoch is checked only when there is no transaction."""
        async with staged(monkeypatch) as stage:
            stale = await stage.initialized()
            owner = await stage.begun(0)
            assert (await stage.init(stale)).error_code == Code.CONCURRENT_TRANSACTIONS
            assert (await stage.until("CompleteAbort")).producer_epoch == owner.epoch + 1
            assert (await stage.init(stale)).error_code == Code.PRODUCER_FENCED


class TestEndTxn:
    """The responses measured on Apache Kafka."""

    @NEW_AND_OLD
    async def test_a_repeated_commit_succeeds(self, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        async with staged(monkeypatch, transaction_version=of(version)) as stage:
            producer = await stage.begun(0, 1, version=4 if version == 5 else 3)
            answer = await stage.end(producer, version=version)
            new = (producer.producer_id, producer.epoch + 1) if version == 5 else (-1, -1)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (Code.NONE, *new)
            assert await stage.ended(producer, version=version) == Code.NONE
            assert stage.markers.outcomes() == [("t", 0, True), ("t", 1, True)]
            assert {marked.transaction_version for marked in stage.markers.written} == {2 if version == 5 else 0}
            described = await stage.until("CompleteCommit")
            assert described.producer_epoch == producer.epoch + (version == 5)
            repeated = await stage.end(producer, version=version)
            assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (Code.NONE, *new)

    @NEW_AND_OLD
    async def test_a_request_during_the_end_is_concurrent(self, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        async with staged(monkeypatch, transaction_version=of(version)) as stage:
            producer = await stage.begun(0, version=4 if version == 5 else 3)
            stage.faults.postpone("WriteTxnMarkers", 60_000)
            assert (await stage.end(producer, version=version)).error_code == Code.NONE
            for _ in range(2):
                answer = await stage.end(producer, version=version)
                assert answer.error_code == Code.CONCURRENT_TRANSACTIONS
            assert (await stage.init()).error_code == Code.CONCURRENT_TRANSACTIONS
            described = await stage.describe()
            assert (described.transaction_state, len(described.topics)) == ("PrepareCommit", 1)
            stage.faults.let_go()
            assert await stage.ended(producer, version=version) == Code.NONE

    @pytest.mark.parametrize(("version", "code"), [(5, Code.PRODUCER_FENCED), (4, Code.PRODUCER_FENCED)])
    async def test_after_the_coordinators_abort_a_commit_is_fenced(
        self, monkeypatch: pytest.MonkeyPatch, version: int, code: Code
    ) -> None:
        """KAFKA-20785 for the new generation, where it was INVALID_TXN_STATE."""
        async with staged(monkeypatch, transaction_version=of(version)) as stage:
            producer = await stage.begun(0, version=4 if version == 5 else 3)
            stage.clock.ms += 60_001
            stage.broker().transactions.abort_timed_out()
            await stage.until("CompleteAbort")
            assert stage.markers.outcomes() == [("t", 0, False)]
            assert await stage.ended(producer, version=version) == code

    @NEW_AND_OLD
    async def test_an_abort_after_a_commit_is_refused(self, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        async with staged(monkeypatch, transaction_version=of(version)) as stage:
            producer = await stage.begun(0, version=4 if version == 5 else 3)
            await stage.ended(producer, version=version)
            await stage.until("CompleteCommit")
            assert await stage.ended(producer, commit=False, version=version) == Code.INVALID_TXN_STATE

    @NEW_AND_OLD
    async def test_a_later_producer_fences_the_repetition_too(
        self, monkeypatch: pytest.MonkeyPatch, version: int
    ) -> None:
        async with staged(monkeypatch, transaction_version=of(version)) as stage:
            producer = await stage.begun(0, version=4 if version == 5 else 3)
            await stage.ended(producer, version=version)
            await stage.initialized()
            assert await stage.ended(producer, version=version) == Code.PRODUCER_FENCED

    @NEW_AND_OLD
    async def test_unknown_ids_are_rejected(self, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        async with staged(monkeypatch) as stage:
            node = await stage.coordinator()
            answer = await stage.end(ProducerIdAndEpoch(5, 0), transactional_id="unknown", version=version)
            assert answer.error_code == Code.INVALID_PRODUCER_ID_MAPPING
            producer = await stage.begun(0)
            other = ProducerIdAndEpoch(producer.producer_id + 1, producer.epoch)
            assert (await stage.end(other, version=version)).error_code == Code.INVALID_PRODUCER_ID_MAPPING
            empty = await stage.end(producer, version=version, transactional_id="", node_id=node)
            assert empty.error_code == Code.INVALID_REQUEST

    @NEW_AND_OLD
    async def test_a_transaction_without_partitions_cannot_be_committed(
        self, monkeypatch: pytest.MonkeyPatch, version: int
    ) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.initialized()
            assert (await stage.end(producer, version=version)).error_code == Code.INVALID_TXN_STATE

    @pytest.mark.parametrize(("first", "then", "code"), [(5, 4, 90), (4, 5, 48)])
    async def test_a_repetition_in_the_other_version_is_refused_though_committed(
        self, monkeypatch: pytest.MonkeyPatch, first: int, then: int, code: int
    ) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            assert await stage.ended(producer, version=first) == Code.NONE
            assert await stage.ended(producer, version=then) == code

    @NEW_AND_OLD
    async def test_an_end_that_is_processed_twice_has_one_outcome(
        self, monkeypatch: pytest.MonkeyPatch, version: int
    ) -> None:
        async with staged(monkeypatch, transaction_version=of(version)) as stage:
            producer = await stage.begun(0, version=4 if version == 5 else 3)
            stage.faults.repeat("EndTxn")
            assert (await stage.end(producer, version=version)).error_code in (51, 0)
            assert await stage.ended(producer, version=version) == Code.NONE
            assert stage.markers.outcomes() == [("t", 0, True)]

    async def test_a_rollover_is_answered_with_the_next_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """KAFKA-18660; measured: retries with the old producer give NONE, also after the death of the broker."""
        async with staged(monkeypatch) as stage:
            first = await stage.initialized()
            transaction = stage.transaction()
            object.__setattr__(transaction.metadata, "producer_epoch", 32766)
            exhausted = ProducerIdAndEpoch(first.producer_id, 32766)
            assert await stage.add(exhausted, 0, version=4) == Code.NONE
            answer = await stage.end(exhausted)
            assert (answer.error_code, answer.producer_epoch) == (Code.NONE, 0)
            assert answer.producer_id > exhausted.producer_id
            assert await stage.ended(exhausted) == Code.NONE
            assert {marked.epoch for marked in stage.markers.written} == {32767}
            await stage.cluster.kill(1)
            await stage.cluster.restart(1)
            assert await stage.ended(exhausted) == Code.NONE
            assert await stage.ended(exhausted, version=4) == Code.INVALID_PRODUCER_ID_MAPPING
            assert await stage.add(ProducerIdAndEpoch(answer.producer_id, 0), 0, version=4) == Code.NONE

    async def test_a_client_that_lost_track_may_abort_without_a_transaction(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.initialized()
            answer = await stage.end(producer, commit=False)
            assert (answer.error_code, answer.producer_epoch) == (Code.NONE, producer.epoch + 1)
            assert (await stage.until("CompleteAbort")).producer_epoch == producer.epoch + 1
            assert stage.markers.written == []


class TestPartitions:
    async def test_one_unknown_partition_fails_its_whole_transaction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.initialized()
            codes = await stage.added(producer, {"t": [0, 3], "none": [0]})
            assert codes == {
                ("t", 0): Code.OPERATION_NOT_ATTEMPTED,
                ("t", 3): Code.UNKNOWN_TOPIC_OR_PARTITION,
                ("none", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
            }
            assert (await stage.describe()).transaction_state == "Empty"

    async def test_a_verification_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            codes = await stage.added(producer, {"t": [0, 1]}, version=5, verify_only=True)
            assert codes == {("t", 0): Code.NONE, ("t", 1): Code.TRANSACTION_ABORTABLE}
            stale = ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1)
            assert await stage.add(stale, 0, version=5, verify_only=True) == Code.PRODUCER_FENCED
            assert await stage.add(producer, 0, version=5, verify_only=True, transactional_id="x") == 49
            answer = await stage.add(producer, 0, version=5, verify_only=True, transactional_id="", node_id=1)
            assert answer == Code.INVALID_REQUEST

    async def test_several_transactions_in_one_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producers = {name: await stage.initialized(transactional_id=name) for name in ("a", "b")}
            transactions = [
                AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
                )
                for name, producer in producers.items()
            ]
            answer = await stage.ask(AddPartitionsToTxnRequest(transactions=transactions), 5)
            assert [result.transactional_id for result in answer.results_by_transaction] == ["a", "b"]
            for name in producers:
                assert (await stage.describe(name)).transaction_state == "Ongoing"

    async def test_offsets_are_a_partition_of_their_topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, offsets__topic__num__partitions=4) as stage:
            producer = await stage.initialized()
            request = AddOffsetsToTxnRequest(
                transactional_id="id", producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="g"
            )
            assert (await stage.ask(request, 4)).error_code == Code.NONE
            [topic] = (await stage.describe()).topics
            assert topic.topic == "__consumer_offsets"
            assert topic.partitions == [stage.broker().groups.shards.partition_for("g")]
            request.producer_epoch -= 1
            assert [(await stage.ask(request, version)).error_code for version in range(5)] == [47, 47, 90, 90, 90]


class TestAddOrVerify:
    """Requests of leaders to coordinators on other nodes."""

    async def ask(
        self, stage: Stage, node_id: int, producer: ProducerIdAndEpoch, *indexes: int, verify_only: bool = False
    ) -> list[int]:
        partitions = [("t", index) for index in indexes]
        transactions = stage.broker(node_id).transactions
        codes = await transactions.add_or_verify("id", *producer, partitions, verify_only=verify_only)
        return [codes[partition] for partition in partitions]

    async def test_partitions_are_added_and_verified_from_every_node(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, 2) as stage:
            producer = await stage.initialized()
            for node_id in (1, 2):
                assert await self.ask(stage, node_id, producer, node_id) == [Code.NONE]
            for node_id in (1, 2):
                answer = await self.ask(stage, node_id, producer, 0, 1, 2, verify_only=True)
                assert answer == [Code.TRANSACTION_ABORTABLE, Code.NONE, Code.NONE]
            assert stage.transaction(await stage.coordinator()).metadata.client_version == 2

    async def test_a_fenced_producer_has_an_invalid_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            stale = await stage.initialized()
            await stage.initialized()
            assert await self.ask(stage, 1, stale, 0) == [Code.INVALID_PRODUCER_EPOCH]
            assert await self.ask(stage, 1, stale, 0, verify_only=True) == [Code.INVALID_PRODUCER_EPOCH]

    async def test_without_a_coordinator_the_code_is_coordinator_not_available(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with staged(monkeypatch) as stage:
            assert await self.ask(stage, 1, ProducerIdAndEpoch(1, 0), 0) == [Code.COORDINATOR_NOT_AVAILABLE]

    async def test_a_lost_connection_is_a_network_exception(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.initialized()
            stage.faults.disconnect("AddPartitionsToTxn", "after")
            assert await self.ask(stage, 1, producer, 0) == [Code.NETWORK_EXCEPTION]
            assert await self.ask(stage, 1, producer, 0, verify_only=True) == [Code.NONE]

    @pytest.mark.parametrize("verify_only", [True, False])
    async def test_the_end_of_the_previous_transaction_is_not_awaited(
        self, monkeypatch: pytest.MonkeyPatch, verify_only: bool
    ) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.begun(0)
            stage.faults.postpone("WriteTxnMarkers", 60_000)
            answer = await stage.end(producer)
            following = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
            asked = await self.ask(stage, 1, following, 0, verify_only=verify_only)
            assert asked == [Code.CONCURRENT_TRANSACTIONS]

    async def test_the_older_of_two_requests_about_one_id_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            producer = await stage.initialized()
            newer = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
            stage.faults.postpone("AddPartitionsToTxn", 30)
            asked = []
            for each, index in ((producer, 0), (producer, 1), (producer, 2), (newer, 0), (producer, 1)):
                asked.append(asyncio.ensure_future(self.ask(stage, 1, each, index)))
                await asyncio.sleep(0)
            assert await asyncio.gather(*asked) == [
                [Code.NONE],
                [Code.NETWORK_EXCEPTION],
                [Code.INVALID_PRODUCER_EPOCH],
                [Code.INVALID_PRODUCER_EPOCH],
                [Code.INVALID_PRODUCER_EPOCH],
            ]


class TestDescribing:
    async def test_undescribable_ids_have_their_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, 2) as stage:
            node = await stage.coordinator()
            assert (await stage.describe("", node)).error_code == Code.INVALID_REQUEST
            assert (await stage.describe("unknown", node)).error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
            assert (await stage.describe("unknown", 3 - node)).error_code == Code.NOT_COORDINATOR

    async def test_listed_transactions_pass_all_filters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            ongoing = await stage.begun(0, transactional_id="a-1")
            await stage.initialized(transactional_id="a-2")
            stage.clock.ms = WALL_MS + 1000
            await stage.begun(1, transactional_id="b-1")

            async def listed(version: int = 2, **filters: object) -> set[str]:
                response = await stage.ask(ListTransactionsRequest(**filters), version)  # type: ignore[arg-type]  # by name
                assert response.error_code == Code.NONE
                return {state.transactional_id for state in response.transaction_states}

            assert await listed(0) == {"a-1", "a-2", "b-1"}
            assert await listed(0, state_filters=["Ongoing"]) == {"a-1", "b-1"}
            assert await listed(0, state_filters=["ongoing"]) == set()
            assert await listed(0, producer_id_filters=[ongoing.producer_id]) == {"a-1"}
            assert await listed(1, duration_filter=999, state_filters=["Ongoing"]) == {"a-1"}
            assert await listed(1, duration_filter=1000, state_filters=["Ongoing"]) == set()
            assert await listed(2, transactional_id_pattern="a-.") == {"a-1", "a-2"}
            assert await listed(2, transactional_id_pattern="a") == set()
            assert await listed(2, transactional_id_pattern="") == {"a-1", "a-2", "b-1"}

    async def test_unknown_states_are_returned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            await stage.initialized()
            response = await stage.ask(ListTransactionsRequest(state_filters=["Empty", "Gone", "Gone"]), 0)
            assert response.unknown_state_filters == ["Gone"]
            assert [state.transaction_state for state in response.transaction_states] == ["Empty"]

    async def test_an_invalid_pattern_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch) as stage:
            response = await stage.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
            assert response.error_code == 128


class TestTime:
    async def test_expired_ids_are_deleted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with staged(monkeypatch, transactional__id__expiration__ms=1000) as stage:
            await stage.initialized()
            producer = await stage.begun(0, transactional_id="busy", timeout_ms=900_000)
            transactions = stage.broker().transactions
            stage.clock.ms += 999
            transactions.expire()
            assert (await stage.describe()).error_code == Code.NONE
            stage.clock.ms += 1
            transactions.expire()
            assert (await stage.describe()).error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
            assert (await stage.describe("busy")).producer_id == producer.producer_id
            await stage.cluster.kill(1)
            await stage.cluster.restart(1)
            assert (await stage.describe()).error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
            assert (await stage.describe("busy")).transaction_state == "Ongoing"

    async def test_timed_out_transactions_are_searched_for_periodically(self, monkeypatch: pytest.MonkeyPatch) -> None:
        interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 5}
        async with staged(monkeypatch, **interval) as stage:
            producer = await stage.begun(0)
            stage.clock.ms += 60_001
            assert (await stage.until("CompleteAbort")).producer_epoch > producer.epoch


SERVED: list[tuple[ApiKey, Request[Response]]] = [
    (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=1)),
    (ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1)),
    (ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest()),
    (ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest(transactional_id="x")),
    (ApiKey.END_TXN, EndTxnRequest(transactional_id="x")),
    (ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest()),
    (ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(transactional_ids=["x"])),
    (ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest()),
]


@pytest.mark.parametrize(("api_key", "request_"), SERVED, ids=[key.name for key, _ in SERVED])
async def test_every_version_of_kafka_is_served(
    monkeypatch: pytest.MonkeyPatch, api_key: ApiKey, request_: Request[Response]
) -> None:
    async with staged(monkeypatch) as stage:
        await stage.coordinator()
        versions = stage.broker().requests.handlers[api_key].versions
        assert versions == APIS[api_key].versions
        for version in versions:
            if api_key is ApiKey.FIND_COORDINATOR and version == 0:
                # Key types come with version 1.
                continue
            assert isinstance(await stage.ask(request_, version), request_.response_class())
