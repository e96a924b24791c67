"""Request slots: the choice between data and internal requests, and among internal requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.requests.slots import InternalQueue, RequestSlots


def test_internal_requests_and_data_alternate_while_both_wait() -> None:
    slots = RequestSlots()
    order = []
    for _ in range(6):
        if slots.is_for_internal(data_waits=True):
            slots.internal_sent()
            order.append("internal")
        else:
            slots.data_sent()
            order.append("data")
    assert order == ["internal", "data"] * 3


def test_internal_requests_take_every_slot_without_waiting_data() -> None:
    slots = RequestSlots()
    slots.internal_sent()
    assert slots.is_for_internal(data_waits=False)


def test_after_data_without_competition_an_internal_request_gets_the_next_slot() -> None:
    slots = RequestSlots()
    slots.data_sent()
    slots.data_sent()
    assert slots.is_for_internal(data_waits=True)


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_each_kind_gets_at_least_every_second_slot_while_both_wait(waiting: list[tuple[bool, bool]]) -> None:
    slots = RequestSlots()
    before = None
    for internal_waits, data_waits in waiting:
        if internal_waits and slots.is_for_internal(data_waits):
            slots.internal_sent()
            taken = "internal"
        elif data_waits:
            slots.data_sent()
            taken = "data"
        else:
            # An internal request waits only for data.
            assert not internal_waits
            before = None
            continue
        if internal_waits and data_waits:
            assert taken != before
            before = taken
        else:
            before = None


def test_the_kind_that_has_been_due_longest_is_first() -> None:
    queue = InternalQueue()
    assert queue.in_order(["metadata"])[0] == "metadata"
    assert queue.in_order(["producer id", "metadata"])[0] == "metadata"
    queue.sent("metadata")
    assert queue.in_order(["metadata", "producer id"])[0] == "producer id"


def test_a_kind_that_is_due_again_at_once_is_last() -> None:
    """Metadata requests for an unknown topic, without backoff, once kept the producer id request waiting forever."""
    queue = InternalQueue()
    kinds = ["metadata", "producer id"]
    order = []
    for _ in range(4):
        kind = queue.in_order(kinds)[0]
        queue.sent(kind)
        order.append(kind)
    assert order == kinds * 2


def test_a_kind_that_is_no_longer_due_loses_its_position() -> None:
    queue = InternalQueue()
    queue.in_order(["metadata"])
    assert queue.in_order(["producer id"])[0] == "producer id"
    assert queue.in_order(["metadata", "producer id"])[0] == "producer id"
    assert queue.in_order([]) == []
