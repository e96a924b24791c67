"""``aioproducer rdma-gateway``: its options, and the command as a process between clients and a broker."""

from __future__ import annotations

import asyncio
import re
import signal
import socket

import pytest

from aioproducer import Producer
from aioproducer.cli.exits import FAILED, SUCCEEDED, USAGE, CommandUsageError
from aioproducer.cli.rdma_gateway import parse_address, parse_maps
from aioproducer.errors import KafkaError
from aioproducer.transport.listening import StreamListener
from tests.gateway.gated import SecureBroker
from tests.kafka.cluster import free_ports
from tests.waiting import know_topic

LISTEN = ("--listen", "127.0.0.1:0")
UPSTREAM = ("--upstream", "127.0.0.1:1")
SASL = ("-X", "security.protocol=SASL_PLAINTEXT")


@pytest.mark.parametrize(
    ("text", "address"),
    [("broker:9092", ("broker", 9092)), ("[::1]:1", ("::1", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_addresses_are_parsed(text, address):
    assert parse_address(text, "--upstream") == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("broker", "--upstream takes HOST:PORT, not 'broker'"),
        (":9092", "--upstream takes HOST:PORT, not ':9092'"),
        ("broker:0", "--upstream takes HOST:PORT, not 'broker:0'"),
        ("broker:65536", "--upstream takes HOST:PORT"),
        ("broker:x", "--upstream takes HOST:PORT"),
        ("::1:9092", r"put an IPv6 address in brackets: \[::1\]:9092"),
    ],
)
def test_other_texts_are_no_address(text, message):
    with pytest.raises(CommandUsageError, match=message):
        parse_address(text, "--upstream")


def test_maps_are_parsed():
    assert parse_maps([]) == {}
    texts = ["b1:1=g1:2", "[::1]:3=g2:4", "b1:1=g1:2"]
    assert parse_maps(texts) == {("b1", 1): ("g1", 2), ("::1", 3): ("g2", 4)}
    with pytest.raises(CommandUsageError, match="--map takes BROKER_HOST:PORT=GATEWAY_HOST:PORT, not 'b1:1'"):
        parse_maps(["b1:1"])
    with pytest.raises(CommandUsageError, match="--map b1:1 is given twice, with different gateways"):
        parse_maps(["b1:1=g1:2", "b1:1=g1:3"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (LISTEN, "Missing option '--upstream'"),
        (UPSTREAM, "Missing option '--listen'"),
        ((*LISTEN, *UPSTREAM, "--advertised-port", 1, "--port-offset", 1), "exclude each other"),
        ((*LISTEN, *UPSTREAM, "--transport", "tcp", "--device", "rxe0"), "--device and --gid need --transport rdma"),
        (
            ("--listen", "0.0.0.0:9192", *UPSTREAM),
            "needs --advertise HOST:PORT, the address at which clients reach this gateway",
        ),
        (("--listen", "h:1", "--upstream", "h:1"), "the gateway would connect to itself"),
        ((*LISTEN, *UPSTREAM, "-X", "security.protocol=SASL_SSL"), "sasl.mechanism is missing"),
        (
            (*LISTEN, *UPSTREAM, "--transport", "tcp", *SASL, "-X", "sasl.mechanism=OAUTHBEARER"),
            "sasl.mechanism OAUTHBEARER has no source of tokens",
        ),
        ((*LISTEN, *UPSTREAM, "-X", "lingerms=1"), "did you mean"),
    ],
)
def test_errors_of_the_command_line_are_wrong_usage(call, arguments, text):
    ended = call("rdma-gateway", *arguments)
    assert (ended.code, ended.out) == (USAGE, "")
    assert text in ended.err


def test_a_port_that_is_taken_is_an_error(call):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = call("rdma-gateway", "--listen", address, *UPSTREAM, "--transport", "tcp")
    assert (ended.code, ended.out) == (FAILED, "")
    assert f"cannot listen at {address}: Address already in use. Another program, or another gateway," in ended.err


def test_a_machine_without_rdma_is_an_error_at_start(call):
    """It is reported at the start, not with the first client."""
    ended = call("rdma-gateway", *LISTEN, *UPSTREAM, "--device", "no-such-device")
    assert (ended.code, ended.out) == (FAILED, "")
    assert len(ended.err.splitlines()) == 1
    assert "internal error" not in ended.err


@pytest.mark.programs
@pytest.mark.parametrize("rule", ["own", "advertise", "map", "offset", "port"])
def test_a_gateway_serves_clients_until_sigterm(commands, call, cluster, topic, rule):
    broker = cluster.bootstrap_servers
    port = int(broker.rpartition(":")[2])
    options, listen = [], "127.0.0.1:0"
    if rule in ("advertise", "map", "offset", "port"):
        (own,) = free_ports(1)
        listen = f"127.0.0.1:{own}"
        options = {
            "advertise": ["--advertise", listen],
            "map": ["--map", f"{broker}={listen}"],
            "offset": ["--port-offset", own - port],
            "port": ["--advertised-port", own],
        }[rule]
    gateway = commands.start(
        "rdma-gateway", "--transport", "tcp", "--listen", listen, "--upstream", broker, "--report", 0.05, *options
    )
    address = gateway.stdout.readline().decode().strip()
    assert address.startswith("127.0.0.1:")
    assert listen in (address, "127.0.0.1:0")
    ended = commands.run("produce", topic, "-", "-b", address, input_=b"one\ntwo\n")
    assert ended.code == SUCCEEDED, ended.err
    ended = call("consume", topic, "-b", address)
    assert sorted(ended.out.split()) == ["one", "two"]
    gateway.send_signal(signal.SIGTERM)
    out, err = gateway.communicate(timeout=100)
    assert (gateway.returncode, out) == (0, b"")
    lines = err.decode().splitlines()
    assert len(lines) > 1
    summary = re.fullmatch(
        r"aioproducer rdma-gateway: stopped; 0 clients; so far (\d+) accepted, (\d+) requests with \d+ bytes, (\d+) "
        r"responses with \d+ bytes, (\d+) of them rewritten",
        lines[-1],
    )
    assert summary is not None, lines[-1]
    accepted, requests, responses, rewritten = map(int, summary.groups())
    assert accepted >= 2
    assert requests >= responses >= rewritten >= 2


@pytest.mark.programs
@pytest.mark.parametrize("unmapped", ["refuse", "pass"])
def test_a_broker_without_a_gateway_is_counted(commands, call, cluster, topic, unmapped):
    """The broker advertises another address than the one of --upstream, which is in no map."""
    port = cluster.bootstrap_servers.rpartition(":")[2]
    gateway = commands.start(
        "rdma-gateway", "--transport", "tcp", "--listen", "127.0.0.1:0", "--upstream", f"localhost:{port}",
        "--unmapped", unmapped, "--report", 0,
    )  # fmt: skip
    address = gateway.stdout.readline().decode().strip()
    # A client that is refused waits for all of this time.
    ended = call("consume", topic, "-b", address, "--timeout", 20 if unmapped == "pass" else 5)
    assert ended.code == (SUCCEEDED if unmapped == "pass" else FAILED)
    gateway.send_signal(signal.SIGINT)
    _, err = gateway.communicate(timeout=100)
    received = cluster.bootstrap_servers if unmapped == "pass" else f"127.0.0.1.no-gateway.invalid:{port}"
    assert (
        f"No gateway is known for the broker at {cluster.bootstrap_servers}: clients receive {received}."
        in err.decode()
    )
    assert re.search(r", \d+ addresses without a gateway$", err.decode().strip())


@pytest.mark.programs
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_gateway_authenticates_to_its_broker(commands, monkeypatch, tmp_path, mechanism):
    """Its password is read again for each connection."""
    broker = SecureBroker()
    listening = await StreamListener().listen("127.0.0.1", 0, broker.accept)
    password = tmp_path / "password"
    password.write_text("wr0ng-passw0rd\n")
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.username=alice\n"
        "config.providers=dir\n"
        "config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider\n"
        f"sasl.password=${{dir:{tmp_path}:password}}\n"
    )
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    gateway = commands.start(
        "rdma-gateway", "--transport", "tcp", "--listen", listen, "--upstream", f"127.0.0.1:{listening.port}",
        "--map", f"broker1:9092={listen}", "--config", properties,
    )  # fmt: skip
    assert (await asyncio.to_thread(gateway.stdout.readline)).decode().strip() == listen
    async with Producer(bootstrap_servers=listen, max_block_ms=1000) as producer:
        with pytest.raises(KafkaError):
            await producer.send("clicks", b"value")
        password.write_text("right")
        await know_topic(producer, "clicks")
        await producer.send("clicks", b"value")
    gateway.send_signal(signal.SIGTERM)
    out, err = await asyncio.to_thread(gateway.communicate, timeout=100)
    listening.close()
    await listening.wait_closed()
    assert (gateway.returncode, out) == (0, b"")
    assert broker.world.cluster.values("clicks") == [b"value"]
    lines = err.decode().splitlines()
    (warning,) = [line for line in lines if "cannot authenticate" in line]
    assert "Check user name" in warning
    assert re.search(r", \d+ failed authentications to the broker$", lines[-1])
    assert "passw0rd" not in err.decode()
