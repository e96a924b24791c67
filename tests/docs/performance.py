"""The tables of docs/performance.md and of the README, made from the last recorded bench.

``python -m tests.docs.performance`` writes them into both.
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

# Scenario, heading, and the shown figures: key, title, format.
SCENARIOS = {
    "1a": (("cpu_us", "CPU µs a record", ".3f"), ("rate", "records/s", ",.0f")),
    "1b": (("cpu_us", "CPU µs a record", ".3f"), ("rate", "records/s", ",.0f")),
    "1c": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "2": (("cpu_us", "CPU µs a record", ".3f"), ("rate", "records/s", ",.0f")),
    "3-1000": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "3-10000": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "3-service-200": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "3-service-1000": (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f")),
    "4": (("p50_us", "p50 µs", ".0f"), ("p99_us", "p99 µs", ".0f"), ("cpu_us", "CPU µs a send", ".0f")),
    **dict.fromkeys(
        ("5-none", "5-lz4", "5-zstd", "5-gzip"), (("cpu_us", "CPU µs a record", ".2f"), ("rate", "records/s", ",.0f"))
    ),
    **dict.fromkeys(
        ("9-500", "9-1000", "9-10000", "9-500-three", "9-1000-three", "9-10000-three"),
        (
            ("cpu_us", "CPU µs a record", ".2f"),
            ("rate", "records/s", ",.0f"),
            ("broker_cpu_us", "broker's CPU µs a record", ".2f"),
        ),
    ),
    "10-paced": (
        ("p50_us", "p50 µs", ",.0f"),
        ("p99_us", "p99 µs", ",.0f"),
        ("p99.9_us", "p99.9 µs", ",.0f"),
        ("cpu_us", "CPU µs a send", ".0f"),
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
    **dict.fromkeys(
        ("11-1", "11-100", "11-pool-1", "11-pool-100"),
        (
            ("transaction_rate", "transactions/s", ",.0f"),
            ("transaction_cpu_ms", "CPU ms a transaction", ".2f"),
            ("held_share", "first batch held back", ".0%"),
        ),
    ),
    "spark-plain": (("rate", "rows/s", ",.0f"), ("cpu_us", "CPU µs a row", ".2f")),
    "spark-lz4": (("rate", "rows/s", ",.0f"), ("cpu_us", "CPU µs a row", ".2f")),
}


def recorded() -> dict[str, Any]:
    """Return the results that ``make bench BENCH_ARGS="--output bench/recorded"`` wrote."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def median(results: list[dict[str, float]], key: str) -> float:
    return statistics.median(run[key] for run in results)


def machines() -> list[dict[str, Any]]:
    """Return the machines of the scenarios, the latest run's first: machine, versions and build, without the load."""
    document = recorded()
    found = []
    for surroundings in (document["environment"], *(each["environment"] for each in document["scenarios"].values())):
        alike = {key: value for key, value in surroundings.items() if key != "load_before"}
        if alike not in found:
            found.append(alike)
    return found


def machine_of(scenario: str) -> str:
    """Return the page's letter for the machine of a scenario."""
    surroundings = recorded()["scenarios"][scenario]["environment"]
    alike = {key: value for key, value in surroundings.items() if key != "load_before"}
    return chr(ord("A") + machines().index(alike))


