"""The simulated verbs layer, compared with the transcript of soft-RoCE for the same script."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from aioproducer.testing.verbs import LiveObjects, SimulatedFabric
from aioproducer.transport.rdma.verbs import CompletionStatus, RdmaUnavailableError, VerbsError
from aioproducer.transport.rdma.work_requests import Write
from tests.rdma import script


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return at once: nothing arrives later with the double."""
    monkeypatch.setattr(script, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(script, "_PATIENCE_SECONDS", 0.0)


@pytest.mark.parametrize("scenario", script.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_simulated_device_behaves_like_soft_roce(scenario: Callable[[script.Stage], None]) -> None:
    fabric = SimulatedFabric()
    said = script.played(scenario, fabric)
    assert said == script.transcript()[scenario.__name__]
    assert fabric.live == LiveObjects(0, 0, 0)
    assert (fabric.receiver_not_ready > 0) == (scenario is script.receiver_not_ready)


# Behaviour that a test requests from the simulation and soft-RoCE cannot show.


def _pair(fabric: SimulatedFabric, stack: ExitStack, **depths: int) -> tuple[script.Side, script.Side]:
    device = fabric.open(None, None)
    stack.callback(device.close)
    depth = {"send_depth": 4, "receive_depth": 4, **depths}
    a, b = (script.Side(name, device, stack, **depth) for name in "ab")
    a.queue_pair.connect(b.queue_pair.facts)
    b.queue_pair.connect(a.queue_pair.facts)
    return a, b


def _write(side: script.Side, peer: script.Side, number: int, *, signaled: bool = True) -> None:
    region = peer.target_region
    pieces = [side.piece(number, 1)]
    write = Write(number, pieces, region.address + number, region.remote_key, signaled=signaled)
    side.queue_pair.post_write(write)


def test_delayed_writes_read_their_memory_on_delivery() -> None:
    fabric = SimulatedFabric()
    with ExitStack() as stack:
        a, b = _pair(fabric, stack)
        b.queue_pair.post_receives(range(3))
        fabric.hold()
        for number in range(3):
            _write(a, b, number)
        a.source[:3] = b"xyz"
        assert a.queue_pair.poll(9) == []
        assert fabric.step() == 1
        assert (b.target[:3], len(a.queue_pair.poll(9))) == (b"x\0\0", 1)
        fabric.release()
        assert (b.target[:3], len(a.queue_pair.poll(9))) == (b"xyz", 2)
        assert fabric.step() == 0


def test_an_unreachable_peer_receives_nothing_and_writes_to_it_fail() -> None:
    fabric = SimulatedFabric()
    with ExitStack() as stack:
        a, b = _pair(fabric, stack)
        b.queue_pair.post_receives([1])
        fabric.cut(fabric.queue_pairs[1])
        _write(a, b, 1, signaled=False)
        assert [completion.status for completion in a.queue_pair.poll(9)] == [CompletionStatus.TRANSPORT_RETRY_EXCEEDED]
        assert b.queue_pair.poll(9) == []


def test_polling_a_later_completion_frees_send_queue_entries() -> None:
    fabric = SimulatedFabric()
    with ExitStack() as stack:
        a, b = _pair(fabric, stack, receive_depth=9)
        b.queue_pair.post_receives(range(9))
        for number in range(4):
            _write(a, b, number, signaled=number == 1)
        with pytest.raises(VerbsError, match="the send queue is full \\(4 writes\\)"):
            _write(a, b, 4)
        assert [completion.work_request_id for completion in a.queue_pair.poll(9)] == [1]
        _write(a, b, 4)
        _write(a, b, 5)
        with pytest.raises(VerbsError, match="the send queue is full"):
            _write(a, b, 6)


def test_polling_a_completion_frees_its_receive_queue_entry() -> None:
    fabric = SimulatedFabric()
    with ExitStack() as stack:
        a, b = _pair(fabric, stack)
        b.queue_pair.post_receives(range(4))
        _write(a, b, 0)
        with pytest.raises(VerbsError, match="the receive queue is full \\(4 receives\\)"):
            b.queue_pair.post_receives([4])
        b.queue_pair.poll(9)
        b.queue_pair.post_receives([4])


def test_writes_from_an_unconnected_queue_pair_fail() -> None:
    fabric = SimulatedFabric()
    with ExitStack() as stack:
        a, b = _pair(fabric, stack)
        device = fabric.open(None, None)
        stack.callback(device.close)
        stranger = script.Side("stranger", device, stack, 4, 4)
        b.queue_pair.post_receives([1])
        stranger.queue_pair.connect(b.queue_pair.facts)
        _write(stranger, b, 1)
        found = stranger.queue_pair.poll(9)
        assert [completion.status for completion in found] == [CompletionStatus.TRANSPORT_RETRY_EXCEEDED]
        _write(a, b, 2)
        assert [completion.status for completion in b.queue_pair.poll(9)] == [CompletionStatus.SUCCESS]


def test_a_test_can_make_verbs_fail() -> None:
    fabric = SimulatedFabric()
    called = []

    def before(verb: str) -> None:
        called.append(verb)
        if verb == "create_queue_pair":
            raise VerbsError("no more of them")

    fabric.before = before
    device = fabric.open(None, None)
    with pytest.raises(VerbsError, match="no more of them"):
        device.create_queue_pair(send_depth=1, receive_depth=1)
    fabric.refuse_registrations(1)
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    with pytest.raises(VerbsError, match=r"the limit of locked memory is reached \(ulimit -l\)"):
        device.register(memory, remote_write=False)
    device.register(memory, remote_write=False).close()
    memory.close()
    device.close()
    assert called == ["open", "create_queue_pair", "register", "register", "close", "close"]


def test_devices_are_found_by_name_and_by_address() -> None:
    with pytest.raises(RdmaUnavailableError, match="there is no RDMA device"):
        SimulatedFabric({}).open(None, None)
    fabric = SimulatedFabric({"card0": "192.0.2.1", "card1": "192.0.2.2"})
    for device, gid in (("card1", None), (None, "192.0.2.2"), ("card1", "::ffff:192.0.2.2")):
        opened = fabric.open(device, gid)
        assert opened.name == "card1"
        opened.close()
    with pytest.raises(RdmaUnavailableError, match="there is no RDMA device card2; there are: card0, card1"):
        fabric.open("card2", None)
    with pytest.raises(RdmaUnavailableError, match=r"no port of card0 has the address 192\.0\.2\.2"):
        fabric.open("card0", "192.0.2.2")
