"""The accounting of rings and credits, with any sequence of sizes and any order of events."""

from __future__ import annotations

import random
import weakref
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.transport.rdma.ring import (
    Fifo,
    MessageKind,
    PeerRing,
    ReceiveRing,
    RingError,
    SendQueue,
    decode_immediate,
    encode_immediate,
)
from tests.transport.numbered import numbered

counts = st.integers(0, 2**13)


@given(kind=st.sampled_from(MessageKind), data=counts, controls=counts)
def test_immediates_are_decoded_as_they_were_encoded(kind, data, controls):
    immediate = encode_immediate(kind, data, controls)
    assert 0 <= immediate < 2**32
    assert decode_immediate(immediate) == (kind, data, controls)


@pytest.mark.parametrize("value", [0, 0x0FFF_FFFF, 0x4000_0000, 0xFFFF_FFFF])
def test_an_immediate_of_an_unknown_kind_is_rejected(value):
    with pytest.raises(RingError, match="unknown kind"):
        decode_immediate(value)


@given(steps=st.lists(st.one_of(st.integers(0, 2**62), st.just(None)), max_size=100))
def test_numbers_leave_a_fifo_in_order(steps):
    fifo, expected = Fifo(), deque()
    for number in steps:
        if number is not None:
            fifo.append(number)
            expected.append(number)
        elif expected:
            assert fifo.first() == expected[0]
            assert fifo.take() == expected.popleft()
        assert fifo.count == len(expected)
    assert [fifo.take() for _ in range(fifo.count)] == list(expected)


def runs_of(queue, length):
    """Return the one or two runs of the send ring for the next bytes."""
    offset, first = queue.take(length)
    return [(start, size) for start, size in ((offset, first), (0, length - first)) if size]


class Side:
    """One side of a simulated connection: the accounting as ``RdmaTransport`` uses it, real bytes in real rings."""

    def __init__(self, size, slots, controls, depth, ring):
        self.receive_memory = bytearray(size)
        self.receive = ReceiveRing(size, slots, controls)
        self.receives = slots + controls + 1
        self.ring = bytearray(ring)
        self.queue = SendQueue(depth + controls + 1, controls + 1, ring)
        self.unsent = deque()
        self.got = bytearray()
        self.wire = deque()
        self.completions = deque()
        self.arrivals = deque()
        self.unposted = 0
        self.reading = True

    def meet(self, peer):
        self.peer = peer
        self.peer_ring = PeerRing(peer.receive.size, peer.slots, peer.controls)

    slots = property(lambda self: self.receive._slots)
    controls = property(lambda self: self.receive._controls)

    def post(self, runs, offset, kind, copied, wanted=False):
        post = self.queue.posted(copied, copied, None, wanted)
        credits = (0, 0)
        if kind != MessageKind.DATA or self.receive.attaches_credits():
            self.receives += self.unposted
            self.unposted = 0
            credits = self.receive.take_credits()
        immediate = encode_immediate(kind, *credits)
        self.wire.append((post, runs, offset, immediate))

    def send(self):
        while self.unsent and self.queue.may_post():
            data = self.unsent[0]
            length = min(self.peer_ring.room(), len(data), self.queue.room)
            if not length:
                return
            runs = runs_of(self.queue, length)
            start = 0
            for ring_offset, size in runs:
                self.ring[ring_offset : ring_offset + size] = data[start : start + size]
                start += size
            assert start == length
            if length == len(data):
                self.unsent.popleft()
            else:
                self.unsent[0] = data[length:]
            self.post(runs, self.peer_ring.take(length), MessageKind.DATA, length)

    def return_credits(self):
        if self.receive.owes_credits() and self.peer_ring.free_controls and self.queue.may_post_control():
            self.peer_ring.take_control()
            self.post([], 0, MessageKind.CREDITS, 0)

    def deliver(self):
        """Let the card carry out the oldest write: the send ring's bytes are read only now."""
        post, runs, offset, immediate = self.wire.popleft()
        data = b"".join(self.ring[ring_offset : ring_offset + size] for ring_offset, size in runs)
        assert self.peer.receives > 0, "receiver not ready"
        self.peer.receives -= 1
        assert offset + len(data) <= len(self.peer.receive_memory)
        self.peer.receive_memory[offset : offset + len(data)] = data
        self.peer.arrivals.append((len(data), immediate))
        work_request_id, signaled = post
        if signaled:
            self.completions.append(work_request_id)

    def complete(self):
        self.queue.completed(self.completions.popleft())

    def arrive(self):
        length, value = self.arrivals.popleft()
        kind, data_freed, controls_freed = decode_immediate(value)
        self.peer_ring.freed(data_freed, controls_freed)
        if kind == MessageKind.DATA:
            self.receive.arrived(length)
        else:
            self.receive.control_arrived()
            self.unposted += 1

    def consume(self):
        offset, length = self.receive.oldest()
        self.got += self.receive_memory[offset : offset + length]
        self.receive.consumed()
        self.unposted += 1

    def check(self):
        ring = self.peer_ring
        assert 0 <= ring.free_bytes <= ring.size
        assert 0 <= ring.free_slots <= self.peer.slots
        assert 0 <= ring.free_controls <= self.peer.controls
        assert 0 <= self.queue.room <= len(self.ring)
        assert self.receives >= 0

    def steps(self):
        if self.wire:
            yield self.deliver
        if self.completions:
            yield self.complete
        if self.arrivals:
            yield self.arrive
        if self.receive.waiting and self.reading:
            yield self.consume

    def pump(self):
        self.send()
        self.return_credits()
        self.check()


