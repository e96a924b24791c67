"""Plots of scenarios and soaks.

A scenario is drawn as horizontal bars of the medians, with whiskers from the least to the most of the rounds; a soak as
lines over time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # after the choice of the backend

from bench.clients import CLIENTS
from bench.job import Measurement
from bench.report import spread
from bench.runner import Outcome

_OURS = "#d1495b"
_OTHERS = "#8d99ae"
_THIRD = "#30638e"

# Panels of a soak: title, lines (key, factor, name, colour), and whether the axis is logarithmic.
_OVER_TIME: tuple[tuple[str, tuple[tuple[str, float, str, str], ...], bool], ...] = (
    ("records/s", (("rate", 1, "acknowledged", _OURS),), False),
    (
        "awaited send, ms",
        (
            ("p50_us", 1e-3, "p50", _OTHERS),
            ("p99_us", 1e-3, "p99", _THIRD),
            ("p99.9_us", 1e-3, "p99.9", _OURS),
        ),
        True,
    ),
    ("CPU, % of a processor", (("cpu_share", 100, "process", _OURS),), False),
    (
        "MiB",
        (
            ("rss_mib", 1, "resident", _OTHERS),
            ("uss_mib", 1, "resident, not shared", _OURS),
            ("buffer_available_bytes", 2**-20, "available in the buffer", _THIRD),
        ),
        False,
    ),
)


def draw(outcome: Outcome, surroundings: dict[str, Any], folder: Path) -> Path | None:
    """Write ``folder/SCENARIO.svg``, unless nothing was measured."""
    scenario = outcome.scenario
    shown = [row for row in scenario.rows if row.label in outcome.results]
    metrics = [
        metric
        for metric in scenario.metrics
        if any(spread(outcome.results[row.label], metric.key) is not None for row in shown)
    ]
    if not metrics:
        return None
    # Equal figures give an equal file: no dates, no random identifiers.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": scenario.name, "font.size": 10}):
        height = 1.5 + 0.34 * len(shown)
        figure, panels = pyplot.subplots(
            1,
            len(metrics),
            sharey=True,
            squeeze=False,
            figsize=(4.0 + 3.2 * len(metrics), height),
            layout="constrained",
        )
        for panel, metric in zip(panels[0], metrics, strict=True):
            found = [spread(outcome.results[row.label], metric.key) for row in shown]
            medians = [one[0] if one else 0.0 for one in found]
            whiskers = [
                [one[0] - one[1] if one else 0.0 for one in found],
                [one[2] - one[0] if one else 0.0 for one in found],
            ]
            colours = [_OURS if CLIENTS[row.client].ours else _OTHERS for row in shown]
            panel.barh(
                range(len(shown)), medians, xerr=whiskers, color=colours, error_kw={"capsize": 2.5, "linewidth": 0.9}
            )
            most = max((one[2] for one in found if one), default=1.0)
            if scenario.logarithmic:
                panel.set_xscale("log")
                least = min((one[0] for one in found if one and one[0] > 0), default=0.1)
                panel.set_xlim(least / 3, most * 12)
            else:
                panel.set_xlim(0, most * 1.3 or 1)
            for row, one in enumerate(found):
                if one:
                    at = one[2] * 1.15 if scenario.logarithmic else one[2] + most * 0.02
                    panel.text(at, row, f"{one[0]:{metric.form}}", va="center", fontsize=8.5)
            panel.set_title(metric.title, fontsize=10)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(axis="x", labelsize=8)
            panel.xaxis.set_major_locator(pyplot.MaxNLocator(4)) if not scenario.logarithmic else None
        panels[0][0].set_yticks(range(len(shown)), [row.label for row in shown])
        panels[0][0].invert_yaxis()
        figure.suptitle(scenario.title, fontsize=11, x=0.01, ha="left")
        figure.supxlabel(
            f"median of {outcome.rounds}, whiskers: least to most; {_machine(surroundings)}",
            fontsize=7.5,
            color="#555555",
        )
        path = folder / f"{scenario.name}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
    return path


def draw_over_time(samples: Sequence[Measurement], title: str, surroundings: dict[str, Any], path: Path) -> None:
    """Write the plot of a soak: panels for rate, latencies, CPU and memory over seconds, one above the other."""
    seconds = [one["second"] for one in samples]
    phases = dict.fromkeys(one["phase"] for one in samples)
    starts = [0.0, *(before["second"] for before, after in pairwise(samples) if before["phase"] != after["phase"])]
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 10}):
        figure, panels = pyplot.subplots(len(_OVER_TIME), 1, sharex=True, figsize=(10.0, 9.0), layout="constrained")
        for panel, (name, lines, logarithmic) in zip(panels, _OVER_TIME, strict=True):
            for key, factor, label, colour in lines:
                # A second without this figure is a gap.
                found = [one[key] * factor if key in one else math.nan for one in samples]
                panel.plot(seconds, found, color=colour, linewidth=1.1, marker=".", markersize=3, label=label)
            if logarithmic:
                panel.set_yscale("log")
            else:
                panel.set_ylim(bottom=0)
            panel.set_xlim(left=0)
            panel.yaxis.set_major_formatter("{x:g}" if logarithmic else "{x:,.0f}")
            for start in starts[1:]:
                panel.axvline(start, color="#555555", linewidth=0.8, linestyle=":")
            panel.set_ylabel(name, fontsize=9)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=8)
            panel.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 0.97), ncols=len(lines))
        for phase, start in zip(phases, starts, strict=True):
            panels[0].text(start, 1.02, phase, transform=panels[0].get_xaxis_transform(), fontsize=9)
        panels[-1].set_xlabel("seconds", fontsize=9)
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        figure.supxlabel(_machine(surroundings), fontsize=7.5, color="#555555")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def _machine(surroundings: dict[str, Any]) -> str:
    return f"{surroundings['processor']}, {surroundings['cpus']} cores, Python {surroundings['python']}"
