"""The fetcher: requests within the limits, positions that move with returned records only, and every error."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.fetching.buffer import decompressed, last_position
from aioproducer.core.fetching.memory import RECORD_OVERHEAD, FetchBuffer
from aioproducer.core.fetching.partition import NEXT_STATES, FetchPosition, FetchState
from aioproducer.core.fetching.reset import EARLIEST, LATEST, NONE, OffsetReset, ResetKind
from aioproducer.errors import (
    LogTruncationError,
    NetworkError,
    NoOffsetForPartitionError,
    ProtocolError,
    TopicAuthorizationError,
    UnsupportedVersionError,
    error_class,
)
from aioproducer.protocol.messages.fetch import AbortedTransaction, FetchResponse, PartitionData
from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch
from tests.core.fetching_world import FetchingWorld, batch


def offsets(plan):
    return {each.partition: each.fetch_offset for topic in plan.request.topics for each in topic.partitions}


def refused(code, **options):
    return PartitionData(error_code=code, **options)


# Positions


def test_only_returned_records_move_the_position():
    world = FetchingWorld().start()
    world.fetch((0, batch(0) + batch(5)))
    partition = world.partition()
    assert (partition.position.offset, partition.fetch_position) == (0, FetchPosition(10, 0))
    assert world.read(limit=3) == {0: [0, 1, 2]}
    assert partition.position == FetchPosition(3, 0)
    assert world.read() == {0: [3, 4, 5, 6, 7, 8, 9]}
    assert partition.position == FetchPosition(10, 0)


def test_records_that_are_ready_but_not_taken_do_not_move_the_position():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.read(limit=2)
    batches = world.fetcher.records.next_batches()
    batches.read(1)
    world.fetcher.records.record_ready(batches, batches.raw[0])
    assert world.partition().position.offset == 2
    assert world.fetcher.records.take_one().offset == 2
    assert world.partition().position.offset == 3


def test_records_count_as_processed_when_the_next_are_requested():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.read(limit=2)
    assert world.partition().processed.offset == 0
    world.fetcher.records.mark_processed()
    assert world.partition().processed.offset == 2


@given(st.lists(st.sampled_from(["next", "take", "pause", "fetch"]), max_size=30))
def test_taking_one_by_one_moves_positions_as_taking_many_does(steps):
    world = FetchingWorld(partitions=2).start()
    returned = dict.fromkeys(world.names, 0)
    processed = dict(returned)
    for step in steps:
        if step == "fetch" and (plan := world.plan()) is not None:
            world.answer(plan, [(name.partition, batch(offset, 3)) for name, offset in plan.offsets.items()])
            while (batches := world.fetcher.records.next_batches()) is not None:
                if batches.open_batch() is None:
                    world.fetcher.records.finish(batches)
                    continue
                batches.set_body(decompressed(batches.batch))
                batches.read_ready(100)
                world.fetcher.records.offer(batches.partition)
        elif step == "next":
            processed = dict(returned)
            if (record := world.fetcher.records.next_one()) is not None:
                name = world.names[record.partition]
                assert record.offset == returned[name]
                returned[name] += 1
        elif step == "take":
            processed = dict(returned)
            world.fetcher.records.mark_processed()
            for name, records in world.fetcher.records.take(4).items():
                assert [record.offset for record in records] == list(
                    range(returned[name], returned[name] + len(records))
                )
                returned[name] += len(records)
        elif step == "pause":
            name = world.names[0]
            (world.fetcher.resume if world.fetcher.partitions[name].is_paused else world.fetcher.pause)(name)
        for name in world.names:
            assert world.fetcher.partitions[name].position.offset == returned[name]
            assert world.fetcher.partitions[name].processed.offset == processed[name]


def test_the_position_moves_behind_control_batches_and_what_compaction_removed():
    world = FetchingWorld().start()
    gap = bytearray(batch(1, 2))
    control = encode_control_batch(
        ControlRecordType.COMMIT, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=0, base_offset=3
    )
    world.fetch((0, batch(0, 1) + bytes(gap) + bytes(control)))
    assert world.read() == {0: [0, 1, 2]}
    world.read()
    assert world.partition().position.offset == 4


def test_a_control_batch_at_the_end_counts_as_processed():
    """Commits stayed before the marker, and the group's lag at 1, until a record followed."""
    world = FetchingWorld().start()
    control = encode_control_batch(
        ControlRecordType.COMMIT, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=0, base_offset=3
    )
    world.fetch((0, batch(0, 3) + bytes(control)))
    assert world.read(limit=3) == {0: [0, 1, 2]}
    assert world.partition().processed.offset == 0
    world.fetcher.records.mark_processed()
    assert world.read() == {}
    assert world.partition().processed == world.partition().position == FetchPosition(4, -1)


def test_a_control_batch_behind_records_in_process_counts_with_them():
    world = FetchingWorld().start()
    control = encode_control_batch(
        ControlRecordType.COMMIT, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=0, base_offset=3
    )
    world.fetch((0, batch(0, 3) + bytes(control)))
    assert world.read(limit=3) == {0: [0, 1, 2]}
    assert world.read() == {}
    assert (world.partition().position.offset, world.partition().processed.offset) == (4, 0)
    world.fetcher.records.mark_processed()
    assert world.partition().processed.offset == 4