def pair(draw_a, draw_b):
    sides = Side(*draw_a), Side(*draw_b)
    sides[0].meet(sides[1])
    sides[1].meet(sides[0])
    return sides


shapes = st.tuples(st.integers(8, 60), st.integers(1, 6), st.integers(2, 3), st.integers(1, 6), st.integers(1, 50))
frames = st.lists(st.integers(1, 90), max_size=40)


@settings(max_examples=150, deadline=None)
@given(a=shapes, b=shapes, there=frames, back=frames, seed=st.integers(0, 2**32))
def test_rings_lose_nothing_overrun_nothing_and_never_deadlock(a, b, there, back, seed):
    """Frames of any size, even larger than the rings, in both directions at once, with any order of events."""
    sides = pair(a, b)
    chance = random.Random(seed)
    expected = []
    for side, sizes in zip(sides, (there, back), strict=True):
        data = numbered(sum(sizes), seed % 1000)
        expected.append(data)
        start = 0
        for size in sizes:
            side.unsent.append(data[start : start + size])
            start += size
    for side in sides:
        side.pump()
    quiet = 0
    while quiet < 2:
        steps = [(side, step) for side in sides for step in side.steps()]
        if not steps:
            # Resume all paused readers; if nothing can proceed then, everything has been delivered.
            quiet += 1
            for side in sides:
                side.reading = True
                side.pump()
            continue
        quiet = 0
        side, step = chance.choice(steps)
        step()
        if chance.random() < 0.1:
            side.reading = not side.reading
        side.pump()
    assert sides[1].got == expected[0]
    assert sides[0].got == expected[1]
    assert not sides[0].unsent
    assert not sides[1].unsent


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=60), data=st.data())
def test_no_byte_of_the_send_ring_is_reused_before_its_completion(sizes, data):
    queue = SendQueue(12, 4, 100)
    in_use = {}
    for size in sizes:
        while not queue.room or not queue.may_post():
            signaled = [number for number, (_, is_signaled) in in_use.items() if is_signaled]
            assert signaled, "nothing under way has asked for a completion"
            number = data.draw(st.sampled_from(signaled))
            queue.completed(number)
            in_use = {later: value for later, value in in_use.items() if later > number}
        size = min(size, queue.room)
        runs = runs_of(queue, size)
        offsets = {offset for start, length in runs for offset in range(start, start + length)}
        assert len(offsets) == size
        assert len(runs) <= 2
        assert offsets <= set(range(100))
        for others, _ in in_use.values():
            assert not offsets & others
        work_request_id, is_signaled = queue.posted(size, size, None, False)
        in_use[work_request_id] = (offsets, is_signaled)
    assert queue.under_way == len(in_use)


written = st.lists(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=4), min_size=1, max_size=30)


@settings(max_examples=150)
@given(writes=written, data=st.data())
def test_every_write_is_done_once_in_order_and_after_its_lent_memory_was_read(writes, data):
    """Writes of lent and copied pieces, posted some bytes at a time, completed in any steps."""
    queue = SendQueue(6, 2, 1000)
    unsent, under_way = deque(), {}
    waiting = []
    said = 0

    def post():
        nonlocal unsent
        wanted = data.draw(st.integers(1, 60))
        length, first, lent = 0, unsent[0][0], []
        while unsent and length < wanted:
            number, size, is_lent = unsent.popleft()
            taken = min(size, wanted - length)
            if taken < size:
                unsent.appendleft((number, size - taken, is_lent))
            length += taken
            if is_lent:
                lent.append(number)
        work_request_id, signaled = queue.posted(length, 0, lent or None, not unsent)
        under_way[work_request_id] = first, lent, signaled

    def complete():
        nonlocal under_way
        signaled = [number for number, (*_, is_signaled) in under_way.items() if is_signaled]
        if signaled:
            last = data.draw(st.sampled_from(signaled))
            queue.completed(last)
            under_way = {number: post for number, post in under_way.items() if number > last}
        return bool(signaled)

    def count():
        nonlocal said
        to_send = {number for number, *_ in unsent}
        being_read = {number for _, lent, _ in under_way.values() for number in lent} | to_send
        for number in waiting[said : said + queue.take_done()]:
            assert not any(other <= number for other in being_read)
            said += 1
        # And no later: the next write waits for its own bytes, or for a work request that begins before its end.
        if said < len(waiting):
            begun = {first for first, lent, _ in under_way.values() if lent} | to_send
            assert min(begun) <= waiting[said]
        assert queue.owed == len(waiting) - said

    for number, pieces in enumerate(writes):
        for size, is_lent in pieces:
            unsent.append((number, size, is_lent))
            queue.written(size)
        if unsent and queue.may_post() and data.draw(st.booleans()):
            post()
        if queue.written_to > queue.done_to():
            queue.owe()
            waiting.append(number)
        if data.draw(st.booleans()):
            complete()
        if data.draw(st.booleans()):
            count()
    while unsent or complete():
        if unsent and queue.may_post():
            post()
        else:
            complete()
        count()
    count()
    assert said == len(waiting)
    assert queue.take_done() == queue.take_owed() == 0


