"""The layer on pyverbs without a device: its choice of a port, and its errors."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

import pytest

from aioproducer import Producer
from aioproducer.errors import ConfigurationError
from aioproducer.transport.rdma.ports import Port, choose_port
from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer
from aioproducer.transport.rdma.verbs import RdmaUnavailableError


def _port(address: str, device: str = "mlx5_0", *, roce_v2: bool = True, number: int = 1) -> Port:
    parsed = ipaddress.ip_address(address)
    gid = parsed.packed if parsed.version == 6 else ipaddress.IPv6Address(f"::ffff:{address}").packed
    return Port(device, number, gid, 0, roce_v2, 4096)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("192.0.2.1", "fe80::1"),
        ("2001:db8::1", "fe80::1"),
        ("127.0.0.1", "fe80::1"),
        ("192.0.2.1", "2001:db8::1"),
        ("192.0.2.1", "169.254.3.4"),
        ("2001:db8::1", "127.0.0.1"),
    ],
)
def test_the_address_that_most_peers_reach_is_chosen(better: str, worse: str) -> None:
    ports = [_port(worse, number=1), _port(better, number=2)]
    assert choose_port(ports, None, []) is ports[1]
    assert choose_port(reversed(ports), None, []) is ports[1]


def test_udp_is_preferred_to_bare_ethernet() -> None:
    ports = [_port("192.0.2.1", roce_v2=False), _port("2001:db8::1", roce_v2=True)]
    assert choose_port(ports, None, []) is ports[1]


def test_the_first_of_equal_addresses_is_chosen() -> None:
    ports = [_port("192.0.2.1", "mlx5_0"), _port("192.0.2.2", "mlx5_1")]
    assert choose_port(ports, None, []) is ports[0]


def test_a_link_local_address_is_the_last_resort() -> None:
    only = _port("fe80::1")
    assert choose_port([only], None, []) is only


@pytest.mark.parametrize("text", ["192.0.2.7", "::ffff:192.0.2.7", "0000:0000:0000:0000:0000:ffff:c000:0207"])
def test_an_address_is_accepted_in_any_form(text: str) -> None:
    wanted = _port("192.0.2.7", number=2)
    assert choose_port([_port("192.0.2.1"), wanted, _port("fe80::1")], text, []) is wanted


def test_an_address_that_no_port_has_is_an_error() -> None:
    with pytest.raises(
        RdmaUnavailableError, match=r"no RDMA port has the address 192\.0\.2\.9: mlx5_0 has 192\.0\.2\.1"
    ):
        choose_port([_port("192.0.2.1")], "192.0.2.9", [])
    with pytest.raises(ConfigurationError, match="gid must be the IP address of an RDMA port, not 'broker-1'"):
        choose_port([_port("192.0.2.1")], "broker-1", [])


def test_without_a_usable_port_the_error_has_the_reasons() -> None:
    with pytest.raises(
        RdmaUnavailableError, match=r"no RDMA device has a port that can be used: port 1 of rxe0 is down"
    ):
        choose_port([], None, ["port 1 of rxe0 is down"])


def test_the_error_without_pyverbs_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget_pyverbs(monkeypatch)
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    with pytest.raises(
        RdmaUnavailableError, match=r"RDMA needs pyverbs: .*pip install aioproducer\[rdma\].*python3-pyverbs"
    ):
        PyverbsLayer()


def test_the_error_without_libibverbs_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exception is that of pyverbs' first extension module after libibverbs was removed."""
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "device.py").write_text("raise ImportError('libibverbs.so.1: cannot open shared object file')")
    _forget_pyverbs(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RdmaUnavailableError, match=r"cannot be loaded: libibverbs\.so\.1: .*apt install libibverbs1"):
        PyverbsLayer()


@pytest.fixture
def without_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate pyverbs on a machine without a card."""
    package = tmp_path / "pyverbs"
    package.mkdir()
    for module in ("__init__", "pd", "mr", "cq", "qp", "wr", "addr"):
        (package / f"{module}.py").touch()
    (package / "device.py").write_text("def get_device_list(): return []")
    (package / "pyverbs_error.py").write_text("class PyverbsError(Exception): pass")
    _forget_pyverbs(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("without_device")
def test_starting_a_producer_without_a_device_fails_at_once() -> None:
    with pytest.raises(
        ConfigurationError, match=r"transport 'rdma' cannot be used: there is no RDMA device: .*modprobe rdma_rxe"
    ):
        Producer(bootstrap_servers="localhost:9092", transport="rdma")


@pytest.mark.usefixtures("without_device")
def test_rdma_with_fallback_uses_tcp_without_a_device(caplog: pytest.LogCaptureFixture) -> None:
    Producer(bootstrap_servers="localhost:9092", transport="rdma,tcp")
    assert "No RDMA, connecting by TCP: there is no RDMA device" in caplog.text


def _forget_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