# Memory of decoded records


def opened(world):
    """The batch whose turn it is, with its body."""
    batches = world.fetcher.records.next_batches()
    batches.open_batch()
    batches.set_body(decompressed(batches.batch))
    return batches


def test_bodies_and_decoded_records_count_until_they_are_returned():
    world = FetchingWorld().start()
    world.fetch((0, batch(0, value=b"v" * 100)))
    memory = world.fetcher.buffer
    batches = opened(world)
    body = memory.decoded
    assert body == len(batch(0, value=b"v" * 100)) - 61
    assert world.fetcher.records.decode(2, 1000)
    two = 2 * body // 5 + 2 * RECORD_OVERHEAD
    assert memory.decoded == body + two
    assert world.fetcher.records.take_one().offset == 0
    assert memory.decoded == body + two
    assert world.fetcher.records.take_one().offset == 1
    assert memory.decoded == body
    assert world.fetcher.records.decode(100, 1000)
    world.fetcher.records.take(100)
    assert batches.open_batch() is None
    assert memory.decoded == 0


@pytest.mark.parametrize("how", ["seek", "unassign", "reset", "new leader"])
def test_dropped_records_count_no_longer(how):
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.read(limit=1)
    batches = world.fetcher.records.next_batches()
    batches.read(2)
    world.fetcher.records.record_ready(batches, batches.raw[0])
    assert world.fetcher.buffer.decoded > 0
    match how:
        case "seek":
            world.fetcher.seek(world.names[0], FetchPosition(3))
        case "unassign":
            world.fetcher.assign((), world.now)
        case "reset":
            world.fetcher.request_reset(world.names[0], LATEST)
        case "new leader":
            world.epochs[0] = 1
            world.update_metadata()
    assert (world.fetcher.buffer.decoded, world.fetcher.buffer.used) == (0, 0)


def test_requests_leave_room_for_what_is_decoded():
    memory = FetchBuffer(1000)
    assert (memory.free, memory.may_decode) == (750, True)
    memory.decoded = 250
    assert (memory.free, memory.may_decode) == (750, False)
    # A batch that is larger than its part.
    memory.decoded = 600
    assert memory.free == 400
    assert not memory.has_room_again
    memory.release_decoded(600)
    assert memory.has_room_again
    assert (memory.free, memory.decoded) == (750, 0)


def test_a_slice_ends_behind_its_bytes():
    world = FetchingWorld().start()
    world.fetch((0, batch(0, value=b"v" * 100)))
    batches = opened(world)
    batches.read(100, 150)
    assert [record.offset for record in batches.raw] == [0, 1]


def test_aborted_transactions_are_left_out_with_read_committed_only():
    def records():
        own = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
        return PartitionData(
            records=memoryview(batch(0, 2, producer_id=1, **own) + batch(2, 2, producer_id=2, **own)),
            aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=0)],
        )

    world = FetchingWorld(isolation_level=1).start()
    world.fetch((0, records()))
    assert world.read() == {0: [2, 3]}
    world = FetchingWorld().start()
    world.fetch((0, records()))
    assert world.read() == {0: [0, 1, 2, 3]}