def test_all_pending_writes_can_be_released_at_once():
    queue = SendQueue(8, 0, 10)
    for _ in range(3):
        queue.written(5)
        queue.owe()
    queue.posted(5, 0, None, True)
    assert queue.take_done() == 1
    assert queue.take_owed() == 2
    assert queue.take_owed() == 0


def test_only_some_work_requests_are_signaled():
    queue = SendQueue(64, 0, 1000)
    signals = [queue.posted(0, 0, None, False)[1] for _ in range(64)]
    assert [index for index, signaled in enumerate(signals) if signaled] == [15, 31, 47, 63]
    queue.completed(63)
    queue.take(499)
    assert not queue.posted(499, 499, None, False)[1]
    queue.take(1)
    assert queue.posted(1, 1, None, False)[1]
    assert queue.posted(0, 0, None, True)[1]
    assert not queue.posted(0, 0, None, False)[1]


def test_lent_memory_counts_until_it_completes():
    queue = SendQueue(8, 0, 10)
    first, _ = queue.posted(0, 0, ["a view"], True)
    _, signaled = queue.posted(0, 0, ["another"], False)
    assert not signaled
    last, _ = queue.posted(0, 0, ["a third"], True)
    assert queue.lent == 3
    queue.completed(first)
    assert queue.lent == 2
    queue.completed(last)
    queue.completed(last)
    assert queue.lent == queue.under_way == 0


def test_lent_memory_is_kept_alive_only_until_it_completes():
    class Memory:
        pass

    queue = SendQueue(4, 0, 10)
    known = []
    for number in range(11):
        memory = Memory()
        known.append(weakref.ref(memory))
        queue.posted(0, 0, memory, True)
        del memory
        alive = [index for index, of in enumerate(known) if of() is not None]
        assert alive == list(range(max(number - 2, 0), number + 1))
        if number >= 2:
            queue.completed(number - 2)


def test_work_requests_are_reserved_for_controls_and_the_goodbye():
    queue = SendQueue(5, 3, 10)
    for _ in range(2):
        assert queue.may_post()
        queue.posted(0, 0, None, False)
    assert not queue.may_post()
    for _ in range(2):
        assert queue.may_post_control()
        queue.posted(0, 0, None, False)
    assert not queue.may_post_control()
    assert queue.may_post_goodbye()
    queue.posted(0, 0, None, True)
    assert not queue.may_post_goodbye()


class TestAPeerThatBreaksTheRules:
    def test_credits_for_unwritten_messages_are_rejected(self):
        ring = PeerRing(100, 4, 2)
        ring.take(10)
        with pytest.raises(RingError, match="credits for 2 messages, but only 1"):
            ring.freed(2, 0)
        with pytest.raises(RingError, match="credits for 1 control messages"):
            ring.freed(0, 1)

    def test_more_bytes_than_the_room_are_rejected(self):
        ring = ReceiveRing(100, 4, 2)
        ring.arrived(60)
        with pytest.raises(RingError, match="more than the ring had room for"):
            ring.arrived(41)
        # Consumed bytes are not free until the peer has received the credits.
        ring.consumed()
        with pytest.raises(RingError, match="more than the ring had room for"):
            ring.arrived(41)

    def test_a_message_over_the_end_of_the_ring_is_rejected(self):
        ring = ReceiveRing(100, 4, 2)
        ring.arrived(60)
        ring.consumed()
        ring.take_credits()
        with pytest.raises(RingError, match="more than the ring had room for"):
            ring.arrived(41)
        ring.arrived(40)
        assert ring.oldest() == (60, 40)
        ring.consumed()
        ring.arrived(60)
        assert ring.oldest() == (0, 60)

    def test_a_data_message_without_data_is_rejected(self):
        with pytest.raises(RingError, match="without data"):
            ReceiveRing(100, 4, 2).arrived(0)

    def test_more_messages_than_slots_are_rejected(self):
        ring = ReceiveRing(100, 2, 2)
        ring.arrived(1)
        ring.arrived(1)
        with pytest.raises(RingError, match="more than 2 messages"):
            ring.arrived(1)

    def test_more_controls_than_allowed_are_rejected(self):
        ring = ReceiveRing(100, 2, 2)
        ring.control_arrived()
        ring.control_arrived()
        with pytest.raises(RingError, match="more than 2 control messages"):
            ring.control_arrived()
