"""The demo: the tool sends real data to a broker, and another project's client reads it back.

make demo                          with the embedded broker, in the folder .demo/broker
make demo BOOTSTRAP=host:9092      with your own Kafka
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flights import KEY, Digest, airlines, source_digests
from processes import broker, run
from readback import ReadBack, Reader
from rich import box
from rich.table import Table
from stage import PARTITIONS, DemoError, add_arguments, alone, console, exit_code, flights_of

CODEC = "zstd"


def _produce(bootstrap_servers: str, topic: str, data: Path) -> dict[str, Any]:
    arguments = ["produce", topic, str(data), "--bootstrap-server", bootstrap_servers, "--format", "jsonl"]
    arguments += ["--key", KEY, "-X", f"compression.type={CODEC}", "--json"]
    console.print(f"[bold]produce[/]  aioproducer {' '.join(arguments)}", soft_wrap=True)
    summary: dict[str, Any] = json.loads(run(*arguments))
    return summary


def _compare(source: dict[str, Digest], found: ReadBack) -> bool:
    """Print the counts of every carrier, sent and read; return whether all are equal."""
    names = airlines()
    table = Table(title="Flights by carrier: the source, and what confluent-kafka read", box=box.SIMPLE_HEAD)
    table.add_column("key", no_wrap=True, min_width=3)
    table.add_column("carrier", overflow="ellipsis", no_wrap=True, max_width=18)
    table.add_column("partition", justify="right", no_wrap=True)
    table.add_column("source", justify="right", no_wrap=True)
    table.add_column("read", justify="right", no_wrap=True)
    table.add_column("sha256", no_wrap=True)
    table.add_column("equal", no_wrap=True)
    for carrier in sorted(source.keys() | found.digests.keys()):
        expected, got = source.get(carrier, Digest()), found.digests.get(carrier, Digest())
        partitions = ", ".join(map(str, sorted(found.partitions.get(carrier, ()))))
        equal = "yes" if expected.hex() == got.hex() else "[bold red]NO[/]"
        name = names.get(carrier, "")
        counts = f"{expected.count:,}", f"{got.count:,}"
        table.add_row(carrier, name, partitions, *counts, got.hex()[:8], equal)
    table.add_section()
    total = sum(digest.count for digest in source.values())
    same = {carrier: digest.hex() for carrier, digest in source.items()} == {
        carrier: digest.hex() for carrier, digest in found.digests.items()
    }
    table.add_row("", "all", "", f"{total:,}", f"{found.records:,}", "", "yes" if same else "[bold red]NO[/]")
    console.print(table)
    return same


def _rates(summary: dict[str, Any], found: ReadBack) -> None:
    table = Table(title="What happened", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in ("records", "MB", "seconds", "records/s", "MB/s"):
        table.add_column(name, justify="right")
    rows = {
        "aioproducer produce": (summary["records"], summary["bytes"], summary["seconds"]),
        "confluent-kafka, rows checked": (found.records, found.size, found.seconds),
    }
    for name, (records, size, seconds) in rows.items():
        rate, throughput = records / seconds, size / 1e6 / seconds
        table.add_row(name, f"{records:,}", f"{size / 1e6:.1f}", f"{seconds:.2f}", f"{rate:,.0f}", f"{throughput:.1f}")
    console.print(table)
    latency, sent = summary["latency_ms"], summary["batch_bytes_sent"] / 1e6
    console.print(
        f"{summary['batches']:,} batches, {sent:.1f} MB by {CODEC}, acked after {latency['p50']:.0f} ms (p50) "
        f"and {latency['p99']:.0f} ms (p99); {summary['records_retried']} records sent again",
        soft_wrap=True,
    )


def _what_next(own: str | None, topic: str, folder: Path) -> None:
    tool = Path(sys.executable).parent / "aioproducer"
    if own is not None:
        console.print(f"The records stay in topic {topic}. To remove it:")
        console.print(f"  {tool} topics delete {topic} --bootstrap-server {own}", soft_wrap=True)
        return
    console.print(f"The broker's folder stays: {folder.absolute()}. To look at it:", soft_wrap=True)
    console.print(f"  {tool} broker --listen 127.0.0.1:9092 --data {folder} &", soft_wrap=True)
    console.print(f"  {tool} consume {topic} --bootstrap-server 127.0.0.1:9092 --max-records 3", soft_wrap=True)
    console.print("or with Apache Kafka, as the files have its format:")
    segment = max(folder.rglob(f"{topic}-*/*.log"), key=lambda log: log.stat().st_size, default=folder)
    console.print(f"  kafka-dump-log.sh --print-data-log --files {segment}", soft_wrap=True)
    console.print("With your own Kafka instead: [bold]make demo BOOTSTRAP=host:9092[/]")


def demo(folder: Path, own: str | None, topic: str, timeout: float) -> None:
    """Run the first stage, from the source to the comparison."""
    with alone(folder):
        data = flights_of(folder)
        log = folder / "broker"
        if own is None and log.exists():
            shutil.rmtree(log)
        with nullcontext(own) if own is not None else broker("--listen", "127.0.0.1:0", "--data", str(log)) as address:
            kind = "your Kafka" if own is not None else f"embedded, in {log}"
            console.print(f"[bold]broker[/]   {address} ({kind})")
            run(
                *("topics", "create", topic, "--bootstrap-server", address),
                *("--partitions", str(PARTITIONS), "--if-not-exists", "--timeout", str(timeout)),
            )
            reader = Reader(address, topic)
            try:
                summary = _produce(address, topic, data)
                console.print("[bold]read[/]     by confluent-kafka, every row compared with the source")
                found = reader.read()
            finally:
                reader.close()
        same = _compare(source_digests(), found)
        _rates(summary, found)
        _what_next(own, topic, log)
    if not same:
        raise DemoError("the records that were read differ from the produced ones")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="demo", description="Send flights to Kafka, read them back, and compare every row."
    )
    add_arguments(parser)
    parser.add_argument("--topic", default="flights", help="default: %(default)s")
    arguments = parser.parse_args()
    return exit_code(lambda: demo(arguments.folder, arguments.bootstrap, arguments.topic, arguments.timeout))


if __name__ == "__main__":
    sys.exit(main())