def tables() -> dict[str, str]:
    """Return a table for each scenario, and the verdicts, by the names of their markers in the page."""
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
        lines += ["", f"Scenario `{name}`, machine {machine_of(name)}, {_rounds(scenario['rounds'])}."]
        made[name] = "\n".join(lines)
    lines = ["| requirement | limit | measured | | machine |", "|---|---|---|---|---|"]
    for verdict in document["verdicts"]:
        if verdict["measured"] is not None:
            sign = "≥" if verdict["at_least"] else "≤"
            # Figures of two machines cannot be compared.
            (machine,) = {machine_of(scenario) for scenario in verdict["scenarios"]}
            lines.append(
                f"| {verdict['requirement']}, {verdict['text']} | {sign} {verdict['limit']:.3g} {verdict['unit']} | "
                f"{verdict['measured']:.3g} ({verdict['least']:.3g} to {verdict['most']:.3g}) | "
                f"{'holds' if verdict['holds'] else '**does not hold**'} | {machine} |"
            )
    made["verdicts"] = "\n".join(lines)
    made["service"] = _service(document["scenarios"])
    made["machine"] = "\n".join(
        f"- **{chr(ord('A') + number)}**: {each['processor']}, {each['cpus']} processors, {each['memory_gib']} GiB, a "
        f"virtual machine; CPython {each['python']}, {each['machine']}; aiokafka {each['aiokafka']}, confluent-kafka "
        f"{each['confluent-kafka']}, kafka-python {each['kafka-python']}, uvloop {each['uvloop']}. Measured: "
        f"{each['build']}."
        for number, each in enumerate(machines())
    )
    return made


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"median of {count} rounds"


def _service(scenarios: dict[str, Any]) -> str:
    """Return the costs of a service: CPU time for each record, and its ratio to confluent-kafka's."""
    sizes, ours = ("1d-100", "1d-1000"), "aioproducer (uvloop)"
    lines = [
        "| | JSON of about 100 bytes: CPU µs | confluent-kafka = 1 | 1,000 bytes: CPU µs | confluent-kafka = 1 |",
        "|---|---|---|---|---|",
    ]
    for client in scenarios[sizes[0]]["results"]:
        cells = []
        for size in sizes:
            results = scenarios[size]["results"]
            cpu = median(results[client], "cpu_us")
            cells += [f"{cpu:.2f}", f"{cpu / median(results['confluent-kafka'], 'cpu_us'):.2f}"]
        lines.append(f"| {client} | " + " | ".join(cells) + " |")
    bare = {client: median(scenarios["1b"]["results"][client], "cpu_us") for client in (ours, "confluent-kafka")}
    (machine,) = {machine_of(name) for name in (*sizes, "1b")}
    lines += [
        "",
        f"Scenarios `1d-100` and `1d-1000`, machine {machine}. There a bare send of 100 bytes (`1b`) takes "
        f"{bare[ours]:.2f} µs, and {bare['confluent-kafka']:.2f} with confluent-kafka.",
    ]
    return "\n".join(lines)


def filled(page: str) -> str:
    """Return the page with the tables between their markers ``<!-- name -->`` and ``<!-- end -->``."""
    for name, table in tables().items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        if mark:
            page = f"{before}{mark}\n{table}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return page


def compared() -> dict[str, tuple[str, ...]]:
    """Return the README's measured rows by their first cell: ours, aiokafka's and confluent-kafka's figures."""
    scenarios = recorded()["scenarios"]
    results, events, large = (scenarios[name]["results"] for name in ("1a", "1d-100", "1d-1000"))
    names = ("aioproducer (uvloop)", "aiokafka (uvloop)", "confluent-kafka")
    return {
        "CPU µs/record, JSON of 100 bytes, key, two headers": tuple(
            f"{median(events[name], 'cpu_us'):.1f}" for name in names
        ),
        "the same, JSON of 1,000 bytes": tuple(f"{median(large[name], 'cpu_us'):.1f}" for name in names),
        "records/s": tuple(f"{median(results[name], 'rate'):,.0f}" for name in names),
        "CPU µs/record": tuple(f"{median(results[name], 'cpu_us'):.2f}" for name in names),
    }


def with_compared(readme: str) -> str:
    """Return the README with these rows."""
    for label, cells in compared().items():
        row = f"| {label} | {' | '.join(cells)} | `make bench` |"
        readme, found = re.subn(rf"^\| {re.escape(label)} \|.*$", row, readme, flags=re.MULTILINE)
        assert found == 1, label
    return readme


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    README.write_text(with_compared(README.read_text()))
