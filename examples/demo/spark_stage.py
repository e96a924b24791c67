"""The second stage of the demo: Spark joins and counts, the sink writes the results, and all of them are checked.

The pipeline is examples/spark/delays.py, unchanged. The expected results are computed from the same files without
Spark; confluent-kafka reads the actual ones.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import needs
from flights import airlines, package
from processes import broker, program, run
from readback import Reader
from rich import box
from rich.table import Table
from spark_check import AnyOrder, Topic, expected, read
from stage import PARTITIONS, DemoError, add_arguments, alone, console, exit_code, flights_of

PIPELINE = Path(__file__).parents[1] / "spark" / "delays.py"
FLIGHTS = "flights-in-context"
DELAYS = "delays"


def _environment(folder: Path, java: dict[str, str]) -> dict[str, str]:
    """Return an environment for Spark on this machine alone, regardless of the terminal's settings."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "HADOOP_")) and name != "JAVA_HOME"
    }
    scratch = folder.absolute() / "spark"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    arguments = ["--master", "local[2]", "--driver-memory", "1g"]
    for name, value in settings.items():
        arguments += ["--conf", f"{name}={value}"]
    return {
        **inherited,
        **java,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*arguments, "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
        # The machine may be unable to resolve its own name.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch),
    }


def _run_pipeline(folder: Path, java: dict[str, str], bootstrap_servers: str, flights: Path) -> float:
    """Run the pipeline and return the seconds that it took."""
    arguments = ["--flights", str(flights), "--bootstrap-servers", bootstrap_servers]
    for name in ("weather", "planes"):
        arguments += [f"--{name}", str(package() / f"{name}.csv")]
    arguments += ["--flights-topic", FLIGHTS, "--delays-topic", DELAYS]
    console.print(f"[bold]spark[/]    python {PIPELINE.name} {shlex.join(arguments)}", soft_wrap=True)
    began = time.perf_counter()
    command = [sys.executable, str(PIPELINE), *arguments]
    for line in program(command, _environment(folder, java), folder / "spark.log"):
        console.print(f"         {line}", soft_wrap=True)
    return time.perf_counter() - began


def _equal(equal: bool) -> str:
    return "yes" if equal else "[bold red]NO[/]"


