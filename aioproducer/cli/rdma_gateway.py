"""``aioproducer rdma-gateway``: connect RDMA clients to a broker that speaks TCP."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from aioproducer.cli.broker import EVERYWHERE, GREATEST_PORT, parse_listen
from aioproducer.cli.exits import EXPLANATION, SUCCEEDED, CommandError, CommandUsageError
from aioproducer.cli.options import client_config, diagnosis_options, log_warnings, secret_option
from aioproducer.cli.output import note
from aioproducer.cli.running import Interruption, run

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig
    from aioproducer.core.requests.authenticator import Login
    from aioproducer.gateway import Gateway
    from aioproducer.transport.base import Connector, Listener

_Address = tuple[str, int]


def parse_address(text: str, option: str) -> _Address:
    """Return host and port.

    Raises:
        CommandUsageError: it is no address.
    """
    host, colon, port_text = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise CommandUsageError(f"{option} {text}: put an IPv6 address in brackets: [{host}]:{port_text}")
    if not colon or not host or not port_text.isdecimal() or not 0 < int(port_text) <= GREATEST_PORT:
        raise CommandUsageError(f"{option} takes HOST:PORT, not {text!r}")
    return host, int(port_text)


def parse_maps(texts: Sequence[str]) -> dict[_Address, _Address]:
    """Return ``BROKER_HOST:PORT=GATEWAY_HOST:PORT`` options as a mapping.

    Raises:
        CommandUsageError: one has another form, or two name different gateways for a broker.
    """
    found: dict[_Address, _Address] = {}
    for text in texts:
        broker_text, equals, gateway_text = text.partition("=")
        if not equals:
            raise CommandUsageError(f"--map takes BROKER_HOST:PORT=GATEWAY_HOST:PORT, not {text!r}")
        broker, gateway = parse_address(broker_text, "--map"), parse_address(gateway_text, "--map")
        if found.setdefault(broker, gateway) != gateway:
            raise CommandUsageError(f"--map {broker_text} is given twice, with different gateways")
    return found


@click.command("rdma-gateway", epilog=EXPLANATION)
@click.option(
    "--listen", required=True, metavar="HOST:PORT", help="Address for RDMA clients. Port 0 selects a free one."
)
@click.option("--upstream", required=True, metavar="HOST:PORT", help="The broker of this gateway.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Address for clients instead of --upstream.  [default: --listen, unless a rule below applies]",
)
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="BROKER=GATEWAY",
    help="The gateway of a broker, both as HOST:PORT, the broker as advertised. Repeat it for each broker.",
)
@click.option("--advertised-port", type=click.IntRange(1, GREATEST_PORT), help="Other gateways: same host, this port.")
@click.option("--port-offset", type=int, metavar="N", help="Other gateways: same host, the broker's port plus N.")
@click.option(
    "--unmapped",
    type=click.Choice(["refuse", "pass"]),
    default="refuse",
    show_default=True,
    help="Address of brokers without a gateway: a name that does not exist, or the broker's own address.",
)
@click.option(
    "--max-connections", type=click.IntRange(min=1), default=1000, show_default=True, help="Limit of clients."
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time to wait for outstanding responses before it stops.",
)
@click.option(
    "--report",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval of traffic reports, omitted without traffic; 0 for none.",
)
@click.option(
    "--transport",
    type=click.Choice(["rdma", "tcp"]),
    default="rdma",
    show_default=True,
    help="Transport of clients; tcp is for tests of a set-up without RDMA.",
)
@click.option("--device", metavar="NAME", help="The RDMA device, such as mlx5_0.  [default: the first that is up]")
@click.option("--gid", metavar="ADDRESS", help="The address of the device.  [default: the first that works]")
@click.option("--config", "config_file", type=click.Path(), metavar="FILE", help="A properties file with client keys.")
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A client key for the connection to the broker, as -X security.protocol=SSL; overrides --config. With SASL, "
    "the gateway authenticates and its clients must not; otherwise SASL is between each client and the broker.",
)
@secret_option
@diagnosis_options
def command(
    listen: str,
    upstream: str,
    advertise: str | None,
    maps: tuple[str, ...],
    advertised_port: int | None,
    port_offset: int | None,
    unmapped: str,
    max_connections: int,
    drain: float,
    report: float,
    transport: str,
    device: str | None,
    gid: str | None,
    config_file: str | None,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
) -> int:
    """Let RDMA clients use an Apache Kafka broker, until Ctrl-C or SIGTERM.

    Run one gateway beside each broker. It forwards requests and responses, and replaces the addresses of brokers by
    those of their gateways. The first rule that applies selects the address: --map; --advertise for the broker at
    --upstream; --advertised-port or --port-offset. When the gateway is ready, it prints its address on stdout.

    \b
    Examples:
      aioproducer rdma-gateway --listen 0.0.0.0:9192 --upstream localhost:9092 --port-offset 100
      aioproducer rdma-gateway --listen 10.0.0.1:9192 --upstream 10.0.0.1:9092 \\
          --map 10.0.0.2:9092=10.0.0.2:9192 -X security.protocol=SSL
      aioproducer rdma-gateway --listen 10.0.0.1:9192 --upstream 10.0.0.1:9092 -X security.protocol=SASL_SSL \\
          -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=gateway --secret sasl.password=env:GATEWAY_PASSWORD
    """
    if advertised_port is not None and port_offset is not None:
        raise CommandUsageError("--advertised-port and --port-offset exclude each other")
    if transport == "tcp" and (device is not None or gid is not None):
        raise CommandUsageError("--device and --gid need --transport rdma")
    host, (port,) = parse_listen(listen, 1)
    broker = parse_address(upstream, "--upstream")
    if (host, port) == broker:
        raise CommandUsageError(
            f"--listen and --upstream are both {upstream}, so the gateway would connect to itself: choose another port"
        )
    exact = parse_maps(maps)
    by_rule = advertised_port is not None or port_offset is not None
    advertised = None if advertise is None else parse_address(advertise, "--advertise")
    if host in EVERYWHERE and advertised is None and not by_rule and broker not in exact:
        raise CommandUsageError(
            f"--listen {listen} needs --advertise HOST:PORT, the address at which clients reach this gateway"
        )
    config = client_config(upstream, settings, secrets, config_file)
    log_warnings()

    from aioproducer.config import ProducerConfig
    from aioproducer.gateway import AddressMap, Gateway, GatewaySettings

    producer_config = ProducerConfig.from_mapping(config)
    address_map = AddressMap(exact, port=advertised_port, port_offset=port_offset, pass_unmapped=unmapped == "pass")
    if advertised is not None and broker not in exact:
        address_map.add(broker, advertised)
    gateway = Gateway(
        _listener(transport, device, gid),
        _connector(producer_config),
        broker,
        address_map,
        GatewaySettings(
            max_connections=max_connections,
            connect_timeout=producer_config.socket_connection_setup_timeout_max_ms / 1000,
            # Without the key the configuration would have a producer's client id.
            client_id=str(config.get("client.id", GatewaySettings().client_id)),
            uses_tls=producer_config.uses_tls,
        ),
        make_login=(lambda: _login(producer_config)) if producer_config.uses_sasl else None,
    )
    is_own_address = broker not in exact and advertised is None and not by_rule
    return run(lambda interruption: _serve(interruption, gateway, host, port, drain, report, is_own_address))


def _listener(transport: str, device: str | None, gid: str | None) -> Listener:
    if transport == "tcp":
        from aioproducer.transport.listening import StreamListener

        return StreamListener()
    from aioproducer.transport.rdma import RdmaListener

    return RdmaListener(device=device, gid=gid)


def _connector(config: ProducerConfig) -> Connector:
    from aioproducer.security import context_source_from
    from aioproducer.transport.stream import StreamConnector

    return StreamConnector(
        context_source_from(config, config.ssl_certificate_poll_interval_ms / 1000),
        send_buffer_bytes=config.send_buffer_bytes,
        receive_buffer_bytes=config.receive_buffer_bytes,
    )


def _login(config: ProducerConfig) -> Login:
    from random import Random

    from aioproducer.security.login import login_from

    return login_from(config, asyncio.get_running_loop(), Random(), logging.getLogger("aioproducer.gateway"))


async def _serve(
    interruption: Interruption,
    gateway: Gateway,
    host: str,
    port: int,
    drain: float,
    report: float,
    is_own_address: bool,
) -> int:
    try:
        await gateway.start(host, port)
    except OSError as error:
        raise CommandError(_why_not(error, host)) from error
    reporting = asyncio.ensure_future(_report(gateway, report)) if report else None
    try:
        if is_own_address:
            gateway.address_map.add(gateway.upstream, (host, gateway.port))
        print(f"[{host}]:{gateway.port}" if ":" in host else f"{host}:{gateway.port}", flush=True)
        await interruption.wait()
    finally:
        if reporting is not None:
            reporting.cancel()
        await gateway.stop(drain)
    note("rdma-gateway", f"stopped; {_passed(gateway.metrics())}")
    return SUCCEEDED


async def _report(gateway: Gateway, interval: float) -> None:
    """Print the traffic so far, if it has changed since the last report."""
    said = gateway.metrics()
    while True:
        await asyncio.sleep(interval)
        metrics = gateway.metrics()
        if metrics != said:
            said = metrics
            note("rdma-gateway", _passed(metrics))


def _passed(metrics: Mapping[str, int]) -> str:
    text = (
        f"{metrics['connections']} clients; so far {metrics['connections_accepted']} accepted, "
        f"{metrics['requests']} requests with {metrics['bytes_from_clients']} bytes, {metrics['responses']} responses "
        f"with {metrics['bytes_from_broker']} bytes, {metrics['responses_rewritten']} of them rewritten"
    )
    for name, meaning in _TROUBLES.items():
        if metrics[name]:
            text += f", {metrics[name]} {meaning}"
    return text


_TROUBLES = {
    "connections_refused": "clients refused",
    "upstream_failures": "failed connections to the broker",
    "login_failures": "failed authentications to the broker",
    "addresses_unmapped": "addresses without a gateway",
    "responses_shortened": "responses without leaders' addresses",
}


def _why_not(error: OSError, host: str) -> str:
    text = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return f"{text}. Another program, or another gateway, uses the port: choose one with --listen {host}:PORT."
    return text
