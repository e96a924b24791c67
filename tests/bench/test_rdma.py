"""The bench of RDMA and TCP: its counts, and its detection of wrong bytes."""

from __future__ import annotations

import json
import os
import sys

import pytest

from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.rdma import RdmaConnector, RdmaListener
from aioproducer.transport.stream import StreamConnector
from bench import rdma, rdma_instructions, rdma_link
from tests.waiting import until


def _double(capsys, tmp_path, work, records):
    output = tmp_path / "figures.json"
    arguments = ["--double", "--work", work, "--records", str(records), "--rounds", "1", "--output", str(output)]
    assert rdma.main(arguments) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    # A header and both transports; a header and their ratio.
    assert len(rows) == 5
    return json.loads(output.read_text())


def test_the_double_counts_the_cost_of_a_request(capsys, tmp_path):
    found = _double(capsys, tmp_path, "16 KiB", 3000)["batches of 16 KiB"]
    of = found["rdma"]
    assert of["records_a_request"] > 10
    # All except the last few records, which are small enough to be copied.
    assert of["writes_posted_a_request"] >= of["signals_a_request"] > 0.5
    assert of["bytes_sent_a_request"] > of["records_a_request"] * 100 > of["bytes_copied_a_request"]
    ratio = found.pop("rdma by tcp")
    assert 0 < ratio["least"] <= ratio["median"] <= ratio["most"]
    for of in found.values():
        assert of["cpu_us_a_record"] > of["own_us_a_record"] > 0
        assert 0 < of["layer_share"] < 1
    assert "bytes_copied_a_request" not in found["tcp"]


def test_an_awaited_record_is_a_request(capsys, tmp_path):
    (found,) = _double(capsys, tmp_path, "one awaited", 5000).values()
    assert found["tcp"]["records_a_request"] == found["rdma"]["records_a_request"] == 1
    of = found["rdma"]
    assert of["writes_posted_a_request"] == 1
    # A record of this size is copied, so few writes need a completion: nearly all completions are of answers.
    assert of["signals_a_request"] < 0.1
    assert 1 <= of["completions_a_request"] < 1.1
    assert of["bytes_copied_a_request"] == of["bytes_sent_a_request"]