def _compare_flights(source: Topic, found: Topic) -> None:
    names = airlines()
    table = Table(title="Flights with weather and planes: computed without Spark, and read", box=box.SIMPLE_HEAD)
    table.add_column("key", no_wrap=True, min_width=3)
    table.add_column("carrier", overflow="ellipsis", no_wrap=True, max_width=18)
    for name in ("partition", "computed", "read"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sha256", no_wrap=True)
    table.add_column("equal", no_wrap=True)
    for carrier in sorted(source.digests.keys() | found.digests.keys()):
        want, got = source.digests.get(carrier, AnyOrder()), found.digests.get(carrier, AnyOrder())
        table.add_row(
            *(carrier, names.get(carrier, "")),
            ", ".join(map(str, sorted(found.partitions.get(carrier, ())))),
            *(f"{want.count:,}", f"{got.count:,}", got.hex()[:8], _equal(want.hex() == got.hex())),
        )
    table.add_section()
    table.add_row("", "all", "", f"{source.records:,}", f"{found.records:,}", "", _equal(found.same_as(source)))
    console.print(table)


def _compare_delays(source: Topic, found: Topic) -> None:
    table = Table(title="Delays by carrier and hour of the day: what was read", box=box.SIMPLE_HEAD)
    table.add_column("key", no_wrap=True)
    for name in ("hours", "flights", "cancelled", "mean delay", "worst at", "then"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("equal", no_wrap=True)
    for carrier in sorted({row["carrier"] for row in source.rows + found.rows}):
        rows = [row for row in found.rows if row["carrier"] == carrier]
        late = [row for row in rows if row["mean_delay"] is not None]
        departed = sum(row["flights"] - row["cancelled"] for row in late)
        minutes = sum(row["minutes_late"] for row in late)
        worst = max(late, key=lambda row: row["mean_delay"], default=None)
        same = _rows_of(source, carrier) == _rows_of(found, carrier)
        table.add_row(
            *(carrier, str(len(rows))),
            *(f"{sum(row[name] for row in rows):,}" for name in ("flights", "cancelled")),
            f"{minutes / departed:.1f}" if departed else "",
            *((f"{worst['hour']}:00", f"{worst['mean_delay']:.1f}") if worst is not None else ("", "")),
            _equal(same),
        )
    table.add_section()
    flights = sum(row["flights"] for row in found.rows)
    table.add_row("all", f"{found.records:,}", f"{flights:,}", "", "", "", "", _equal(found.same_as(source)))
    console.print(table)


def _rows_of(topic: Topic, carrier: str) -> list[list[tuple[str, object]]]:
    return sorted(sorted(row.items()) for row in topic.rows if row["carrier"] == carrier)


def _rates(spark: str, seconds: float, topics: list[Topic]) -> None:
    records, size = sum(topic.records for topic in topics), sum(topic.size for topic in topics) / 1e6
    table = Table(title="What happened", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in ("records", "MB", "seconds"):
        table.add_column(name, justify="right")
    reading = sum(topic.seconds for topic in topics)
    for name, took in {
        f"Spark {spark}, from its start to its end": seconds,
        "confluent-kafka, rows checked": reading,
    }.items():
        table.add_row(name, f"{records:,}", f"{size:.1f}", f"{took:.2f}")
    console.print(table)


def _what_next(own: str | None, folder: Path) -> None:
    tool = Path(sys.executable).parent / "aioproducer"
    console.print(f"What Spark and the sink logged: {folder / 'spark.log'}", soft_wrap=True)
    if own is not None:
        console.print("The records stay in two topics. To remove them:")
        for topic in (FLIGHTS, DELAYS):
            console.print(f"  {tool} topics delete {topic} --bootstrap-server {own}", soft_wrap=True)
        return
    console.print("Both topics stay in the broker's folder. To look at them:")
    console.print(f"  {tool} broker --listen 127.0.0.1:9092 --data {folder / 'broker'} &", soft_wrap=True)
    console.print(f"  {tool} consume {DELAYS} --bootstrap-server 127.0.0.1:9092 --max-records 3", soft_wrap=True)


def spark_stage(folder: Path, own: str | None, timeout: float) -> None:
    """Run the second stage, from its requirements to the comparison."""
    spark = needs.spark()
    with alone(folder), ExitStack() as stack:
        java = needs.java(folder)
        flights = flights_of(folder)
        log = folder / "broker"
        address = stack.enter_context(
            nullcontext(own) if own is not None else broker("--listen", "127.0.0.1:0", "--data", str(log))
        )
        kind = "your Kafka" if own is not None else f"embedded, in {log}"
        console.print(f"[bold]broker[/]   {address} ({kind})")
        readers = []
        for topic in (FLIGHTS, DELAYS):
            run(
                *("topics", "create", topic, "--bootstrap-server", address),
                *("--partitions", str(PARTITIONS), "--if-not-exists", "--timeout", str(timeout)),
            )
            readers.append(Reader(address, topic))
            stack.callback(readers[-1].close)
        seconds = _run_pipeline(folder, java, address, flights)
        console.print(
            "[bold]read[/]     by confluent-kafka, every row compared with what is computed without Spark",
            soft_wrap=True,
        )
        found = [read(reader, keep=reader is readers[-1]) for reader in readers]
        stack.close()
        source = expected()
        _compare_flights(source[0], found[0])
        _compare_delays(source[1], found[1])
        _rates(spark, seconds, found)
        _what_next(own, folder)
    if not all(got.same_as(want) for got, want in zip(found, source, strict=True)):
        raise DemoError("the records that were read differ from the expected ones")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="demo", description="Write results of Spark to Kafka, read them back, and compare every row."
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    return exit_code(lambda: spark_stage(arguments.folder, arguments.bootstrap, arguments.timeout))


if __name__ == "__main__":
    sys.exit(main())