def _of(producer_id, base_offset, count=2):
    return batch(base_offset, count, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def _marker(producer_id, offset, control_type):
    return bytes(
        encode_control_batch(
            control_type,
            coordinator_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=0,
            base_offset=offset,
        )
    )


LOG = (
    _of(1, 0),
    _of(2, 2),
    batch(4, 1),
    _marker(1, 5, ControlRecordType.ABORT),
    _of(1, 6),
    _of(2, 8, 1),
    _marker(1, 9, ControlRecordType.COMMIT),
    _marker(2, 10, ControlRecordType.ABORT),
    _of(1, 11),
    _marker(1, 13, ControlRecordType.ABORT),
    _of(1, 14),
)


@pytest.mark.parametrize("order", list(permutations([(1, 0), (2, 2), (1, 11)])))
@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_batches_of_aborted_transactions_are_dropped_however_the_broker_lists_them(order, start):
    world = FetchingWorld(isolation_level=1, max_partition_bytes=10_000).start(offset=start)
    aborted = [AbortedTransaction(producer_id=producer_id, first_offset=first) for producer_id, first in order]
    world.fetch((0, PartitionData(records=memoryview(b"".join(LOG)), aborted_transactions=aborted)))
    assert world.read() == {0: [4, 6, 7, 14, 15]}
    assert world.partition().position.offset == 16


# The end of reading


def ended_at(stop, **options):
    world = FetchingWorld(**options).start()
    world.partition().stop = stop
    return world


def test_records_at_the_stop_offset_and_behind_it_are_not_read():
    world = ended_at(7)
    world.fetch((0, batch(0) + batch(5)))
    assert world.read(limit=6) == {0: [0, 1, 2, 3, 4, 5]}
    assert not world.partition().is_finished
    assert world.read() == {0: [6]}
    assert world.read() == {}
    assert world.partition().is_finished
    assert world.plan() is None
    assert (world.fetcher.buffer.used, world.fetcher.buffer.decoded) == (0, 0)


def test_batches_behind_the_stop_offset_are_not_checked():
    torn = bytearray(batch(8))
    torn[-1] ^= 1
    world = ended_at(7)
    # Compaction has removed the records from offset 5 on.
    world.fetch((0, batch(0) + bytes(torn)))
    assert world.read() == {0: [0, 1, 2, 3, 4]}
    assert world.partition().is_finished


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_the_stop_offset_is_reached_where_compaction_left_nothing_before_it(isolation_level):
    world = ended_at(7, isolation_level=isolation_level)
    end = {"last_stable_offset" if isolation_level else "high_watermark": 7}
    world.fetch((0, PartitionData(records=b"", **end)))
    assert world.partition().is_finished
    assert world.plan() is None


def test_the_stop_offset_is_reached_by_a_response_of_a_session_without_news():
    world = ended_at(5)
    world.fetch((0, batch(0, 3)))
    world.fetch()
    assert not world.partition().is_finished
    world.read()
    assert world.partition().is_finished


@pytest.mark.parametrize(
    "data",
    [
        PartitionData(records=b"", high_watermark=6, last_stable_offset=6),
        PartitionData(records=b"", high_watermark=9, last_stable_offset=6),
        PartitionData(error_code=6, high_watermark=9, last_stable_offset=9),
        PartitionData(records=b"", high_watermark=9, last_stable_offset=9, preferred_read_replica=2),
    ],
    ids=["behind", "open transaction", "refused", "another replica"],
)
def test_the_stop_offset_is_not_reached_before_the_node_has_it(data):
    world = ended_at(7, isolation_level=1)
    world.fetch((0, data))
    assert not world.partition().is_finished


def test_the_stop_offset_is_not_reached_by_a_response_that_its_limits_cut_off_or_that_was_throttled():
    world = FetchingWorld(partitions=2).start()
    for each in world.fetcher.partitions.values():
        each.stop = 7
    empty = PartitionData(records=b"", high_watermark=9, last_stable_offset=9)
    world.fetch((0, batch(0)), (1, empty))
    assert not world.partition(1).is_finished
    world.read()
    plan = world.plan()
    world.fetcher.fetch_answered(plan, FetchResponse(session_id=7, throttle_time_ms=10), world.now)
    assert not world.partition(1).is_finished
    world.fetch()
    assert world.partition(1).is_finished


def test_errors_that_are_tried_again_are_kept_until_a_request_succeeds():
    world = FetchingWorld().start()
    partition = world.partition()
    world.fetch((0, refused(56)))
    assert (partition.failure.code, partition.failing_for) == (56, 0.0)
    world.now += 3
    world.fetcher.fetch_failed(world.plan(), NetworkError("gone"), world.now)
    assert (str(partition.failure), partition.failing_for) == ("gone", 3.0)
    world.now += 2
    world.leaders[0], world.epochs[0] = -1, 1
    world.update_metadata()
    assert world.plan() is None
    assert "Partition a-0 has no leader at present" in str(partition.failure)
    assert partition.failing_for == 6.0
    world.leaders[0], world.epochs[0] = 1, 2
    world.update_metadata()
    world.fetch()
    assert (partition.failure, partition.failing_for) == (None, 0.0)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_from_the_middle_of_a_batch(codec):
    world = FetchingWorld().start(offset=3)
    world.fetch((0, batch(0, compression_type=codec)))
    assert world.read() == {0: [3, 4]}


# Requests


def test_a_node_gets_one_request_at_a_time_that_includes_all_its_partitions():
    world = FetchingWorld(partitions=3)
    world.leaders[2] = 2
    world.start()
    assert set(world.fetcher.nodes_to_fetch(world.now)) == {1, 2}
    plan = world.plan()
    assert offsets(plan) == {0: 0, 1: 0}
    assert (plan.request.max_wait_ms, plan.request.min_bytes, plan.highest) == (500, 1, 18)
    assert world.fetcher.nodes_to_fetch(world.now) == [2]
    world.answer(plan)
    assert offsets(world.plan()) == {}
    assert world.fetcher.busy_nodes() == {1}


def test_without_topic_ids_the_last_version_with_names_is_used():
    world = FetchingWorld()
    world.topic_id = bytes(16)
    assert world.start().plan().highest == 12


def test_partitions_with_data_go_to_the_end_of_a_new_session():
    world = FetchingWorld(partitions=3).start()
    world.fetch((0, batch(0)))
    world.read()
    plan = world.plan()
    world.fetcher.fetch_failed(plan, NetworkError("gone"), world.now)
    world.now += 10
    assert list(offsets(world.plan())) == [1, 2, 0]


def test_a_node_waits_while_one_of_its_partitions_has_more_than_half_of_its_share():
    one = batch(0, 1, value=b"v" * 100)
    world = FetchingWorld(partitions=2, max_partition_bytes=4 * len(one)).start()
    world.fetch((0, b"".join(batch(number, 1, value=b"v" * 100) for number in range(4))))
    assert world.plan() is None
    assert world.read(limit=1) == {0: [0]}
    assert world.plan() is None
    assert world.read(limit=1) == {0: [1]}
    plan = world.plan()
    assert offsets(plan) == {0: 4}
    assert plan.request.forgotten_topics_data == []


def test_responses_and_reservations_never_exceed_the_buffer():
    world = FetchingWorld(partitions=3, buffer_bytes=4000, max_partition_bytes=1000)
    world.leaders = {0: 1, 1: 2, 2: 3}
    world.start()
    plans = {node: world.plan(node) for node in (1, 2, 3)}
    assert [plan.reserved for plan in plans.values()] == [1000, 1000, 1000]
    assert world.fetcher.buffer.free == 0
    for node, plan in plans.items():
        world.answer(plan, [(node - 1, batch(0, value=b"v" * 180))])
    assert world.fetcher.buffer.reserved == 0
    assert [world.plan(node) for node in (1, 2, 3)] == [None] * 3
    while world.read(limit=1):
        pass
    assert world.fetcher.buffer.used == 0
    assert world.plan(1) is not None


def test_a_response_counts_until_its_last_partition_is_read():
    world = FetchingWorld(partitions=2).start()
    data = batch(0)
    world.fetch((0, data), (1, data))
    assert world.fetcher.buffer.used == 2 * len(data)
    world.fetcher.pause(world.names[1])
    assert world.read() == {0: [0, 1, 2, 3, 4]}
    assert world.fetcher.buffer.used == 2 * len(data)
    world.fetcher.resume(world.names[1])
    assert world.read() == {1: [0, 1, 2, 3, 4]}
    assert world.fetcher.buffer.used == 0


def test_data_of_paused_partitions_make_room_and_are_fetched_again():
    world = FetchingWorld(partitions=2, buffer_bytes=1100, max_partition_bytes=800).start()
    world.fetch((0, batch(0, value=b"v" * 150)))
    world.fetcher.pause(world.names[0])
    assert world.fetcher.buffer.free < 550
    world.fetch((1, batch(0)))
    assert world.read() == {1: [0, 1, 2, 3, 4]}
    world.fetcher.resume(world.names[0])
    assert world.partition(0).fetch_position.offset == world.partition(0).position.offset == 0


def test_a_response_that_arrives_after_the_data_before_it_were_dropped_is_ignored():
    """A record was once skipped: its partition was paused, with a request for later ones in flight."""
    world = FetchingWorld(partitions=2, buffer_bytes=1100, max_partition_bytes=800)
    world.leaders[1] = 2
    world.start()
    world.fetch((0, batch(0, value=b"v" * 20)))
    plan = world.plan()
    assert offsets(plan) == {0: 5}
    world.fetcher.pause(world.names[0])
    world.fetch((1, batch(0, value=b"v" * 150)), node_id=2)
    assert world.plan(2) is None
    assert world.partition(0).fetch_position.offset == 0
    world.answer(plan, [(0, batch(5))])
    assert not world.partition(0).buffered
    world.fetcher.resume(world.names[0])
    assert world.read() == {1: [0, 1, 2, 3, 4]}
    assert offsets(world.plan()) == {0: 0}


def test_a_batch_larger_than_every_limit_is_read():
    world = FetchingWorld(buffer_bytes=100, max_bytes=100, max_partition_bytes=50).start()
    world.fetch((0, batch(0, value=b"v" * 1000)))
    assert world.fetcher.buffer.used > 100
    assert world.plan() is None
    assert world.read() == {0: [0, 1, 2, 3, 4]}
    assert world.plan() is not None


def test_batches_are_returned_partition_by_partition_in_turn():
    world = FetchingWorld(partitions=2).start()
    world.fetch((0, batch(0, 1) + batch(1, 1) + batch(2, 1)), (1, batch(0, 1)))
    order = []
    while taken := world.read(limit=1):
        order += list(taken.items())
    assert order == [(0, [0]), (1, [0]), (0, [1]), (0, [2])]


# Assignment, seeks and pauses


def test_paused_partitions_are_neither_requested_nor_returned():
    world = FetchingWorld(partitions=2).start()
    world.fetch((0, batch(0)))
    world.fetcher.pause(world.names[0])
    assert world.read() == {}
    plan = world.plan()
    assert [list(topic.partitions) for topic in plan.request.forgotten_topics_data] == [[0]]
    world.fetcher.resume(world.names[0])
    assert world.read() == {0: [0, 1, 2, 3, 4]}


def test_a_response_from_before_a_seek_is_ignored():
    world = FetchingWorld().start()
    plan = world.plan()
    world.fetcher.seek(world.names[0], FetchPosition(50))
    world.answer(plan, [(0, batch(0))])
    assert world.read() == {}
    assert world.fetcher.buffer.used == 0
    assert offsets(world.plan()) == {0: 50}


def test_a_seek_drops_prefetched_and_ready_records():
    world = FetchingWorld().start()
    world.fetch((0, batch(0) + batch(5)))
    world.read(limit=1)
    batches = world.fetcher.records.next_batches()
    batches.read(2)
    world.fetcher.records.record_ready(batches, batches.raw[0])
    world.fetcher.seek(world.names[0], FetchPosition(3))
    assert batches.is_dropped
    assert world.read() == {}
    world.fetch((0, batch(0)))
    assert world.read() == {0: [3, 4]}


def test_a_partition_that_is_assigned_again_ignores_responses_to_its_earlier_requests():
    """Its revisions go on where they were: a late answer about the beginning answered a seek to the end."""
    world = FetchingWorld(partitions=2).start()
    earlier = world.fetcher.partitions[world.names[0]].revision
    world.fetcher.assign(world.names[1:], world.now)
    world.fetcher.assign(world.names, world.now)
    assert world.fetcher.partitions[world.names[0]].revision > earlier


def test_an_unassigned_partition_frees_its_data_and_ignores_its_response():
    world = FetchingWorld(partitions=2).start()
    world.fetch((0, batch(0)))
    plan = world.plan()
    world.fetcher.assign(world.names[1:], world.now)
    assert world.fetcher.buffer.used == 0
    world.answer(plan, [(0, batch(5)), (1, batch(0))])
    assert world.read() == {1: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("reset", "timestamp"),
    [(EARLIEST, -2), (LATEST, -1), (OffsetReset(ResetKind.BY_DURATION, 5000), 1_799_999_995_000)],
)
def test_a_partition_without_an_offset_begins_where_the_policy_says(reset, timestamp):
    world = FetchingWorld(reset=reset)
    world.fetcher.assign(world.names, world.now)
    world.update_metadata()
    assert world.fetcher.uninitialized() == world.names
    world.fetcher.initialize(world.names[0], None)
    assert world.reset_to(17) == [timestamp]
    assert world.partition().position == FetchPosition(17)


def test_by_duration_without_a_record_that_young_looks_up_the_same_time_until_there_is_one():
    """A lookup of the end came after the first answer: it skipped a record that had arrived in between."""
    world = FetchingWorld(reset=OffsetReset(ResetKind.BY_DURATION, 5000))
    world.fetcher.assign(world.names, world.now)
    world.update_metadata()
    world.fetcher.initialize(world.names[0], None)
    since = world.wall_ms - 5000
    assert world.reset_to(-1) == [since]
    assert world.states() == {FetchState.RESETTING}
    assert world.reset_to(30) == []
    assert world.fetcher.next_retry(world.now) == pytest.approx(world.now + 0.1)
    world.now += 1
    world.wall_ms += 60_000
    assert world.reset_to(30) == [since]
    assert world.partition().position.offset == 30
    # Another reset counts from its own time.
    world.fetcher.request_reset(world.names[0], world.settings.reset)
    assert world.reset_to(31) == [world.wall_ms - 5000]


def test_without_a_policy_the_missing_offset_is_an_error_until_a_seek():
    world = FetchingWorld(reset=NONE)
    world.fetcher.assign(world.names, world.now)
    world.update_metadata()
    world.fetcher.initialize(world.names[0], None)
    for _ in range(2):
        assert isinstance(world.fetcher.next_error(world.now), NoOffsetForPartitionError)
    world.fetcher.seek(world.names[0], FetchPosition(4))
    assert world.fetcher.next_error(world.now) is None
    assert offsets(world.plan()) == {0: 4}


def test_a_committed_offset_with_an_epoch_is_validated_first():
    world = FetchingWorld()
    world.fetcher.assign(world.names, world.now)
    world.epochs[0] = 3
    world.update_metadata()
    world.fetcher.initialize(world.names[0], FetchPosition(8, 2))
    assert world.plan() is None
    assert world.epoch_ends(20, leader_epoch=2) == [(3, 2)]
    assert offsets(world.plan()) == {0: 8}


# Leaders, truncation, re-created topics


def test_a_moved_leader_is_followed_after_the_position_was_validated():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.read(limit=2)
    world.leaders[0], world.epochs[0] = 2, 1
    world.update_metadata()
    assert world.states() == {FetchState.VALIDATING}
    assert world.read() == {}
    assert world.epoch_ends(9) == [(1, 0)]
    assert offsets(world.plan(2)) == {0: 2}


def test_the_epoch_of_the_last_returned_record_is_validated():
    """The epoch of prefetched records was sent once: its end says nothing about the records before."""
    world = FetchingWorld().start()
    world.fetch((0, batch(0, epoch=0) + batch(5, epoch=3)))
    world.read(limit=5)
    world.epochs[0] = 4
    world.update_metadata()
    assert world.epoch_ends(5) == [(4, 0)]
    assert world.states() == {FetchState.FETCHING}
    assert offsets(world.plan()) == {0: 5}


def test_a_pause_before_a_validation_is_sent_does_not_reset_the_position():
    """The prefetched data of a paused partition made room for others. Its position had no epoch, which the leader
    does not know: the position was reset by the policy."""
    world = FetchingWorld(partitions=2, buffer_bytes=1600, max_partition_bytes=800).start(offset=7)
    world.fetch((0, batch(7, value=b"v" * 130)))
    world.fetcher.pause(world.names[0])
    world.epochs[0] = 1
    world.update_metadata()
    world.fetch((1, batch(7, value=b"v" * 130)))
    world.epoch_ends(-1, leader_epoch=-1)
    assert world.partition().position == FetchPosition(7)
    assert world.partition().state is FetchState.FETCHING


def test_a_position_without_a_record_before_it_is_not_validated():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.epochs[0] = 1
    world.update_metadata()
    assert world.read() == {0: [0, 1, 2, 3, 4]}


def test_the_position_is_validated_after_an_error_during_which_the_leader_changed():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.read()
    world.fetch((0, refused(29)))
    world.epochs[0] = 1
    world.update_metadata()
    assert isinstance(world.fetcher.next_error(world.now), TopicAuthorizationError)
    world.now += 1
    assert world.epoch_ends(5) == [(1, 0)]
    assert world.states() == {FetchState.FETCHING}


def test_the_leader_that_a_response_names_is_adopted():
    world = FetchingWorld().start()
    plan = world.plan()
    leader = LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
    assert world.answer(plan, [(0, refused(6, current_leader=leader))]).leaders
    world.now += 1
    assert world.plan(3) is not None


def test_truncation_behind_the_position_keeps_it_and_drops_prefetched_records():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.read(limit=2)
    world.epochs[0] = 1
    world.update_metadata()
    world.epoch_ends(3)
    assert world.read() == {}
    assert offsets(world.plan()) == {0: 2}


@pytest.mark.parametrize(("end", "position"), [(1, 1), (-1, 0)])
def test_truncation_before_the_position_goes_back(end, position):
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.read()
    world.epochs[0] = 1
    world.update_metadata()
    world.epoch_ends(end)
    world.reset_to(0)
    assert world.partition().position.offset == position
    assert world.states() == {FetchState.FETCHING}
    # The leader named the end: it is valid, and a later change of the leader validates it again.
    assert world.partition().position.epoch == (0 if end >= 0 else -1)


def test_truncation_without_a_policy_is_an_error():
    world = FetchingWorld(reset=NONE)
    world.fetcher.assign(world.names, world.now)
    world.epochs[0] = 3
    world.update_metadata()
    world.fetcher.initialize(world.names[0], FetchPosition(8, 2))
    world.epoch_ends(5, leader_epoch=2)
    assert isinstance(world.fetcher.next_error(world.now), LogTruncationError)


def test_brokers_that_cannot_validate_are_trusted():
    world = FetchingWorld()
    world.fetcher.assign(world.names, world.now)
    world.update_metadata()
    world.fetcher.initialize(world.names[0], FetchPosition(8, 0))
    (plan,) = world.lookups.due(world.now, world.wall_ms)
    world.lookups.failed(plan, UnsupportedVersionError("old"), world.now)
    assert offsets(world.plan()) == {0: 8}


def test_a_recreated_topic_is_read_from_its_beginning():
    world = FetchingWorld().start()
    world.fetch((0, batch(0) + batch(5)))
    world.read(limit=5)
    world.topic_id = b"n" * 16
    world.update_metadata()
    assert world.read() == {}
    assert world.reset_to(0) == [-2]
    plan = world.plan()
    assert offsets(plan) == {0: 0}
    assert [topic.topic_id for topic in plan.request.topics] == [b"n" * 16]


def test_a_recreated_topic_without_a_policy_is_an_error():
    world = FetchingWorld(reset=NONE)
    world.fetcher.assign(world.names, world.now)
    world.update_metadata()
    world.fetcher.seek(world.names[0], FetchPosition(8))
    world.topic_id = b"n" * 16
    world.update_metadata()
    assert "deleted and created again" in str(world.fetcher.next_error(world.now))


# Read replicas


def test_the_replica_that_the_leader_names_is_read_until_metadata_ages():
    world = FetchingWorld().start()
    world.fetch((0, PartitionData(preferred_read_replica=3, records=b"")))
    assert offsets(world.fetch((0, batch(0)), node_id=3)) == {0: 0}
    world.read()
    world.now += 301
    assert world.plan(1) is not None


@pytest.mark.parametrize("code", [1, 6, 9])
def test_an_error_of_a_replica_returns_to_the_leader(code):
    world = FetchingWorld().start()
    world.fetch((0, PartitionData(preferred_read_replica=3, records=b"")))
    world.fetch((0, refused(code)), node_id=3)
    world.now += 1
    assert world.states() == {FetchState.FETCHING}
    assert world.plan(1) is not None


# Errors


@pytest.mark.parametrize("code", [3, 6, 9, 56, 74, 78, 100, 103])
def test_errors_of_old_metadata_are_tried_again_with_new_metadata(code):
    world = FetchingWorld().start()
    version = world.metadata.version
    world.fetch((0, refused(code)))
    assert world.plan() is None
    assert world.metadata.next_update_delay(world.now) < 1
    world.update_metadata()
    assert world.metadata.version > version
    assert world.plan() is not None


@pytest.mark.parametrize("code", [75, -1])
def test_errors_that_pass_are_tried_again(code):
    world = FetchingWorld().start()
    world.fetch((0, refused(code)))
    assert world.plan() is None
    assert world.fetcher.next_retry(world.now) == pytest.approx(world.now + 0.1)
    world.now += 0.11
    assert world.plan() is not None


def test_an_offset_out_of_range_is_reset_after_the_records_before_it():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    world.fetch((0, refused(1)))
    assert world.read() == {0: [0, 1, 2, 3, 4]}
    world.now += 1
    world.fetch((0, refused(1)))
    assert world.reset_to(40) == [-2]
    assert offsets(world.plan()) == {0: 40}


def test_an_offset_out_of_range_without_a_policy_is_an_error_until_a_seek():
    world = FetchingWorld(reset=NONE)
    world.fetcher.assign(world.names, world.now)
    world.update_metadata()
    world.fetcher.seek(world.names[0], FetchPosition(8))
    world.fetch((0, refused(1)))
    for _ in range(2):
        error = world.fetcher.next_error(world.now)
        assert isinstance(error, error_class(1))
        assert "a-0 has no offset 8" in str(error)
    world.fetcher.seek(world.names[0], FetchPosition(2))
    assert offsets(world.plan()) == {0: 2}


def test_a_denied_topic_is_an_error_once_and_then_tried_again():
    world = FetchingWorld().start()
    world.fetch((0, refused(29)))
    assert isinstance(world.fetcher.next_error(world.now), TopicAuthorizationError)
    assert world.fetcher.next_error(world.now) is None
    assert world.plan() is None
    world.now += 1
    assert world.plan() is not None


def test_a_topic_that_metadata_denies_is_an_error():
    world = FetchingWorld()
    world.fetcher.assign(world.names, world.now)
    world.update_metadata(error_code=29)
    assert isinstance(world.fetcher.next_error(world.now), TopicAuthorizationError)


def test_a_corrupt_batch_is_an_error_behind_the_records_before_it():
    world = FetchingWorld().start()
    torn = bytearray(batch(5))
    torn[-1] ^= 1
    world.fetch((0, batch(0) + bytes(torn)))
    with pytest.raises(ProtocolError, match="corrupt") as caught:
        world.read()
    world.fetcher.corrupt(world.fetcher.records.next_batches(), caught.value)
    assert world.fetcher.next_error(world.now) is None
    assert {name.partition: len(records) for name, records in world.fetcher.records.take(10).items()} == {0: 5}
    error = world.fetcher.next_error(world.now)
    assert "Partition a-0 cannot be read at offset 5" in str(error)
    assert "Seek to offset 10, behind the batch, to go on." in str(error)
    assert (error.topic_partition, error.offset, error.next_offset) == (world.names[0], 5, 10)
    assert world.partition().position.offset == 5
    world.fetcher.seek(world.names[0], FetchPosition(error.next_offset))
    assert offsets(world.plan()) == {0: 10}


@pytest.mark.parametrize(
    ("last_offset_delta", "behind", "next_offset"),
    [
        (4, b"", 5),
        (1000, b"", 100),
        (1000, batch(6), 6),
        (-7, b"", None),
        (4, b"\0" * 8 + batch(5)[8:16] + b"\0" * 20, 5),
    ],
    ids=["header", "behind the end of the log", "next batch", "impossible", "unreadable next batch"],
)
def test_the_end_of_a_corrupt_batch_is_where_the_next_one_begins(last_offset_delta, behind, next_offset):
    """The header of the corrupt batch may be what is corrupt."""
    world = FetchingWorld().start()
    torn = bytearray(batch(0))
    torn[23:27] = last_offset_delta.to_bytes(4, "big", signed=True)
    torn[-1] ^= 1
    world.fetch((0, PartitionData(records=memoryview(bytes(torn) + behind), high_watermark=100)))
    if world.partition().state is FetchState.FAILED:
        # The last batch ends before the requested offset.
        assert next_offset is None
        return
    batches = world.fetcher.records.next_batches()
    with pytest.raises(ProtocolError, match="corrupt") as caught:
        batches.open_batch()
    world.fetcher.corrupt(batches, caught.value)
    assert world.fetcher.next_error(world.now).next_offset == next_offset


@pytest.mark.parametrize("data", [b"x" * 40, batch(0)[:-1]])
def test_data_without_a_whole_batch_are_an_error(data):
    world = FetchingWorld().start()
    world.fetch((0, data))
    assert isinstance(world.fetcher.next_error(world.now), ProtocolError)


def test_checksums_are_not_checked_without_check_crcs():
    world = FetchingWorld(check_crcs=False).start()
    torn = bytearray(batch(0))
    torn[20] ^= 1
    world.fetch((0, bytes(torn)))
    assert world.read() == {0: [0, 1, 2, 3, 4]}


def test_after_a_lost_connection_the_node_backs_off_and_the_session_begins_again():
    world = FetchingWorld().start()
    world.fetch()
    plan = world.plan()
    assert plan.request.session_epoch == 1
    world.fetcher.fetch_failed(plan, NetworkError("gone"), world.now)
    assert world.fetcher.buffer.reserved == 0
    assert world.plan() is None
    world.now += 0.11
    plan = world.plan()
    assert (plan.request.session_id, plan.request.session_epoch, offsets(plan)) == (7, 0, {0: 0})


def test_a_request_that_no_broker_takes_is_an_error():
    world = FetchingWorld().start()
    world.fetcher.fetch_failed(world.plan(), UnsupportedVersionError("too old"), world.now)
    assert isinstance(world.fetcher.next_error(world.now), UnsupportedVersionError)


def test_sessions_are_ended():
    world = FetchingWorld().start()
    world.fetch()
    ((node_id, request),) = world.fetcher.build_session_ends()
    assert (node_id, request.session_id, request.session_epoch, request.topics) == (1, 7, -1, [])


def test_the_lag_is_known_after_a_response():
    world = FetchingWorld().start()
    assert world.partition().lag(is_committed=False) is None
    world.fetch((0, batch(0)))
    world.read(limit=2)
    assert world.partition().lag(is_committed=False) == 98
    assert world.partition().lag(is_committed=True) == 88


def test_no_assignment_returns_and_no_position_is_forgotten():
    assert NEXT_STATES.keys() == set(FetchState)
    assert NEXT_STATES[FetchState.UNASSIGNED] == frozenset()
    before = {state for state, states in NEXT_STATES.items() if FetchState.INITIALIZING in states}
    assert before == {FetchState.FAILED}
    partition = FetchingWorld().start().partition()
    partition.unassign()
    with pytest.raises(AssertionError, match="a-0, unassigned, cannot become fetching"):
        partition.seek(FetchPosition(0))


# Invariants


@given(st.data())
def test_each_record_is_returned_once_and_in_order_whatever_happens_between(data):
    """Responses of any size, lost ones, pauses, moved leaders and small reads; the log has one record an offset."""
    world = FetchingWorld(partitions=3, buffer_bytes=data.draw(st.sampled_from([600, 3000])), max_partition_bytes=600)
    world.leaders = {0: 1, 1: 1, 2: 2}
    world.start()
    seen = {0: [], 1: [], 2: []}

    def note(taken):
        for index, part in taken.items():
            seen[index] += part

    in_flight = []

    def answer(plan):
        parts = []
        for name, offset in plan.offsets.items():
            if data.draw(st.booleans()):
                # The first batch may begin before the offset.
                back = min(offset, data.draw(st.integers(0, 2)))
                parts.append((name.partition, batch(offset - back, back + data.draw(st.integers(1, 4)))))
        world.answer(plan, parts)

    for _ in range(data.draw(st.integers(5, 40))):
        match data.draw(st.sampled_from(["fetch", "fetch", "answer", "read", "lose", "pause", "move", "metadata"])):
            case "fetch":
                plans = [world.fetcher.build_fetch(node, world.now) for node in world.fetcher.nodes_to_fetch(world.now)]
                in_flight += [plan for plan in plans if plan is not None]
                if in_flight and data.draw(st.booleans()):
                    answer(in_flight.pop(0))
            case "answer":
                if in_flight:
                    answer(in_flight.pop(0))
            case "lose":
                if in_flight:
                    world.fetcher.fetch_failed(in_flight.pop(0), NetworkError("gone"), world.now)
            case "pause":
                name = data.draw(st.sampled_from(world.names))
                (world.fetcher.resume if world.fetcher.partitions[name].is_paused else world.fetcher.pause)(name)
            case "move":
                index = data.draw(st.integers(0, 2))
                world.leaders[index] = data.draw(st.integers(1, 3))
                world.epochs[index] += 1
                world.update_metadata()
            case "metadata":
                world.now += 1
                world.epoch_ends(10**6)
            case "read":
                note(world.read(data.draw(st.integers(1, 8))))
        assert world.fetcher.buffer.used >= 0
        assert world.fetcher.buffer.reserved >= 0
        assert world.fetcher.buffer.decoded >= sum(each.decoded for each in world.fetcher.partitions.values()) >= 0
    for plan in in_flight:
        answer(plan)
    for name in world.names:
        world.fetcher.resume(name)
    while taken := world.read():
        note(taken)
    for index, part in seen.items():
        assert part == list(range(len(part)))
        assert world.partition(index).position.offset == len(part)
    assert world.fetcher.buffer.used == 0
    assert world.fetcher.buffer.reserved == 0
    assert world.fetcher.buffer.decoded == 0


@pytest.mark.parametrize("tail", [b"", batch(12)[:-1], batch(12)[:10], b"\0"])
def test_the_position_behind_a_response_is_that_behind_its_last_whole_batch(tail):
    data = batch(5, epoch=2) + batch(10, 2, epoch=3) + tail
    assert last_position(memoryview(data), 5) == FetchPosition(12, 3)
    assert last_position(data, 11) == FetchPosition(12, 3)
    assert last_position(data, 12) is None
    assert last_position(tail, 0) is None


def test_a_length_that_no_batch_has_is_an_error():
    with pytest.raises(ProtocolError, match="less than its header"):
        last_position(batch(0) + bytes(30), 0)
