"""The soak: does memory stay flat, and do latencies stay bounded, over minutes? Against Apache Kafka on this machine.

This project's producer, on uvloop in its own process, sends values of 100 bytes without a pause. Then it sends for the
same time at a fifth of that rate, with a burst at the beginning of each second. In addition, one send is awaited every
10 ms. Samples of each second are written to soak.json and soak.svg.

    python -m bench.soak --seconds 180 --output build/bench/soak

The exit code is 1 if a record failed, or if memory still grows in the second half of a phase.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.brokers import BrokerError, brokers
from bench.job import Job, Measurement
from bench.runner import ROOT, RunError, run_module
from bench.soaking import FULL_RATE, SHARED_RATE

TOPIC = "soak"
# Share of the buffer above which an increase in the second half of a phase is growth.
GROWTH_SHARE = 0.1
FEWEST_SECONDS = 3
# Seconds of the child apart from the phases: the start, filling the buffer once, and the last flush.
_LONGEST_BESIDE = 300.0
# Without these limits, three minutes at full rate would fill 60 GB of disk.
_PROPERTIES = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "1000"}
_TOPIC_CONFIG = {
    "retention.bytes": str(256 * 2**20),
    "segment.bytes": str(64 * 2**20),
    "file.delete.delay.ms": "1000",
}


def growth(samples: Sequence[float]) -> float:
    """Return by how much the median of the last quarter exceeds that of the previous quarter.

    Raises:
        ValueError: there are fewer than three samples.
    """
    if len(samples) < FEWEST_SECONDS:
        raise ValueError(f"{len(samples)} samples do not show whether memory grows: at least {FEWEST_SECONDS}.")
    half = samples[len(samples) // 2 :]
    middle = len(half) // 2
    return statistics.median(half[middle:]) - statistics.median(half[:middle])


def problems(measured: Measurement, buffer_memory: int) -> list[str]:
    """Return the problems of a soak; ``buffer_memory`` is in bytes."""
    found = []
    if measured["failed"]:
        found.append(f"{measured['failed']:,} records failed, the first for {measured['first_failure']}")
    if measured["acknowledged"] + measured["failed"] != measured["sent"]:
        found.append(f"{measured['acknowledged']:,} of {measured['sent']:,} records were acknowledged")
    limit = GROWTH_SHARE * buffer_memory / 2**20
    for phase in (FULL_RATE, SHARED_RATE):
        grown = growth([one["uss_mib"] for one in measured["samples"] if one["phase"] == phase])
        if grown > limit:
            found.append(
                f"{phase}: memory grows by {grown:.1f} MiB in the second half (at most {limit:.1f} MiB, "
                f"{GROWTH_SHARE:.0%} of buffer_memory)"
            )
    return found


def summary(samples: Sequence[Measurement]) -> str:
    """Return a line for each phase: medians of its samples, and the longest latency."""
    lines = []
    for phase in (FULL_RATE, SHARED_RATE):
        of_phase = [one for one in samples if one["phase"] == phase]
        cells = [
            f"{key} {statistics.median(found):{form}}"
            for key, form in (("rate", ",.0f"), ("p50_us", ",.0f"), ("p99_us", ",.0f"), ("cpu_share", ".2f"))
            if (found := [one[key] for one in of_phase if key in one])
        ]
        longest = max((one["max_us"] for one in of_phase if "max_us" in one), default=0)
        memory = [one["uss_mib"] for one in of_phase]
        lines.append(
            f"{phase}: medians: {', '.join(cells)}; longest {longest:,.0f} µs; "
            f"memory {min(memory):.1f} to {max(memory):.1f} MiB, growth {growth(memory):.1f} MiB"
        )
    return "\n".join(lines)


def measure(seconds: int) -> tuple[Job, Measurement]:
    """Run the soak against a broker that soon deletes records; return the measurements and the child's job.

    Raises:
        RunError: the run failed, or the broker has not stored all acknowledged records.
        BrokerError: the broker did not carry out an operation.
    """
    with brokers(1, _PROPERTIES) as started:
        job = Job("soak", started.bootstrap, TOPIC, loop="uvloop", seconds=seconds)
        started.create(TOPIC, job.partitions, _TOPIC_CONFIG)
        measured = run_module("bench.soaking", job, longest=2 * seconds + _LONGEST_BESIDE)
        # By the latest offsets, which also count deleted records.
        stored = started.stored([TOPIC], job.partitions)
    if stored < measured["acknowledged"]:
        raise RunError(f"{stored:,} of {measured['acknowledged']:,} acknowledged records were stored")
    return job, measured


def main(arguments: list[str] | None = None) -> int:
    """Run the soak; return 1 if it has a problem."""
    asked = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--seconds", type=int, default=180, help="seconds of each of the two phases (180)")
    asked.add_argument("--output", type=Path, help="folder for soak.json and soak.svg (build/bench/ and the time)")
    chosen = asked.parse_args(arguments)
    if chosen.seconds < FEWEST_SECONDS:
        asked.error(f"--seconds {chosen.seconds} is too short to see memory grow: at least {FEWEST_SECONDS}")
    output = chosen.output or ROOT / "build" / "bench" / time.strftime("soak-%Y-%m-%d-%H%M%S")
    surroundings = report.environment()
    try:
        job, measured = measure(chosen.seconds)
    except (RunError, BrokerError) as error:
        print(f"the soak failed: {error}", file=sys.stderr)
        return 1
    found = problems(measured, job.buffer_memory)
    output.mkdir(parents=True, exist_ok=True)
    settings = {"seconds": chosen.seconds, "buffer_memory": job.buffer_memory}
    document = {"environment": surroundings, "settings": settings, "problems": found, **measured}
    path = output / "soak.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{summary(measured['samples'])}\n\nwritten: {path}")
    try:
        from bench.plots import draw_over_time
    except ImportError as error:
        print(f"no plot: {error}")
    else:
        title = "soak of aioproducer (uvloop): values of 100 bytes, and a send awaited every 10 ms"
        draw_over_time(measured["samples"], title, surroundings, path.with_suffix(".svg"))
        print(f"written: {path.with_suffix('.svg')}")
    for problem in found:
        print(f"PROBLEM: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
