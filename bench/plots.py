"""A plot for each scenario: horizontal bars of the medians, whiskers from the least to the most of the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # once the backend is chosen

from bench.clients import CLIENTS
from bench.report import spread
from bench.runner import Outcome

_OURS = "#d1495b"
_OTHERS = "#8d99ae"


def draw(outcome: Outcome, surroundings: dict[str, Any], folder: Path) -> Path | None:
    """Write ``folder/SCENARIO.svg``; nothing where nothing was measured."""
    scenario = outcome.scenario
    shown = [row for row in scenario.rows if row.label in outcome.results]
    metrics = [
        metric
        for metric in scenario.metrics
        if any(spread(outcome.results[row.label], metric.key) is not None for row in shown)
    ]
    if not metrics:
        return None
    # The same text for the same figures: no dates, no random identifiers.
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
            for place, one in enumerate(found):
                if one:
                    at = one[2] * 1.15 if scenario.logarithmic else one[2] + most * 0.02
                    panel.text(at, place, f"{one[0]:{metric.form}}", va="center", fontsize=8.5)
            panel.set_title(metric.title, fontsize=10)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(axis="x", labelsize=8)
            panel.xaxis.set_major_locator(pyplot.MaxNLocator(4)) if not scenario.logarithmic else None
        panels[0][0].set_yticks(range(len(shown)), [row.label for row in shown])
        panels[0][0].invert_yaxis()
        figure.suptitle(scenario.title, fontsize=11, x=0.01, ha="left")
        figure.supxlabel(
            f"median of {outcome.rounds}, whiskers: least to most; {surroundings['processor']}, "
            f"{surroundings['cpus']} cores, Python {surroundings['python']}",
            fontsize=7.5,
            color="#555555",
        )
        path = folder / f"{scenario.name}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
    return path
