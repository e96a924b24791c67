"""Admin calls about transactions: their messages, filters, retries and errors, against scripted brokers."""

from __future__ import annotations

import pytest

from aioproducer.admin import NoSuchTopicError, ProducerDescription, ProducerIdentity, TransactionListing
from aioproducer.core.metadata.cluster import NO_LEADER
from aioproducer.core.transactions.requests import CoordinatorType
from aioproducer.errors import (
    ConnectionFailedError,
    InvalidProducerEpochError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
    error_class,
)
from aioproducer.io.coordinators import find_coordinators
from aioproducer.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    described_transactions,
    listed_transactions,
    transactions,
)
from aioproducer.protocol.messages.groups import Coordinator
from aioproducer.record import TopicPartition
from tests.scripted_brokers import ScriptedBrokers, admin_of, in_turn

NOT_LEADER, LOADING, NOT_COORDINATOR = 6, 14, 16
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS, UNAUTHORIZED_ID = 47, 48, 51, 53
PRODUCER_FENCED, ID_NOT_FOUND, INVALID_REGEX = 90, 105, 128


@pytest.fixture
def client():
    return ScriptedBrokers(CoordinatorType.TRANSACTION)


@pytest.fixture
def admin(client):
    return admin_of(client)


def listing(*ids, **fields):
    states = [
        listed_transactions.TransactionState(transactional_id=each, producer_id=7, transaction_state="Ongoing")
        for each in ids
    ]
    return ListTransactionsResponse(transaction_states=states, **fields)


async def test_every_broker_lists_and_the_filters_go_to_each(admin, client):
    client.handlers[ListTransactionsRequest] = lambda request, node_id: listing(f"id-{3 - node_id}")
    found = await admin.list_transactions(states=["Ongoing"], producer_ids=[7], duration_ms=5, pattern="id-.")
    assert found == [TransactionListing("id-1", 7, "Ongoing", 2), TransactionListing("id-2", 7, "Ongoing", 1)]
    assert sorted(node_id for _, node_id, _ in client.requests) == [1, 2]
    for request, _, _ in client.requests:
        assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [7])
        assert (request.duration_filter, request.transactional_id_pattern) == (5, "id-.")


async def test_without_filters_everything_is_listed(admin, client):
    client.handlers[ListTransactionsRequest] = in_turn(listing())
    assert await admin.list_transactions() == []
    request = client.requests[0][0]
    assert (request.state_filters, request.producer_id_filters) == ([], [])
    assert (request.duration_filter, request.transactional_id_pattern) == (-1, None)


@pytest.mark.parametrize("highest", [0, 1])
async def test_the_pattern_is_applied_by_the_client_if_brokers_do_not_know_it(admin, client, highest):
    client.highest[ListTransactionsRequest] = highest
    client.handlers[ListTransactionsRequest] = in_turn(listing("a-1", "a-12", "xa-1"))
    found = await admin.list_transactions(pattern=r"a-\d")
    assert [each.transactional_id for each in found] == ["a-1", "a-1"]
    assert {request.transactional_id_pattern for request, _, _ in client.requests} == {None}


async def test_brokers_that_do_not_support_the_duration_receive_no_request(admin, client):
    client.highest[ListTransactionsRequest] = 0
    with pytest.raises(UnsupportedVersionError):
        await admin.list_transactions(duration_ms=5)
    assert client.requests == []


async def test_only_the_request_to_a_loading_coordinator_is_repeated(admin, client):
    loading = [ListTransactionsResponse(error_code=LOADING)]
    client.handlers[ListTransactionsRequest] = lambda request, node_id: (
        loading.pop() if node_id == 1 and loading else listing(f"id-{node_id}")
    )
    assert len(await admin.list_transactions()) == 2
    assert sorted(node_id for _, node_id, _ in client.requests) == [1, 1, 2]


async def test_wrong_filters_are_value_errors(admin, client):
    with pytest.raises(ValueError, match="pattern is not a regular expression"):
        await admin.list_transactions(pattern="(")
    with pytest.raises(TypeError, match=r"pass \['Ongoing'\]"):
        await admin.list_transactions(states="Ongoing")
    client.handlers[ListTransactionsRequest] = in_turn(ListTransactionsResponse(unknown_state_filters=["Foo"]))
    with pytest.raises(ValueError, match="no state 'Foo': use Empty, Ongoing"):
        await admin.list_transactions(states=["Foo"])
    client.handlers[ListTransactionsRequest] = in_turn(ListTransactionsResponse(error_code=INVALID_REGEX))
    with pytest.raises(ValueError, match="reject the pattern"):
        await admin.list_transactions(pattern="(?=a)b")


def description(transactional_id, **fields):
    topics = [described_transactions.TopicData(topic="a", partitions=[0, 1])]
    fields = {"transaction_start_time_ms": -1, "topics": topics, **fields}
    return described_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        producer_id=7,
        producer_epoch=3,
        **fields,
    )


