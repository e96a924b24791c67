"""Output of the bench: tables, verdicts, JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.clients import CLIENTS
from bench.job import Measurement
from bench.runner import ROOT, Outcome
from bench.scenarios import Metric
from bench.verdicts import Verdict, scenarios_of, verdicts

_PACKAGES = ("aioproducer", "aiokafka", "confluent-kafka", "kafka-python", "uvloop", "lz4", "zstandard", "cramjam")


def environment() -> dict[str, Any]:
    """Return facts about the machine and its software."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_before": os.getloadavg()[0],
        "build": _build(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _build() -> str:
    """Return the measured build of this project."""
    found = find_spec("aioproducer._client.hot_path")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parents[1]
    where = "the modules of the checkout" if folder.parent == ROOT else "an installed wheel"
    if not found.origin.endswith(tuple(EXTENSION_SUFFIXES)):
        return f"{where}, uncompiled"
    # A profile-guided build has the code of all modules in one library (setup.py).
    return f"{where}, {'profile-guided' if any(folder.glob('libaioproducer-*.so')) else 'compiled'}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def spread(measurements: Sequence[Measurement], key: str) -> tuple[float, float, float] | None:
    """Return median, least and most of a figure; None if no measurement has it."""
    found = [one[key] for one in measurements if key in one]
    return (statistics.median(found), min(found), max(found)) if found else None


def _ours(outcome: Outcome) -> str | None:
    """Return the row that others are compared with: this project's first."""
    return next(
        (row.label for row in outcome.scenario.rows if CLIENTS[row.client].ours and row.label in outcome.results), None
    )


def _wide(metric: Metric) -> int:
    return max(len(metric.title), 11)


def table(outcome: Outcome) -> str:
    """Return a line for each row: medians, their range, and their ratio to ours."""
    scenario = outcome.scenario
    width = max([len(row.label) for row in scenario.rows]) + 2
    reference = _ours(outcome)
    lines = [f"{scenario.name}: {scenario.title} (median of {outcome.rounds})"]
    head = f"{'':<{width}}"
    for metric in scenario.metrics:
        head += f"  {metric.title:>{_wide(metric)}} {'(min..max)':>23} {'to ours':>8}"
    lines.append(head)
    for label, measurements in outcome.results.items():
        line = f"{label:<{width}}"
        for metric in scenario.metrics:
            found = spread(measurements, metric.key)
            ours = spread(outcome.results[reference], metric.key) if reference else None
            if found is None:
                line += f"  {'-':>{_wide(metric)}} {'':>23} {'':>8}"
                continue
            span = f"({found[1]:{metric.form}}..{found[2]:{metric.form}})"
            compared = f"{found[0] / ours[0]:.2f}" if ours and ours[0] else ""
            line += f"  {found[0]:>{_wide(metric)}{metric.form}} {span:>23} {compared:>8}"
        lines.append(line.rstrip())
    lines += [f"{label}: missing: {reason}" for label, reason in outcome.missing.items()]
    lines += [f"{label}: FAILED: {reason}" for label, reason in outcome.failures.items()]
    return "\n".join(lines)


def verdict_lines(found: Sequence[Verdict]) -> str:
    """Return a line for each measured requirement, and the number of the others."""
    lines = []
    for verdict in found:
        if verdict.measured is None:
            continue
        requirement = verdict.requirement
        sign = "at least" if requirement.at_least else "at most"
        span = f"({verdict.least:,.3g}..{verdict.most:,.3g})"
        word = "holds" if verdict.holds else "DOES NOT HOLD"
        lines.append(
            f"{requirement.number}  {requirement.text:<58} {sign:>8} {requirement.limit:>7,g} {requirement.unit:<6}"
            f"{verdict.measured:>9,.3g} {span:<20} {word}"
        )
    missing = sum(verdict.measured is None for verdict in found)
    return "\n".join([*lines, f"{missing} of {len(found)} requirements were not measured in this run"])


def scenarios(outcomes: Sequence[Outcome], surroundings: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of each scenario, by its name, for the JSON file; ``surroundings`` describes the machine."""
    return {
        outcome.scenario.name: {
            "title": outcome.scenario.title,
            "options": dict(outcome.scenario.options),
            "environment": surroundings,
            "rounds": outcome.rounds,
            "results": outcome.results,
            "missing": outcome.missing,
            "failures": outcome.failures,
        }
        for outcome in outcomes
    }


def recorded(path: Path) -> dict[str, Any]:
    """Return the scenarios in the JSON file of an earlier run; none without such a file."""
    found: dict[str, Any] = json.loads(path.read_text())["scenarios"] if path.exists() else {}
    return found


def document(settings: dict[str, Any], surroundings: dict[str, Any], of_scenarios: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the JSON file."""
    results = {name: scenario["results"] for name, scenario in of_scenarios.items()}
    found = verdicts(results)
    return {
        "environment": surroundings,
        "settings": settings,
        "scenarios": of_scenarios,
        "verdicts": [
            {
                "requirement": verdict.requirement.number,
                "text": verdict.requirement.text,
                "scenarios": scenarios_of(verdict.requirement, results),
                "limit": verdict.requirement.limit,
                "at_least": verdict.requirement.at_least,
                "unit": verdict.requirement.unit,
                "measured": verdict.measured,
                "least": verdict.least,
                "most": verdict.most,
                "holds": verdict.holds,
            }
            for verdict in found
        ],
    }
