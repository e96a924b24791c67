"""The scenarios, as data. A row of a scenario is a client and its work, with the options that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aioproducer._common.texts import counted
from bench.clients import CLIENTS


@dataclass(frozen=True)
class Metric:
    """A figure of a measurement: its key, its name in plots, and its format."""

    key: str
    title: str
    form: str = ",.2f"


CPU = Metric("cpu_us", "CPU µs a record", ",.3f")
RATE = Metric("rate", "records/s", ",.0f")
P50 = Metric("p50_us", "p50 µs", ",.1f")
P99 = Metric("p99_us", "p99 µs", ",.1f")
P999 = Metric("p99.9_us", "p99.9 µs", ",.1f")
LONGEST = Metric("max_us", "longest µs", ",.0f")
TRANSACTIONS = Metric("transaction_rate", "transactions/s", ",.1f")
TRANSACTION_CPU = Metric("transaction_cpu_ms", "CPU ms a transaction", ",.3f")
# The previous transaction had not ended at the broker, which tries again after 20 ms.
HELD = Metric("held_share", "first batch held back", ".1%")
BROKER_CPU = Metric("broker_cpu_us", "broker CPU µs a record", ",.3f")


@dataclass(frozen=True)
class Row:
    """``options`` are fields of a Job over the scenario's; ``name`` is the client's if not given."""

    client: str
    work: str
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    # The row with the average number of records in a batch that this row needs.
    batches_of: str = ""

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return self.name or self.client


@dataclass(frozen=True)
class Scenario:
    """A scenario: ``records`` and ``warm_up`` of each run; ``quick`` replaces fields of the Job in quick runs."""

    name: str
    title: str
    rows: tuple[Row, ...]
    metrics: tuple[Metric, ...] = (CPU, RATE)
    options: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    # Maximum number of rounds, for long runs that vary little.
    most_rounds: int = 1000
    # Omitted with --quick unless selected.
    slow: bool = False
    # Two for 20,000 partitions: a broker has a file open for each, and one process may often open no more.
    brokers: int = 1
    # Values are text of 500 bytes instead of 100 bytes.
    text: bool = False
    # Logarithmic axis, for values far apart.
    logarithmic: bool = False


def _rows(work: str, *clients: str, **options: Any) -> tuple[Row, ...]:
    return tuple(Row(client, work, options=options) for client in clients)


OURS = ("aioproducer (uvloop)", "aioproducer (asyncio)")
# The warm-up exceeds a buffer of 32 MiB, because the first access to each page is expensive.
_SENDING = {"records": 1_000_000, "warm_up": 400_000}
_QUICK = {"records": 100_000, "warm_up": 25_000}
_CODECS = ("none", "lz4", "zstd", "gzip")


def _crowd(name: str, coroutines: int) -> Scenario:
    peers = ["aiokafka (uvloop)", "aiokafka (asyncio)"]
    if coroutines == 1000:
        peers.append("confluent-kafka AIOProducer (uvloop)")
    return Scenario(
        name,
        f"{coroutines:,} coroutines, each awaiting each of its sends in turn, linger 0",
        (
            *_rows("crowd", *OURS),
            # These runs take many times as long, so that starting the coroutines counts little.
            *_rows("crowd", *peers, records=300_000),
            Row("nothing but uvloop", "crowd", "waking up alone (uvloop)"),
            Row("nothing but asyncio", "crowd", "waking up alone (asyncio)"),
        ),
        options={
            "coroutines": coroutines,
            "linger_ms": 0,
            # Starting a coroutine costs as much as some of its sends.
            "records": max(300_000, 150 * coroutines),
            "warm_up": 60_000,
        },
        quick={"records": 40_000, "warm_up": 20_000},
    )


def _service(size: int, records: int) -> Scenario:
    ours = OURS[0]
    plugins = {
        "on_send returns": "on_send returns its record",
        "on_send replaces": "on_send replaces the headers",
        "on_headers appends": "on_headers appends a header",
        "on_acknowledgement counts": "on_acknowledgement counts",
    }
    return Scenario(
        f"1d-{size}",
        f"send of JSON events of about {size:,} bytes, made and encoded by orjson, with a key and two headers",
        (
            *_rows("events", *OURS),
            Row(ours, "encoded_events", f"{ours}, encoded by hand"),
            *(Row(ours, "events", f"{ours}, {title}", {"plugin": plugin}) for plugin, title in plugins.items()),
            *_rows("events", "confluent-kafka", "aiokafka (uvloop)"),
            Row("nothing but asyncio", "events", "building and encoding alone"),
        ),
        options={"event_size": size, "records": records, "warm_up": records // 5},
        quick={"records": records // 10, "warm_up": records // 10},
        slow=True,
    )


def _service_crowd(coroutines: int) -> Scenario:
    peers = [Row("aiokafka (uvloop)", "event_crowd")]
    if coroutines == 1000:
        confluent = "confluent-kafka AIOProducer (uvloop)"
        peers.append(Row(confluent, "event_crowd", f"{confluent}, without headers"))
    return Scenario(
        f"3-service-{coroutines}",
        f"{coroutines:,} coroutines, each awaiting its sends of JSON events of about 100 bytes in turn, linger 0",
        (
            *_rows("event_crowd", *OURS),
            *peers,
            Row("nothing but uvloop", "crowd", "waking up alone (uvloop)"),
            Row("nothing but asyncio", "crowd", "waking up alone (asyncio)"),
        ),
        options={"coroutines": coroutines, "linger_ms": 0, "records": 300_000, "warm_up": 60_000},
        quick={"records": 40_000, "warm_up": 20_000},
        slow=True,
    )


def _sized(size: int, records: int, brokers: int = 1) -> Scenario:
    return Scenario(
        f"9-{size}" + ("-three" if brokers == 3 else ""),
        f"send, nothing kept, values of {size:,} bytes" + (", three brokers" if brokers == 3 else ""),
        _rows("unkept", OURS[0], "franz-go", "confluent-kafka", "raw socket"),
        (CPU, RATE, BROKER_CPU),
        options={
            "value_size": size,
            "records": records,
            "warm_up": records // 4,
            "partitions": 12 if brokers == 3 else 4,
        },
        quick={"records": records // 10, "warm_up": records // 20},
        slow=True,
        brokers=brokers,
    )


def _compressed(codec: str) -> Scenario:
    alone = Row("nothing but asyncio", "codec", f"{codec} alone", batches_of=OURS[0])
    return Scenario(
        f"5-{codec}",
        f"send, nothing kept, 500-byte text, compression {codec}",
        (
            *_rows("unkept", *OURS, "franz-go", "confluent-kafka", "aiokafka (uvloop)", "Java ProducerPerformance"),
            *(() if codec == "none" else (alone,)),
        ),
        options={"compression": codec, "records": 300_000, "warm_up": 60_000},
        quick={"records": 50_000, "warm_up": 20_000},
        text=True,
        slow=True,
    )


SINKS = ("aioproducer's sink, exactly once", "aioproducer's sink")
_SPARK_METRICS = (
    Metric("rate", "rows/s", ",.0f"),
    Metric("cpu_us", "CPU µs a row"),
    Metric("driver_mib", "JVM, MiB", ",.0f"),
    Metric("memory_mib", "JVM and Python, MiB", ",.0f"),
)


def _spark(name: str, title: str, work: str, **options: Any) -> Scenario:
    return Scenario(
        name,
        f"Spark writes rows of a 16-byte key and a 100-byte value in local[2], {title}",
        _rows(work, "aioproducer's sink", "Spark's own sink", "null sink and raw socket"),
        _SPARK_METRICS,
        # With a shorter warm-up, the JVM still compiles during the measurement: in one run for as long as the write
        # itself takes, in the next for a tenth of that.
        options={"records": 2_000_000, "warm_up": 8_000_000, **options},
        quick={"records": 200_000, "warm_up": 200_000},
        slow=True,
    )


def _transactions(records: int) -> Scenario:
    return Scenario(
        f"11-{records}",
        f"one producer's transactions in turn, {counted(records, 'record')} of 100 bytes each",
        _rows("transactions", *OURS, "confluent-kafka", "Java", "franz-go", "raw socket"),
        (TRANSACTIONS, TRANSACTION_CPU, HELD),
        options={"records_a_transaction": records, "records": 200 * records, "warm_up": 60 * records},
        quick={"records": 30 * records, "warm_up": 10 * records},
        slow=True,
    )


def _pooled_transactions(records: int) -> Scenario:
    return Scenario(
        f"11-pool-{records}",
        f"transactions of {counted(records, 'record')} of 100 bytes each, 16 at a time: by a pool of 16 producers, 16 "
        "threads with a producer each, or 16 clients",
        (
            *_rows("pooled_transactions", *OURS),
            *_rows("transactions", "confluent-kafka", "Java", "franz-go", "raw socket"),
        ),
        (TRANSACTIONS, TRANSACTION_CPU, HELD),
        options={
            "records_a_transaction": records,
            "coroutines": 16,
            "records": 3200 * records,
            "warm_up": 960 * records,
        },
        quick={"records": 320 * records, "warm_up": 160 * records},
        slow=True,
    )


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "1a",
        "send pipelined, every outcome kept, awaited and its offset read",
        _rows(
            "kept",
            *OURS,
            "franz-go",
            "confluent-kafka",
            "Java ProducerPerformance",
            "aiokafka (uvloop)",
            "aiokafka (asyncio)",
            "confluent-kafka AIOProducer (uvloop)",
            "kafka-python",
            "raw socket",
        ),
        options=_SENDING,
        quick=_QUICK,
    ),
    Scenario(
        "1b",
        "send pipelined, nothing kept, failures reported",
        _rows("unkept", *OURS, "franz-go", "confluent-kafka", "aiokafka (uvloop)", "raw socket"),
        options=_SENDING,
        quick=_QUICK,
    ),
    Scenario(
        "1c",
        "send of text of 50 to 2,000 characters through a serializer, with a key and a header, nothing kept",
        _rows("dressed", *OURS, "confluent-kafka", "aiokafka (uvloop)"),
        options={"records": 200_000, "warm_up": 60_000},
        quick={"records": 50_000, "warm_up": 20_000},
        slow=True,
    ),
    _service(100, 1_000_000),
    _service(1000, 400_000),
    Scenario(
        "2",
        "send_many of a list of bytes",
        (
            *_rows("many", *OURS),
            Row(OURS[0], "many", "aioproducer (uvloop), distinct objects", {"distinct": True}),
            Row("confluent-kafka", "many", "confluent-kafka produce_batch"),
            *_rows("many", "raw socket"),
        ),
        options={"records": 2_000_000, "warm_up": 500_000},
        quick={"records": 500_000, "warm_up": 200_000},
    ),
    _crowd("3-1000", 1000),
    _crowd("3-10000", 10_000),
    _service_crowd(200),
    _service_crowd(1000),
    Scenario(
        "4",
        "one coroutine, or thread, awaiting each send in turn, linger 0",
        (
            *_rows("alone", *OURS, "aiokafka (uvloop)", "aiokafka (asyncio)", "confluent-kafka", "franz-go"),
            Row("nothing but uvloop", "alone", "requests replayed (uvloop)"),
            Row("nothing but asyncio", "alone", "requests replayed (asyncio)"),
            *_rows("alone", "raw socket"),
        ),
        (P50, P99, CPU),
        options={"linger_ms": 0, "records": 20_000, "warm_up": 5_000},
        quick={"records": 4_000, "warm_up": 1_000},
    ),
    *map(_compressed, _CODECS),
    Scenario(
        "5-ticker",
        "lateness of a 1 ms ticker while sending 500-byte text at full rate",
        (
            *(
                Row(client, "ticking", f"{client}, {codec}", {"compression": codec})
                for client in OURS
                for codec in _CODECS
            ),
            Row("aiokafka (uvloop)", "ticking", "aiokafka (uvloop), zstd", {"compression": "zstd"}),
            Row(
                "confluent-kafka AIOProducer (uvloop)",
                "ticking",
                "confluent-kafka AIOProducer (uvloop), zstd",
                {"compression": "zstd"},
            ),
            Row("nothing but uvloop", "tick", "idle program (uvloop)"),
            Row("nothing but asyncio", "tick", "idle program (asyncio)"),
            Row("nothing but uvloop", "tick_beside_work", "beside a busy process (uvloop)"),
            Row("nothing but asyncio", "tick_beside_work", "beside a busy process (asyncio)"),
            Row("nothing but uvloop", "tick_beside_broker", "beside a busy broker (uvloop)"),
            Row("nothing but asyncio", "tick_beside_broker", "beside a busy broker (asyncio)"),
            Row("nothing but uvloop", "busy_tick_beside_broker", "busy program beside a busy broker (uvloop)"),
            Row("nothing but asyncio", "busy_tick_beside_broker", "busy program beside a busy broker (asyncio)"),
        ),
        (
            Metric("late_p99_ms", "p99 ms"),
            Metric("late_p99.9_ms", "p99.9 ms"),
            Metric("late_max_ms", "longest ms"),
            RATE,
        ),
        options={"seconds": 10},
        quick={"seconds": 2},
        text=True,
        slow=True,
        logarithmic=True,
    ),
    Scenario(
        "5-callbacks",
        "CPU time of single callbacks on the plain loop while sending 500-byte text at full rate",
        (
            *(
                Row("aioproducer (asyncio)", "callbacks", f"aioproducer (asyncio), {codec}", {"compression": codec})
                for codec in _CODECS
            ),
            Row("nothing but asyncio", "callbacks_beside_broker", "a sum each time, beside a busy broker (asyncio)"),
        ),
        (
            Metric("callback_p99.9_us", "callbacks, p99.9 µs", ",.0f"),
            Metric("callback_max_us", "longest callback µs", ",.0f"),
            Metric("caller_step_max_us", "longest step of the caller µs", ",.0f"),
        ),
        options={"seconds": 10},
        quick={"seconds": 2},
        text=True,
        slow=True,
    ),
    Scenario(
        "6",
        "memory above the started producer while 10 million records are sent, buffer_memory 32 MiB",
        _rows("memory", *OURS),
        (
            Metric("peak_above_mib", "peak MiB"),
            Metric("growth_mib", "growth MiB"),
            Metric("delivery_bytes", "a Delivery, bytes", ",.0f"),
        ),
        options={"records": 10_000_000},
        quick={"records": 500_000},
        most_rounds=1,
        slow=True,
    ),
    Scenario(
        "7-topics",
        "8 records a batch over many partitions, or few, or few beside many idle ones",
        (
            *(Row(client, "spread", f"{client}, 5,000 topics", {"topics": 5000}) for client in OURS),
            *(Row(client, "spread", f"{client}, 1 topic") for client in OURS),
            Row(
                OURS[0],
                "spread",
                "aioproducer (uvloop), 1 topic beside 4,999 idle",
                {"topics": 5000, "idle_topics": 4999},
            ),
        ),
        (CPU, RATE, Metric("records_a_batch", "records a batch")),
        # Full at 8 records of 100 bytes (107 bytes each after the batch's 61), long before the end of its linger.
        options={"records": 320_000, "warm_up": 160_000, "batch_size": 61 + 8 * 107 + 60, "linger_ms": 60_000},
        brokers=2,
        slow=True,
    ),
    Scenario(
        "7-import",
        "importing, over `import asyncio`",
        (
            Row("nothing but asyncio", "import_package", "import aioproducer"),
            Row("nothing but asyncio", "import_producer", "from aioproducer import Producer"),
        ),
        (Metric("import_ms", "ms"), Metric("import_cpu_ms", "CPU ms"), Metric("modules", "modules", ",.0f")),
        options={"records": 15},
        quick={"records": 5},
    ),
    Scenario(
        "7-idle",
        "a started, idle producer",
        (
            *_rows("idle", *OURS),
            Row("nothing but uvloop", "idle", "sleeping program (uvloop)"),
            Row("nothing but asyncio", "idle", "sleeping program (asyncio)"),
        ),
        (Metric("wakeups_a_second", "wake-ups a second"), Metric("cpu_us_a_second", "CPU µs a second", ",.0f")),
        options={"seconds": 20},
        quick={"seconds": 4},
        most_rounds=2,
        slow=True,
    ),
    Scenario(
        "8",
        "send pipelined, every outcome kept, without compiled code of the client's own",
        _rows(
            "kept",
            "aioproducer pure (uvloop)",
            "aioproducer pure (asyncio)",
            "aiokafka pure (uvloop)",
            "aiokafka pure (asyncio)",
            "kafka-python",
        ),
        options={"records": 200_000, "warm_up": 40_000},
        quick={"records": 30_000, "warm_up": 10_000},
        slow=True,
    ),
    Scenario(
        "8-crowd",
        "1,000 coroutines, linger 0, without compiled code of the client's own",
        _rows("crowd", "aioproducer pure (uvloop)", "aioproducer pure (asyncio)", "aiokafka pure (uvloop)"),
        options={"coroutines": 1000, "linger_ms": 0, "records": 100_000, "warm_up": 20_000},
        quick={"records": 20_000, "warm_up": 10_000},
        slow=True,
    ),
    # 1 to 1.5 GB in each run. It takes some seconds, and fits into the page cache.
    *(
        _sized(size, records, brokers)
        for brokers in (1, 3)
        for size, records in ((500, 2_000_000), (1000, 1_000_000), (10_000, 150_000))
    ),
    Scenario(
        "10-paced",
        "latency of an awaited send at 2,000 records/s, from its scheduled time, linger 0",
        _rows("paced", *OURS, "aiokafka (uvloop)", "confluent-kafka", "franz-go"),
        (P50, P99, P999, LONGEST, CPU),
        options={"rate": 2000, "linger_ms": 0, "records": 40_000, "warm_up": 4_000},
        quick={"records": 6_000, "warm_up": 1_000},
        slow=True,
        logarithmic=True,
    ),
    *map(_transactions, (1, 100)),
    *map(_pooled_transactions, (1, 100)),
    # 16 KiB is the default of both producers.
    _spark("spark-plain", "defaults", "defaults", batch_size=16 * 1024),
    _spark("spark-lz4", "lz4 and batches of 128 KiB", "large_batches", compression="lz4"),
    Scenario(
        "spark-once",
        "Spark writes rows of a 16-byte key and a 100-byte value in local[2], exactly once and at least once",
        _rows("defaults", *SINKS),
        _SPARK_METRICS,
        options={"records": 1_000_000, "warm_up": 4_000_000, "batch_size": 16 * 1024},
        quick={"records": 200_000, "warm_up": 200_000},
        slow=True,
    ),
    # Five rounds have 200 micro-batches of 1,000 rows.
    Scenario(
        "spark-micro",
        "Spark writes micro-batches of 1,000 rows in 4 tasks in local[4]",
        (
            *_rows("micro_batches", *SINKS, "Spark's own sink"),
            Row(SINKS[0], "parts", f"{SINKS[0]}, without Spark"),
        ),
        (
            Metric("batch_ms", "ms a micro-batch", ",.1f"),
            Metric("add_batch_ms", "of it addBatch", ",.1f"),
            Metric("plan_ms", "ms of the plan", ",.1f"),
            Metric("tasks_ms", "ms of four tasks in turn", ",.1f"),
            Metric("commit_ms", "ms of the commit", ",.1f"),
        ),
        options={"records": 40_000, "warm_up": 40_000},
        quick={"records": 5_000, "warm_up": 5_000},
        slow=True,
    ),
)


def select(names: str, quick: bool) -> list[Scenario]:
    """Return the scenarios with names that begin with one of ``names`` (separated by commas); all if it is empty.

    Numbers match as a whole: "1" selects "1a" but not "10-paced".

    Raises:
        ValueError: a name matches no scenario.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        return [scenario for scenario in SCENARIOS if not (quick and scenario.slow)]
    for name in wanted:
        if not any(_begins(scenario.name, name) for scenario in SCENARIOS):
            raise ValueError(f"no such scenario: {name!r}; there are: {', '.join(one.name for one in SCENARIOS)}")
    return [scenario for scenario in SCENARIOS if any(_begins(scenario.name, name) for name in wanted)]


def _begins(whole: str, beginning: str) -> bool:
    rest = whole.removeprefix(beginning)
    return whole.startswith(beginning) and not (beginning[-1:].isdigit() and rest[:1].isdigit())


def rows(scenario: Scenario, clients: str) -> list[Row]:
    """Return the rows with labels that contain one of ``clients`` (separated by commas); all if it is empty."""
    wanted = [name.strip() for name in clients.split(",") if name.strip()]
    return [row for row in scenario.rows if not wanted or any(name in row.label for name in wanted)]


assert all(row.client in CLIENTS for scenario in SCENARIOS for row in scenario.rows)