async def test_ids_are_described_by_their_coordinators_in_the_order_asked_for(admin, client):
    def describe(request, node_id):
        return DescribeTransactionsResponse(
            transaction_states=[description(each) for each in request.transactional_ids]
        )

    client.handlers[DescribeTransactionsRequest] = describe
    found = await admin.describe_transactions(["id-3", "id-2", "id-1"])
    assert [(each.transactional_id, each.coordinator) for each in found] == [("id-3", 2), ("id-2", 1), ("id-1", 2)]
    assert found[0].topic_partitions == {TopicPartition("a", 0), TopicPartition("a", 1)}
    assert (found[0].start_time_ms, found[0].timeout_ms) == (None, 60_000)
    assert len(client.sent(FindCoordinatorRequest)) == 1
    assert sorted(request.transactional_ids for request, _, _ in client.sent(DescribeTransactionsRequest)) == [
        ["id-2"],
        ["id-3", "id-1"],
    ]
    assert await admin.describe_transactions([]) == []


async def test_a_coordinator_that_moved_is_found_again(admin, client):
    def describe(request, node_id):
        client.coordinators["id-1"] = 1
        code = NOT_COORDINATOR if node_id == 2 else 0
        return DescribeTransactionsResponse(transaction_states=[description("id-1", error_code=code)])

    client.handlers[DescribeTransactionsRequest] = describe
    (found,) = await admin.describe_transactions(["id-1"])
    assert found.coordinator == 1
    assert len(client.sent(FindCoordinatorRequest)) == 2


async def test_an_unknown_id_is_named(admin, client):
    client.handlers[DescribeTransactionsRequest] = in_turn(
        DescribeTransactionsResponse(
            transaction_states=[description("id-2"), description("id-4", error_code=ID_NOT_FOUND)]
        )
    )
    with pytest.raises(
        error_class(ID_NOT_FOUND), match=r"'id-4': .* check the spelling.* \[TRANSACTIONAL_ID_NOT_FOUND"
    ):
        await admin.describe_transactions(["id-2", "id-4"])


async def test_old_brokers_find_coordinators_one_by_one(client):
    client.highest[FindCoordinatorRequest] = 3
    found = await find_coordinators(client, CoordinatorType.TRANSACTION, ["id-1", "id-2"], 1)
    assert found == {"id-1": 2, "id-2": 1}
    assert [(request.key, highest) for request, _, highest in client.requests] == [("id-1", 3), ("id-2", 3)]


async def test_the_error_of_a_lookup_names_the_id(client):
    client.handlers[FindCoordinatorRequest] = in_turn(
        FindCoordinatorResponse(
            coordinators=[
                Coordinator(key="id-1", error_code=LOADING + 1),
                Coordinator(key="id-2", error_code=UNAUTHORIZED_ID),
            ]
        )
    )
    with pytest.raises(TransactionalIdAuthorizationError, match="transactional id 'id-2'"):
        await find_coordinators(client, CoordinatorType.TRANSACTION, ["id-1", "id-2"], 1)


def producers_of(topic, partition, *producers, **fields):
    return transactions.TopicResponse(
        name=topic,
        partitions=[
            transactions.PartitionResponse(partition_index=partition, active_producers=list(producers), **fields)
        ],
    )


async def test_producers_are_described_by_the_leaders_of_their_partitions(admin, client):
    states = [
        transactions.ProducerState(
            producer_id=each,
            producer_epoch=1,
            last_sequence=4,
            last_timestamp=99,
            coordinator_epoch=2,
            current_txn_start_offset=offset,
        )
        for each, offset in ((9, -1), (7, 5))
    ]
    client.handlers[DescribeProducersRequest] = lambda request, node_id: DescribeProducersResponse(
        topics=[producers_of("a", node_id - 1, *(states if node_id == 1 else ()))]
    )
    found = await admin.describe_producers([("a", 1), ("a", 0)])
    assert list(found) == [TopicPartition("a", 1), TopicPartition("a", 0)]
    assert found[TopicPartition("a", 1)] == ()
    assert found[TopicPartition("a", 0)] == (
        ProducerDescription(7, 1, 4, 99, 2, 5),
        ProducerDescription(9, 1, 4, 99, 2, None),
    )
    with pytest.raises(NoSuchTopicError, match="Topic a has no partition 2"):
        await admin.describe_producers([("a", 2)])


async def test_a_leader_that_moved_is_found_again(admin, client):
    client.leaders["a", 0] = NO_LEADER

    async def renew(timeout):
        client.renewals += 1
        client.leaders["a", 0] = client.renewals

    client.renew_metadata = renew
    client.handlers[DescribeProducersRequest] = lambda request, node_id: DescribeProducersResponse(
        topics=[producers_of("a", 0, error_code=NOT_LEADER if node_id == 1 else 0)]
    )
    assert await admin.describe_producers([("a", 0)]) == {TopicPartition("a", 0): ()}
    assert client.renewals == 2


def markers(code):
    result = transactions.WritableTxnMarkerPartitionResult(partition_index=1, error_code=code)
    topic = transactions.WritableTxnMarkerTopicResult(name="a", partitions=[result])
    return WriteTxnMarkersResponse(markers=[transactions.WritableTxnMarkerResult(producer_id=7, topics=[topic])])


