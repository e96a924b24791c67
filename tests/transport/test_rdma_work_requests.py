"""Work requests and completions keep their numbers, even the largest possible ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.transport.rdma.work_requests import Completion, Write

addresses = st.integers(0, 2**64 - 1)
keys = st.integers(0, 2**32 - 1)
pieces = st.lists(st.tuples(addresses, st.integers(0, 2**32 - 1), keys), max_size=32)


@given(st.integers(0, 2**62), pieces, addresses, keys, keys, st.booleans())
def test_a_write_keeps_the_values_it_was_made_with(work_request_id, parts, address, key, immediate, signaled):
    write = Write(work_request_id, parts, address, key, immediate, signaled)
    assert (write.work_request_id, write.pieces, write.count) == (work_request_id, parts, len(parts))
    assert (write.remote_address, write.remote_key, write.immediate) == (address, key, immediate)
    assert write.signaled is signaled


@given(pieces, pieces)
def test_a_write_can_be_refilled(before, parts):
    write = Write(pieces=before)
    earlier = write.pieces
    write.clear()
    assert write.pieces == []
    for piece in parts:
        write.add(*piece)
    assert (earlier, write.pieces) == (before, parts)


def test_a_completion_has_a_readable_repr():
    completion = Completion(1 << 62, 5, True, 0, 2**32 - 1)
    assert (completion.work_request_id, completion.status, completion.received) == (1 << 62, 5, True)
    assert (completion.length, completion.immediate) == (0, 2**32 - 1)
    assert repr(completion) == "<received 4611686018427387904: status 5, 0 bytes, immediate 0xffffffff>"
    assert repr(Completion(3, 0, False, 0, 0)) == "<sent 3: status 0, 0 bytes, immediate 0x0>"
