"""Incremental fetch sessions (KIP-227), without a broker around them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.handlers.fetch_session import (
    EVICTION_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchContext,
    FetchSessionCache,
    WantedPartition,
    next_epoch,
)
from aioproducer.broker.image import TopicState
from aioproducer.errors import (
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
    error_class,
)
from aioproducer.protocol.messages import FetchRequest, FetchResponse
from aioproducer.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

ID = bytes(range(16))
Names = dict[bytes, TopicState]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def cache_of(slots: int) -> tuple[FetchSessionCache, Clock]:
    clock = Clock()
    return FetchSessionCache(slots, clock), clock


def request(
    session_id: int = 0,
    session_epoch: int = INITIAL_EPOCH,
    offsets: dict[int, int] | None = None,
    forgotten: Sequence[int] = (),
    topic: str = "t",
    topic_id: bytes = bytes(16),
) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=100)
        for index, offset in (offsets or {}).items()
    ]
    return FetchRequest(
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forgotten))]
        if forgotten
        else [],
    )


def context_of(
    cache: FetchSessionCache, asked: FetchRequest, version: int = 12, names: Names | None = None
) -> FetchContext:
    return cache.context(version, asked, names or {}, is_follower=False)


def data(index: int, high_watermark: int = 0, records: bytes = b"", error_code: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=error_code,
        high_watermark=high_watermark,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )


def answer(context: FetchContext, **answers: PartitionData) -> FetchResponse:
    """Return the response to the given results of ``p0``, ``p1``, ...; the others are unchanged."""
    results: list[tuple[WantedPartition, PartitionData]] = []
    for partition in context.wanted():
        index = partition.request.partition
        results.append((partition, answers.get(f"p{index}", data(index))))
    return context.response(results)


def answered(response: FetchResponse) -> list[int]:
    return [partition.partition_index for topic in response.responses for partition in topic.partitions]


def offsets(context: FetchContext) -> dict[int, int]:
    return {wanted.request.partition: wanted.request.fetch_offset for wanted in context.wanted()}


def open_session(cache: FetchSessionCache, *indexes: int) -> int:
    return answer(context_of(cache, request(offsets=dict.fromkeys(indexes, 0)))).session_id


def test_epochs_rise_and_begin_again_at_one() -> None:
    assert [next_epoch(epoch) for epoch in (FINAL_EPOCH, INITIAL_EPOCH, 1, 2**31 - 1)] == [FINAL_EPOCH, 1, 2, 1]


def test_a_request_without_session_is_answered_in_full_and_not_kept() -> None:
    cache, _ = cache_of(10)
    response = answer(context_of(cache, request(session_epoch=FINAL_EPOCH, offsets={0: 5, 1: 6})))
    assert (response.session_id, answered(response), len(cache)) == (0, [0, 1], 0)


def test_a_session_reads_all_its_partitions_and_returns_changed_ones() -> None:
    cache, _ = cache_of(10)
    session_id = open_session(cache, 0, 1, 2)
    assert session_id > 0
    assert cache.partition_count == 3
    context = context_of(cache, request(session_id, 1, {1: 7}))
    assert offsets(context) == {0: 0, 1: 7, 2: 0}
    response = answer(context, p1=data(1, 9, b"x"))
    assert (response.session_id, response.error_code, answered(response)) == (session_id, 0, [1])
    # A partition that returned records is read last from now on, and is sent only once.
    context = context_of(cache, request(session_id, 2))
    assert list(offsets(context)) == [0, 2, 1]
    assert answered(answer(context, p1=data(1, 9))) == []
    # High watermark and log start offset are changes too.
    moved = data(2, 0)
    moved.log_start_offset = 3
    response = answer(context_of(cache, request(session_id, 3)), p0=data(0, 4), p1=data(1, 9), p2=moved)
    assert answered(response) == [0, 2]


def test_an_error_is_returned_each_time_and_its_end_too() -> None:
    cache, _ = cache_of(10)
    session_id = open_session(cache, 0)
    for epoch, received in ((1, True), (2, True)):
        response = answer(context_of(cache, request(session_id, epoch)), p0=data(0, -1, error_code=6))
        assert bool(answered(response)) is received
    assert answered(answer(context_of(cache, request(session_id, 3)))) == [0]
    assert answered(answer(context_of(cache, request(session_id, 4)))) == []


def test_divergence_and_preferred_replica_are_changes() -> None:
    cache, _ = cache_of(10)
    session_id = open_session(cache, 0, 1)
    diverging, elsewhere = data(0), data(1)
    diverging.diverging_epoch = EpochEndOffset(epoch=1, end_offset=5)
    elsewhere.preferred_read_replica = 3
    response = answer(context_of(cache, request(session_id, 1)), p0=diverging, p1=elsewhere)
    assert answered(response) == [0, 1]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_partition_is_returned_once_more_after_a_divergence(is_first: bool) -> None:
    """A follower that truncates cannot use the high watermark yet, and did not receive it before the next record."""
    cache, _ = cache_of(10)
    diverging = data(0, 3)
    diverging.diverging_epoch = EpochEndOffset(epoch=1, end_offset=5)
    if is_first:
        session_id, epoch = answer(context_of(cache, request(offsets={0: 0})), p0=diverging).session_id, 1
    else:
        session_id, epoch = open_session(cache, 0), 2
        answer(context_of(cache, request(session_id, 1)), p0=diverging)
    after = [answer(context_of(cache, request(session_id, epoch + each)), p0=data(0, 3)) for each in range(2)]
    assert [answered(response) for response in after] == [[0], []]


def test_forgotten_partitions_are_not_read_and_an_empty_session_ends() -> None:
    cache, _ = cache_of(10)
    session_id = open_session(cache, 0, 1)
    context = context_of(cache, request(session_id, 1, {2: 4}, forgotten=[0, 5]))
    assert offsets(context) == {1: 0, 2: 4}
    answer(context)
    response = answer(context_of(cache, request(session_id, 2, forgotten=[1, 2])))
    assert (response.session_id, answered(response), len(cache)) == (0, [], 0)
    with pytest.raises(FetchSessionIdNotFoundError):
        context_of(cache, request(session_id, 3))


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_full_request_ends_the_session_in_it(epoch: int) -> None:
    cache, _ = cache_of(10)
    session_id = open_session(cache, 0)
    answer(context_of(cache, request(session_id, epoch, {0: 1})))
    with pytest.raises(FetchSessionIdNotFoundError):
        context_of(cache, request(session_id, 1))


def test_a_missed_or_repeated_request_is_detected() -> None:
    cache, _ = cache_of(10)
    session_id = open_session(cache, 0)
    for epoch in (2, 7):
        with pytest.raises(InvalidFetchSessionEpochError):
            context_of(cache, request(session_id, epoch))
    slow = context_of(cache, request(session_id, 1))
    with pytest.raises(InvalidFetchSessionEpochError):
        context_of(cache, request(session_id, 1))
    answer(context_of(cache, request(session_id, 2)))
    late = answer(slow, p0=data(0, 5, b"x"))
    assert (late.error_code, late.session_id, late.responses) == (InvalidFetchSessionEpochError.code, session_id, [])


def test_names_and_ids_are_not_mixed_in_a_session() -> None:
    cache, _ = cache_of(10)
    session_id = open_session(cache, 0)
    with pytest.raises(FetchSessionTopicIdError):
        context_of(cache, request(session_id, 1), version=13)
    assert error_class(FetchSessionTopicIdError.code) is FetchSessionTopicIdError


def test_an_unknown_id_is_looked_up_again_and_its_name_then_kept() -> None:
    cache, _ = cache_of(10)
    first = context_of(cache, request(offsets={0: 0}, topic_id=ID), version=13)
    assert [wanted.topic for wanted in first.wanted()] == [None]
    session_id = answer(first).session_id
    names = {ID: TopicState("t", ID, [], {})}
    context = context_of(cache, request(session_id, 1), 13, names)
    assert [wanted.topic for wanted in context.wanted()] == ["t"]
    response = answer(context, p0=data(0, 4))
    assert [(topic.topic, topic.topic_id) for topic in response.responses] == [("t", ID)]
    assert [wanted.topic for wanted in context_of(cache, request(session_id, 2), 13).wanted()] == ["t"]


def test_a_repeated_partition_counts_once_with_its_last_offset() -> None:
    cache, _ = cache_of(10)
    asked = request(offsets={0: 1})
    asked.topics += request(offsets={0: 2}).topics
    assert offsets(context_of(cache, asked)) == {0: 2}


def test_new_sessions_are_not_replaced() -> None:
    cache, _ = cache_of(1)
    assert open_session(cache, 0) > 0
    assert open_session(cache, 0, 1) == 0
    assert len(cache) == 1
    none, _ = cache_of(0)
    assert open_session(none, 0) == 0


def test_a_session_that_was_unused_for_long_is_replaced() -> None:
    cache, clock = cache_of(2)
    old, used = open_session(cache, 0, 1, 2), open_session(cache, 0, 1, 2)
    clock.now += EVICTION_MS
    answer(context_of(cache, request(used, 1)))
    clock.now += 1
    assert open_session(cache, 0) > 0
    with pytest.raises(FetchSessionIdNotFoundError):
        context_of(cache, request(old, 1))
    context_of(cache, request(used, 2))


def test_the_smallest_old_session_is_replaced_by_a_larger_one() -> None:
    cache, clock = cache_of(2)
    small, large = open_session(cache, 0), open_session(cache, 0, 1, 2)
    clock.now += EVICTION_MS + 1
    for session_id in (small, large):
        answer(context_of(cache, request(session_id, 1)))
    assert open_session(cache, 0, 1) > 0
    with pytest.raises(FetchSessionIdNotFoundError):
        context_of(cache, request(small, 2))
    # The remaining ones are as large or larger, or too new.
    assert open_session(cache, 0) == 0


def test_a_follower_replaces_even_a_new_session_of_a_consumer() -> None:
    cache, _ = cache_of(1)
    consumer = open_session(cache, 0, 1)
    follower = answer(cache.context(12, request(offsets={0: 0}), {}, is_follower=True)).session_id
    assert follower > 0
    with pytest.raises(FetchSessionIdNotFoundError):
        context_of(cache, request(consumer, 1))
    # One follower does not displace another.
    assert answer(cache.context(12, request(offsets={0: 0}), {}, is_follower=True)).session_id == 0


# Partitions as bits: those added to the session, those removed, those that change; and the new values.
STEPS = st.lists(
    st.tuples(st.integers(1, 31), st.integers(0, 31), st.integers(0, 31), st.sampled_from([0, 1, 2, 3, -6])),
    min_size=1,
    max_size=8,
)


def members(bits: int) -> set[int]:
    return {index for index in range(5) if bits >> index & 1}


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_a_session_yields_the_same_state_as_full_responses(steps: list[tuple[int, int, int, int]]) -> None:
    """Leaving unchanged partitions out of responses loses no change between any requests."""
    cache, _ = cache_of(10)
    truth = dict.fromkeys(range(5), (0, 0))
    wanted: set[int] = set()
    known: dict[int, tuple[int, int]] = {}
    session_id = 0
    for epoch, (added, forgotten, moving, value) in enumerate(steps):
        gone = (members(forgotten) & wanted) - members(added)
        wanted = (wanted | members(added)) - gone
        for index in members(moving):
            truth[index] = (value, 0) if value >= 0 else (-1, -value)
        answers = {f"p{index}": data(index, hw, error_code=code) for index, (hw, code) in truth.items()}
        asked = request(session_id, epoch, dict.fromkeys(members(added), 0), sorted(gone))
        response = answer(context_of(cache, asked), **answers)
        session_id = response.session_id
        for topic in response.responses:
            for part in topic.partitions:
                known[part.partition_index] = (part.high_watermark, part.error_code)
        for index in gone:
            known.pop(index, None)
        assert known == {index: truth[index] for index in wanted}
