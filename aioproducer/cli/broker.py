"""``aioproducer broker``: the embedded broker as a process."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

import click

from aioproducer.cli.exits import EXPLANATION, SUCCEEDED, CommandError, CommandUsageError
from aioproducer.cli.options import diagnosis_options, log_warnings, pairs
from aioproducer.cli.output import note
from aioproducer.cli.running import Interruption, run

GREATEST_PORT = 65535
EVERYWHERE = ("0.0.0.0", "::")


def parse_listen(text: str, nodes: int) -> tuple[str, list[int]]:
    """Return the host and a port for each node, counting up from the given one; 0 selects free ports.

    Raises:
        CommandUsageError: it is no address.
    """
    host, colon, port_text = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise CommandUsageError(f"--listen {text}: put an IPv6 address in brackets: [{host}]:{port_text}")
    if not colon or not host or not port_text.isdecimal():
        raise CommandUsageError(f"--listen takes HOST:PORT, not {text!r}")
    first = int(port_text)
    if first == 0:
        return host, [0] * nodes
    if first + nodes - 1 > GREATEST_PORT:
        raise CommandUsageError(
            f"--listen {text}: {nodes} ports from {first} on exceed the maximum {GREATEST_PORT}: choose a lower port"
        )
    return host, list(range(first, first + nodes))


@click.command("broker", epilog=EXPLANATION)
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the first node; further nodes use the next ports. Port 0 selects free ports.",
)
@click.option("--advertise", metavar="HOST", help="Host name for clients instead of HOST; required with 0.0.0.0.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Number of brokers.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Keep the records in this folder.")
@click.option("--memory", is_flag=True, help="Keep the records in memory, until the broker stops.  [default]")
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A key of Kafka's server.properties, as -X num.partitions=6.",
)
@diagnosis_options
def command(
    listen: str, advertise: str | None, nodes: int, data: Path | None, memory: bool, settings: tuple[str, ...]
) -> int:
    """Run an embedded Kafka broker until Ctrl-C or SIGTERM.

    When the broker is ready, it prints the bootstrap address on stdout, on a line of its own. It has no authentication:
    any client that reaches the port can read and write. Listen on other addresses than this machine's with care.

    \b
    Examples:
      aioproducer broker
      aioproducer broker --nodes 3 --data ./kafka -X min.insync.replicas=2
      aioproducer broker --listen 0.0.0.0:9092 --advertise kafka.example.org
    """
    if memory and data is not None:
        raise CommandUsageError("--memory and --data exclude each other")
    host, ports = parse_listen(listen, nodes)
    if host in EVERYWHERE and advertise is None:
        raise CommandUsageError(
            f"--listen {listen} needs --advertise HOST, the name by which clients reach this machine"
        )
    properties = pairs(settings, "-X")
    log_warnings()
    return run(lambda interruption: _serve(interruption, host, ports, advertise, data, properties))


async def _serve(
    interruption: Interruption,
    host: str,
    ports: list[int],
    advertise: str | None,
    data: Path | None,
    properties: Mapping[str, str],
) -> int:
    from aioproducer.broker import BrokerCluster

    cluster = BrokerCluster(
        len(ports), host=host, ports=ports, advertised_host=advertise, data_dir=data, properties=properties
    )
    try:
        await cluster.start()
    except OSError as error:
        raise CommandError(_why_not(error, host, data)) from error
    try:
        print(cluster.bootstrap_servers, flush=True)
        await interruption.wait()
    finally:
        await cluster.stop()
    where = "its records were in memory and are lost" if data is None else f"records are in {data}"
    note("broker", f"stopped; {where}")
    return SUCCEEDED


def _why_not(error: OSError, host: str, data: Path | None) -> str:
    text = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return f"{text}. Another program, or another broker, uses the port: choose one with --listen {host}:PORT."
    if data is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}. The broker cannot keep its records there: see --data."
    return text