async def test_a_marker_of_an_abort_goes_to_the_leader(admin, client):
    client.handlers[WriteTxnMarkersRequest] = in_turn(markers(NOT_LEADER), markers(0))
    await admin.abort_transaction(("a", 1), 7, 3, -1)
    assert [node_id for _, node_id, _ in client.requests] == [2, 2]
    (marker,) = client.requests[0][0].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 0)
    assert (marker.transaction_result, marker.transaction_version) == (False, 0)
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("a", [1])]


async def test_a_rejected_marker_says_what_to_do(admin, client):
    client.handlers[WriteTxnMarkersRequest] = in_turn(markers(INVALID_PRODUCER_EPOCH))
    with pytest.raises(InvalidProducerEpochError, match=r"producer id 7, epoch 3, in a-1: .*describe_producers\(\)"):
        await admin.abort_transaction(("a", 1), 7, 3, 0)


@pytest.mark.parametrize(("transaction_version", "api_version"), [(1, 4), (2, 5)])
async def test_a_transaction_is_ended_in_one_version_until_it_has_ended(
    admin, client, transaction_version, api_version
):
    outcomes = [
        ConnectionFailedError("gone"),
        EndTxnResponse(error_code=NOT_COORDINATOR),
        EndTxnResponse(error_code=CONCURRENT_TRANSACTIONS),
        EndTxnResponse(producer_id=7, producer_epoch=4) if transaction_version == 2 else EndTxnResponse(),
    ]

    def end(request, node_id):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    client.handlers[EndTxnRequest] = end
    ended = await admin.end_transaction("id-1", 7, 3, commit=True, transaction_version=transaction_version)
    assert ended == (ProducerIdentity(7, 4) if transaction_version == 2 else None)
    assert [version for _, _, version in client.sent(EndTxnRequest)] == [api_version] * 4
    assert len(client.sent(FindCoordinatorRequest)) == 4
    for request, _, _ in client.sent(EndTxnRequest):
        assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("id-1", 7, 3)
        assert request.committed is True


async def test_the_second_generation_is_not_replaced_by_the_first(admin, client):
    client.highest[EndTxnRequest] = 4
    with pytest.raises(UnsupportedVersionError):
        await admin.end_transaction("id-1", 7, 3, commit=True, transaction_version=2)
    assert client.sent(EndTxnRequest) == []
    with pytest.raises(ValueError, match="must be 1 or 2, not 3"):
        await admin.end_transaction("id-1", 7, 3, commit=True, transaction_version=3)


@pytest.mark.parametrize(
    ("code", "text"),
    [(INVALID_TXN_STATE, "ended in another way"), (PRODUCER_FENCED, "has taken over"), (49, "another producer id now")],
)
async def test_no_error_claims_that_the_transaction_was_not_committed(admin, client, code, text):
    client.handlers[EndTxnRequest] = in_turn(EndTxnResponse(error_code=code))
    with pytest.raises(error_class(code), match=f"'id-1', producer id 7, epoch 3: .*{text}.*The log decides"):
        await admin.end_transaction("id-1", 7, 3, commit=True, transaction_version=2)


async def test_the_last_error_is_raised_after_the_timeout(admin, client):
    admin._timeout = 0.05
    client.handlers[EndTxnRequest] = in_turn(EndTxnResponse(error_code=CONCURRENT_TRANSACTIONS))
    with pytest.raises(error_class(CONCURRENT_TRANSACTIONS), match="'id-1'"):
        await admin.end_transaction("id-1", 7, 3, commit=False, transaction_version=2)


async def test_fencing_waits_for_the_end_of_open_transactions(admin, client):
    concurrent = {"id-1"}

    def init(request, node_id):
        assert (request.producer_id, request.producer_epoch) == (-1, -1)
        if request.transactional_id in concurrent:
            concurrent.remove(request.transactional_id)
            return InitProducerIdResponse(error_code=CONCURRENT_TRANSACTIONS)
        return InitProducerIdResponse(producer_id=int(request.transactional_id[-1]), producer_epoch=node_id)

    client.handlers[InitProducerIdRequest] = init
    found = await admin.fence_producers(["id-2", "id-1", "id-2"])
    assert found == {"id-2": ProducerIdentity(2, 1), "id-1": ProducerIdentity(1, 2)}
    assert sorted(request.transactional_id for request, _, _ in client.sent(InitProducerIdRequest)) == [
        "id-1",
        "id-1",
        "id-2",
    ]


async def test_the_ids_that_can_be_fenced_are_fenced(admin, client):
    fenced = []

    def init(request, node_id):
        if request.transactional_id == "id-1":
            return InitProducerIdResponse(error_code=UNAUTHORIZED_ID)
        fenced.append(request.transactional_id)
        return InitProducerIdResponse(producer_id=1, producer_epoch=0)

    client.handlers[InitProducerIdRequest] = init
    with pytest.raises(TransactionalIdAuthorizationError, match="transactional id 'id-1'"):
        await admin.fence_producers(["id-1", "id-2", "id-3"])
    assert sorted(fenced) == ["id-2", "id-3"]