def test_the_lateness_of_the_loop_is_measured_for_both_transports(capsys, tmp_path):
    before = sys.getswitchinterval(), os.sched_getaffinity(0), os.sched_getscheduler(0)
    output = tmp_path / "figures.json"
    assert rdma.main(["--ticker", "--mebibytes", "2", "--rounds", "2", "--output", str(output)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split()[1] for row in rows] == ["transport", "TCP", "RDMA"]
    found = json.loads(output.read_text())
    assert {name: len(rounds) for name, rounds in found.items()} == {"tcp": 2, "rdma": 2}
    assert all(one["ticks"] > 1 and one["late_max_ms"] > 0 for rounds in found.values() for one in rounds)
    assert (sys.getswitchinterval(), os.sched_getaffinity(0), os.sched_getscheduler(0)) == before


def test_the_layers_share_excludes_the_cost_of_timing():
    plain = [{"cpu_ns": 10_000, "records": 10, "requests": 2}]
    timed = [{"cpu_ns": 20_000, "records": 10, "requests": 2, "layer_calls": 10, "layer_ns": 5_000}]
    found = rdma.summary(plain, timed, 200)
    # 3 of 10 microseconds: each of the ten calls was lengthened by 200 ns within the timed part. The total
    # lengthening has no effect.
    assert found["layer_share"] == pytest.approx(0.3)
    assert found["own_us_a_record"] == pytest.approx(0.7)
    assert found["own_us_a_request"] == pytest.approx(3.5)


def test_the_ratio_compares_runs_of_one_round():
    def run(cpu_ns):
        plain = {"cpu_ns": cpu_ns, "records": 10, "requests": 2}
        return plain, plain | {"layer_calls": 10, "layer_ns": 5_000}

    rounds = [{"tcp": run(10_000), "rdma": run(10_700)}, {"tcp": run(24_000), "rdma": run(24_000)}]
    # In the second the machine was slower, for both.
    assert rdma.own_ratios(rounds, 200) == pytest.approx([1.1, 1.0])


def test_callgrind_excludes_the_double():
    names = [
        "__pyx_pw_5bench_11rdma_timing_5Layer_3begin",
        "__pyx_pw_5bench_11rdma_timing_5Layer_5end",
        "__pyx_pw_5bench_11rdma_timing_5Layer_7timed",
        "__pyx_pw_5bench_11rdma_timing_12_TimedSocket_1sendmsg",
        "__pyx_pw_5bench_11rdma_timing_15_TimedQueuePair_7post_write",
        "__pyx_pw_5bench_11rdma_timing_12_TimedDevice_5register",
        "__pyx_pf_5bench_11rdma_timing_12_TimedSocket_sendmsg",
    ]
    assert rdma_instructions.double_options(names) == [
        f"--dump-before={names[0]}",
        f"--dump-before={names[1]}",
        f"--toggle-collect={names[4]}",
        "--collect-atstart=yes",
    ]


def test_the_table_of_instructions_has_ratios():
    lines = rdma_instructions.table({"one awaited": {"tcp": 80_000.4, "rdma": 80_800.0}}).splitlines()
    assert lines == ["| | TCP | RDMA | |", "|---|---|---|---|", "| one awaited | 80,000 | 80,800 | 1.0100 |"]


@pytest.fixture
async def served():
    """Connectors and ports of a server of both transports, over the double."""
    fabric = SimulatedFabric()
    found = await rdma_link.serve({"rdma": RdmaListener(fabric), "tcp": StreamListener()}, "127.0.0.1", 0)
    connectors = {"rdma": RdmaConnector(fabric), "tcp": StreamConnector()}
    yield connectors, {name: listening.port for name, listening in found.items()}
    for listening in found.values():
        listening.close()
        await listening.wait_closed()
    # Connections that the server has ended are destroyed in a thread, after their clients are notified.
    await until(lambda: not any(fabric.live), pause=0.001)


async def test_both_transports_are_measured_between_client_and_server(served):
    connectors, ports = served
    found = await rdma_link.measure(
        "127.0.0.1", ports, connectors, rounds=2, stream_bytes=3_000_000, echoes=5, checked=True
    )
    labels = {f"echo of {size} bytes" for size in rdma_link.SIZES} | {"stream"}
    assert found.keys() == {f"{label}, {name}" for label in labels for name in ("RDMA", "TCP")}
    late = [figures.pop("loop_late_max_ms") for figures in found.values()]
    # In a few runs every timer fired as early as a loop may.
    assert any(late)
    assert all(value > 0 for of in found.values() for name, value in of.items() if "cpu" not in name)
    # The stream is gathered in place; the echoes' requests and the server's answers are copied.
    counters = connectors["rdma"].counters
    assert counters.bytes_sent > 6_000_000
    assert counters.bytes_copied < 1000
    assert "stream, RDMA: mib_s" in rdma_link.table(found)


@pytest.mark.parametrize("name", rdma.TRANSPORTS)
async def test_changed_bytes_are_detected(served, name, monkeypatch):
    connectors, ports = served
    payload = rdma_link.Payload(100_000)
    of_server = rdma_link._Served.data_received

    def tampered(self, data):
        changed = bytearray(data)
        changed[-1] ^= 1
        of_server(self, changed if len(changed) > rdma_link.REQUEST.size else data)

    monkeypatch.setattr(rdma_link._Served, "data_received", tampered)
    peer = await rdma_link._connected(connectors[name], "127.0.0.1", ports[name])
    with pytest.raises(rdma_link.WrongBytesError, match="1000 bytes came back changed"):
        await rdma_link.echo(peer, payload, 1000, 1)
    await rdma_link._close(peer)
    peer = await rdma_link._connected(connectors[name], "127.0.0.1", ports[name])
    with pytest.raises(rdma_link.WrongBytesError, match="50000 bytes with checksum"):
        await rdma_link.stream(peer, payload, 50_000, checked=True)
    await rdma_link._close(peer)


@pytest.mark.parametrize("name", rdma.TRANSPORTS)
async def test_a_foreign_client_is_disconnected(served, name):
    connectors, ports = served
    peer = await rdma_link._connected(connectors[name], "127.0.0.1", ports[name])
    await peer.write(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionError):
        await peer.read(1)
    await peer.ended.wait()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--double", "--work", "nine"], "no work has 'nine' in its name; there are: batches of 16 KiB"),
        (["--double", "--rounds", "0"], "must be at least 1"),
        (["--client", "nowhere"], "invalid address 'nowhere': give HOST:PORT"),
        ([], "one of the arguments --double --ticker --server --client is required"),
    ],
)
def test_a_mistake_on_the_command_line_ends_with_a_hint(capsys, arguments, hint):
    with pytest.raises(SystemExit) as ended:
        rdma.main(arguments)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


def test_a_missing_server_is_an_error_without_a_traceback(capsys, monkeypatch):
    monkeypatch.setattr(rdma_link, "connectors", lambda device, gid: {"tcp": StreamConnector()})
    assert rdma.main(["--client", "127.0.0.1:1"]) == 1
    assert "cannot connect to 127.0.0.1:1" in capsys.readouterr().err
