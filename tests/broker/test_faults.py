"""The faults that a request meets, and their number."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.broker.faults import Fault, Faults, find_api, find_error
from aioproducer.errors import BrokerError, LeaderNotAvailableError, NotLeaderOrFollowerError
from aioproducer.protocol import ApiKey, RequestHeader
from aioproducer.protocol.messages import MetadataRequest, ProduceRequest


def take(faults: Faults, api: ApiKey = ApiKey.PRODUCE, node_id: int = 1) -> Fault | None:
    header = RequestHeader(request_api_key=api, request_api_version=9, correlation_id=1, client_id=None)
    request = ProduceRequest(acks=1, timeout_ms=1) if api == ApiKey.PRODUCE else MetadataRequest()
    return faults.take(node_id, header, request)


def code(error: BrokerError | None) -> int | None:
    return None if error is None else error.code


@pytest.mark.parametrize("api", ["Produce", "PRODUCE", "produce", 0, ApiKey.PRODUCE])
def test_a_request_is_found_by_name_or_number(api: str | int) -> None:
    assert find_api(api) is ApiKey.PRODUCE
    assert find_api("ListOffsets") is find_api("LIST_OFFSETS") is ApiKey.LIST_OFFSETS


def test_an_unknown_request_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"unknown request 'Prodce', did you mean 'Produce'\?"):
        find_api("Prodce")
    with pytest.raises(ValueError, match=r"unknown request 'zzzzzz'$"):
        find_api("zzzzzz")
    with pytest.raises(ValueError, match="999"):
        find_api(999)


@pytest.mark.parametrize(
    "error", [6, "NOT_LEADER_OR_FOLLOWER", NotLeaderOrFollowerError, NotLeaderOrFollowerError("x")]
)
def test_an_error_is_found_by_code_name_or_class(error: str | int | BrokerError | type[BrokerError]) -> None:
    assert find_error(error) == 6


def test_an_unknown_error_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"unknown error 'NOT_LEADER', did you mean 'NOT_LEADER_OR_FOLLOWER'\?"):
        find_error("NOT_LEADER")
    with pytest.raises(ValueError, match="unknown error code 0"):
        find_error(0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda faults: faults.fail("Produce", 6, 0), "times must be positive, not 0"),
        (lambda faults: faults.delay("Produce", -1), "ms must be positive, not -1"),
        (lambda faults: faults.throttle("Produce", 0), "ms must be positive, not 0"),
        (lambda faults: faults.disconnect("Produce", "never"), "must be one of before, after, half"),
        (lambda faults: faults.fail("Heartbeat", 16, topic="t"), "Heartbeat cannot fail for a single topic"),
        (lambda faults: faults.fail("Produce", 6, partition=3), "partition 3 is given without a topic"),
    ],
)
def test_impossible_faults_are_refused(call: object, text: str) -> None:
    faults = Faults()
    assert callable(call)
    with pytest.raises(ValueError, match=text):
        call(faults)
    assert faults.unmet() == []


def test_an_error_applies_to_its_number_of_requests_and_all_their_partitions() -> None:
    faults = Faults()
    faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", 2)
    for _ in range(2):
        fault = take(faults)
        assert fault is not None
        assert [code(fault.error_for("t", index)) for index in range(3)] == [6, 6, 6]
    assert take(faults) is None
    assert faults.met("Produce") == 2
    assert faults.unmet() == []


def test_an_error_of_a_partition_waits_for_a_request_that_has_it() -> None:
    faults = Faults()
    faults.fail("Produce", 6, topic="t", partition=1)
    fault = take(faults)
    assert fault is not None
    assert fault.has_errors
    assert fault.error_for("t", 0) is fault.error_for("other", 1) is fault.error_for() is None
    assert len(faults.unmet()) == 1
    fault = take(faults)
    assert fault is not None
    assert code(fault.error_for("t", 1)) == 6
    assert faults.unmet() == []


def test_two_requests_at_once_do_not_share_one_error() -> None:
    faults = Faults()
    faults.fail("Produce", 6)
    first, second = take(faults), take(faults)
    assert first is not None
    assert second is not None
    assert code(second.error_for("t", 0)) == 6
    assert first.error_for("t", 0) is None


def test_an_error_without_a_number_applies_to_all_requests() -> None:
    faults = Faults()
    rule = faults.fail("Produce", 6, None)
    for _ in range(5):
        fault = take(faults)
        assert fault is not None
        assert fault.error_for("t", 0) is not None
    assert rule.used == 5
    assert faults.unmet() == []


def test_a_fault_applies_only_to_its_node_and_request() -> None:
    faults = Faults()
    faults.fail("Metadata", LeaderNotAvailableError, node=2)
    assert take(faults, ApiKey.PRODUCE, 2) is None
    assert take(faults, ApiKey.METADATA, 1) is None
    assert take(faults, ApiKey.METADATA, 2) is not None


def test_delay_disconnection_and_throttling_can_be_combined() -> None:
    faults = Faults()
    faults.delay("Produce", 30)
    faults.delay("Produce", 12, 2)
    faults.disconnect("Produce", "half")
    faults.throttle("Produce", 700)
    fault = take(faults)
    assert fault is not None
    assert (fault.delay_ms, fault.disconnect, fault.throttle_ms, fault.has_errors) == (42, "half", 700, False)
    fault = take(faults)
    assert fault is not None
    assert (fault.delay_ms, fault.disconnect, fault.throttle_ms) == (12, None, 0)
    assert take(faults) is None
    assert faults.met() == 5


def test_cleared_faults_do_not_apply_even_to_a_request_in_progress() -> None:
    faults = Faults()
    faults.fail("Produce", 6, None)
    fault = take(faults)
    assert fault is not None
    faults.clear()
    assert fault.error_for("t", 0) is None
    assert take(faults) is None
    assert faults.met() == 0


def test_a_rule_is_described_by_its_text() -> None:
    faults = Faults()
    assert (
        str(faults.fail("Produce", 6, 2, topic="t", partition=1, node=3))
        == "Produce of t-1 at node 3: NOT_LEADER_OR_FOLLOWER, 2 more times, met 0 times"
    )
    assert str(faults.delay("ListOffsets", 5, None)) == "ListOffsets: delay of 5 ms, always, met 0 times"
    assert str(faults.disconnect("Fetch", "after")) == "Fetch: disconnect after, 1 more times, met 0 times"
    assert str(faults.throttle("Fetch", 9)) == "Fetch: throttle of 9 ms, 1 more times, met 0 times"
    assert str(faults.postpone("EndTxn", 9)) == "EndTxn: postponed by 9 ms, 1 more times, met 0 times"
    assert str(faults.repeat("EndTxn", node=2)) == "EndTxn at node 2: done twice, 1 more times, met 0 times"


def test_a_request_is_postponed_and_repeated() -> None:
    faults = Faults()
    faults.postpone("Produce", 5)
    faults.postpone("Produce", 6)
    faults.repeat("Produce")
    fault = take(faults)
    assert fault is not None
    assert (fault.postpone_ms, fault.is_repeated, fault.delay_ms) == (11, True, 0)
    assert take(faults) is None


async def test_held_requests_go_on_in_the_order_in_which_they_were_held() -> None:
    """They were in a set, whose order is that of addresses: a simulation could not be replayed."""
    faults, released = Faults(), []

    async def hold(number: int) -> None:
        await faults.hold(60_000)
        released.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(hold(number))
        await asyncio.sleep(0)
        faults.let_go()
    assert released == list(range(50))
