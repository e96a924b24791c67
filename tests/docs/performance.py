"""The tables of docs/performance.md and of the README, made of the last recorded bench.

``python -m tests.docs.performance`` puts them into both.
"""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

from tests.docs.blocks import ROOT

RECORDED = ROOT / "bench" / "recorded" / "results.json"
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"

# Scenario, heading, and the figures shown: key, title, form.
SCENARIOS = {
    "1a": (("cpu_us", "CPU µs a record", ".3f"), ("rate", "records/s", ",.0f")),
    "1b": (("cpu_us", "CPU µs a record", ".3f"), ("rate", "records/s", ",.0f")),
    "1c": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "2": (("cpu_us", "CPU µs a record", ".3f"), ("rate", "records/s", ",.0f")),
    "3-1000": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "3-10000": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "4": (("p50_us", "p50 µs", ".0f"), ("p99_us", "p99 µs", ".0f"), ("cpu_us", "CPU µs a send", ".0f")),
    **dict.fromkeys(
        ("5-none", "5-lz4", "5-zstd", "5-gzip"), (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f"))
    ),
    "5-ticker": (
        ("late_p99_ms", "p99 ms", ".1f"),
        ("late_p99.9_ms", "p99.9 ms", ".1f"),
        ("late_max_ms", "longest ms", ".0f"),
    ),
    "5-callbacks": (
        ("callback_p99.9_us", "p99.9 µs", ",.0f"),
        ("callback_max_us", "longest µs", ",.0f"),
        ("caller_step_max_us", "longest step of the caller µs", ",.0f"),
    ),
    "spark-plain": (("rate", "rows/s", ",.0f"), ("cpu_us", "CPU µs a row", ".2f")),
    "spark-lz4": (("rate", "rows/s", ",.0f"), ("cpu_us", "CPU µs a row", ".2f")),
}


def recorded() -> dict[str, Any]:
    """What ``make bench BENCH_ARGS="--output bench/recorded"`` wrote."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def median(results: list[dict[str, float]], key: str) -> float:
    return statistics.median(run[key] for run in results)


def tables() -> dict[str, str]:
    """By the name of their place in the page: a table a scenario, and the verdicts."""
    document = recorded()
    made = {}
    for name, columns in SCENARIOS.items():
        scenario = document["scenarios"][name]
        lines = ["| client | " + " | ".join(title for _, title, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for client, results in scenario["results"].items():
            cells = [
                f"{median(results, key):{form}}" if all(key in run for run in results) else ""
                for key, _, form in columns
            ]
            lines.append(f"| {client} | " + " | ".join(cells) + " |")
        made[name] = "\n".join(lines)
    lines = ["| requirement | limit | measured | |", "|---|---|---|---|"]
    for verdict in document["verdicts"]:
        if verdict["measured"] is not None:
            sign = "≥" if verdict["at_least"] else "≤"
            lines.append(
                f"| {verdict['requirement']}, {verdict['text']} | {sign} {verdict['limit']:g} {verdict['unit']} | "
                f"{verdict['measured']:.3g} ({verdict['least']:.3g} to {verdict['most']:.3g}) | "
                f"{'holds' if verdict['holds'] else '**does not hold**'} |"
            )
    made["verdicts"] = "\n".join(lines)
    surroundings = document["environment"]
    made["machine"] = (
        f"{surroundings['processor']}, {surroundings['cpus']} processors, {surroundings['memory_gib']} GiB, a virtual "
        f"machine; CPython {surroundings['python']}, {surroundings['machine']}; aiokafka {surroundings['aiokafka']}, "
        f"confluent-kafka {surroundings['confluent-kafka']}, kafka-python {surroundings['kafka-python']}, uvloop "
        f"{surroundings['uvloop']}. Apache Kafka 4.4.0 runs on the same processors. Median of "
        f"{document['settings']['rounds']} rounds."
    )
    return made


def filled(page: str) -> str:
    """The page with the tables in their places, between ``<!-- name -->`` and ``<!-- end -->``."""
    for name, table in tables().items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        if mark:
            page = f"{before}{mark}\n{table}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return page


def compared() -> dict[str, tuple[str, ...]]:
    """The README's rows that the bench shows, by their first cell: ours, aiokafka's and confluent-kafka's figures."""
    results = recorded()["scenarios"]["1a"]["results"]
    names = ("aioproducer (uvloop)", "aiokafka (uvloop)", "confluent-kafka")
    return {
        "records/s": tuple(f"{median(results[name], 'rate'):,.0f}" for name in names),
        "CPU µs/record": tuple(f"{median(results[name], 'cpu_us'):.2f}" for name in names),
    }


def with_compared(readme: str) -> str:
    """The README with these rows in their places."""
    for label, cells in compared().items():
        row = f"| {label} | {' | '.join(cells)} | `make bench` |"
        readme, found = re.subn(rf"^\| {re.escape(label)} \|.*$", row, readme, flags=re.MULTILINE)
        assert found == 1, label
    return readme


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    README.write_text(with_compared(README.read_text()))
