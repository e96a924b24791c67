"""Runs scenarios: each run in its own process, clients in another order each round, stored records counted."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.brokers import BrokerError, Brokers, brokers
from bench.child import command_for
from bench.clients import CLIENTS
from bench.job import Job, Measurement, texts
from bench.scenarios import Row, Scenario, rows
from tests.kafka.jars import HarnessUnavailableError

ROOT = Path(__file__).parent.parent
LONGEST_RUN = 600.0
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
# A commit is answered before its markers are written, which takes milliseconds.
MARKERS_WITHIN = 5.0
# Records that warm up the broker's compiler: large requests first, then small ones.
# Scenarios of fewer records use the same number.
THROUGHPUT_RECORDS = 100_000

WARM_UP = (Job("unkept", records=3_000_000), Job("alone", records=30_000, linger_ms=0))
QUICK_WARM_UP = (Job("unkept", records=1_000_000), Job("alone", records=5_000, linger_ms=0))
# Records of text in each codec of a scenario: the broker reads compressed batches with other code.
TEXT_WARM_UP, QUICK_TEXT_WARM_UP = 2_000_000, 200_000

Say = Callable[[str], None]


@dataclass
class Outcome:
    """The outcome of a scenario: for each row, the measurements of its rounds, or why there are none."""

    scenario: Scenario
    rounds: int
    results: dict[str, list[Measurement]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def order(of: list[Row], round_number: int) -> list[Row]:
    """Return the rows of a round: each begins with another row, every second one is reversed.

    The first row runs with the broker's coldest caches, and a row after a heavy one is affected by its after-effects.
    Rows that need another row's batches run last.
    """
    shift = round_number % len(of)
    turned = of[shift:] + of[:shift]
    if round_number % 2:
        turned.reverse()
    return sorted(turned, key=lambda row: bool(row.batches_of))


def codecs(chosen: list[Scenario]) -> list[str]:
    """Return the codecs in which these scenarios send text."""
    options = [one.options | row.options for one in chosen if one.text for row in one.rows]
    return sorted({one["compression"] for one in options if "compression" in one})


def derived(measured: Measurement) -> Measurement:
    """Add CPU time a record and records a second, if records were measured; the same for transactions."""
    if not measured.get("records") or "user" not in measured:
        return measured
    cpu = measured["user"] + measured["system"]
    found = measured | {"cpu_us": cpu / measured["records"] * 1e6, "rate": measured["records"] / measured["elapsed"]}
    if measured.get("transactions"):
        found["transaction_rate"] = measured["transactions"] / measured["elapsed"]
        found["transaction_cpu_ms"] = cpu / measured["transactions"] * 1e3
    return found


class RunError(Exception):
    """A run failed; the text is the last line of its output."""


def run(client_name: str, job: Job) -> Measurement:
    """Run once in a child process, which measures itself.

    Raises:
        RunError: the run failed.
    """
    client = CLIENTS[client_name]
    return derived(run_module(client.module, replace(job, loop=client.loop), client.environment))


def run_module(
    module: str, job: Job, environment: Mapping[str, str] = NO_ENVIRONMENT, longest: float = LONGEST_RUN
) -> Measurement:
    """Run a job of a module in a child process, for at most ``longest`` seconds; ``environment`` is added to its own.

    Raises:
        RunError: the run failed.
    """
    environment = {**os.environ, **environment}
    # An installed package has bytecode; that of a checkout is written on first import.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        finished = subprocess.run(
            command_for(module, job),
            capture_output=True,
            text=True,
            check=False,
            timeout=longest,
            cwd=ROOT,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"took longer than {longest:g} s") from error
    if finished.returncode != 0:
        said = finished.stderr.strip().splitlines()
        raise RunError(said[-1] if said else f"exit code {finished.returncode}")
    measured: Measurement = json.loads(finished.stdout.splitlines()[-1])
    return measured


def job_of(scenario: Scenario, row: Row, chosen: dict[str, Any], quick: bool) -> Job:
    """Return the job of a row: the scenario's options, the row's, those of quick runs, then the caller's."""
    options = {**scenario.options, **row.options, **(scenario.quick if quick else {}), **chosen}
    known = {one.name for one in fields(Job)}
    assert options.keys() <= known, options.keys() - known
    return Job(work=row.work, **options)


class Run:
    """The runs of one command line."""

    def __init__(self, *, quick: bool, rounds: int, clients: str, records: int, say: Say) -> None:
        self._quick = quick
        self._rounds = rounds
        self._clients = clients
        self._chosen: dict[str, Any] = {"records": records, "warm_up": records // 5} if records else {}
        self._say = say
        self._number = 0

    def scenarios(self, chosen: list[Scenario]) -> list[Outcome]:
        """Run the scenarios, grouped by their number of brokers: others must not run with thousands of topics."""
        outcomes = []
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            values = Path(folder) / "values"
            values.write_bytes(b"\n".join(texts()) + b"\n")
            for count in sorted({scenario.brokers for scenario in chosen}):
                self._say(f"starting Apache Kafka, brokers: {count}")
                with brokers(count) as started:
                    here = [scenario for scenario in chosen if scenario.brokers == count]
                    self._warm(started, here, values)
                    outcomes += [self._scenario(started, scenario, values) for scenario in here]
        return outcomes

    def _warm(self, started: Brokers, chosen: list[Scenario], values: Path) -> None:
        """Warm up the brokers, without measuring."""
        jobs = [("confluent-kafka", job) for job in (QUICK_WARM_UP if self._quick else WARM_UP)]
        text = Job("unkept", values_file=str(values), records=QUICK_TEXT_WARM_UP if self._quick else TEXT_WARM_UP)
        jobs += [("aioproducer (uvloop)", replace(text, compression=codec)) for codec in codecs(chosen)]
        started.create("warm-up", 4)
        for client, job in jobs:
            run(client, replace(job, bootstrap=started.bootstrap, topic="warm-up"))
        started.delete("warm-up")

    def _scenario(self, started: Brokers, scenario: Scenario, values: Path) -> Outcome:
        taking_part = rows(scenario, self._clients)
        rounds = min(self._rounds, scenario.most_rounds)
        outcome = Outcome(scenario, rounds)
        present = []
        for row in taking_part:
            try:
                CLIENTS[row.client].look()
            except HarnessUnavailableError as error:
                outcome.missing[row.label] = str(error)
            else:
                present.append(row)
        for round_number in range(rounds if present else 0):
            for row in order(present, round_number):
                if row.label in outcome.failures:
                    continue
                try:
                    measured = self._row(started, scenario, row, outcome, values)
                except (RunError, BrokerError) as error:
                    outcome.failures[row.label] = str(error)
                    self._say(f"{scenario.name} round {round_number + 1}/{rounds}: {row.label}: failed: {error}")
                    continue
                outcome.results.setdefault(row.label, []).append(measured | {"round": round_number})
                figures = ", ".join(
                    f"{measured[metric.key]:{metric.form}} {metric.title}"
                    for metric in scenario.metrics
                    if metric.key in measured
                )
                self._say(f"{scenario.name} round {round_number + 1}/{rounds}: {row.label}: {figures}")
        # In the order of the scenario, not of the first round.
        outcome.results = {row.label: outcome.results[row.label] for row in present if row.label in outcome.results}
        return outcome

    def _row(self, started: Brokers, scenario: Scenario, row: Row, outcome: Outcome, values: Path) -> Measurement:
        # In scenarios that do not measure throughput, a record is a round trip, or a whole process.
        chosen = self._chosen if scenario.options.get("records", 0) >= THROUGHPUT_RECORDS else {}
        job = job_of(scenario, row, chosen, self._quick)
        if row.batches_of:
            if row.batches_of not in outcome.results:
                raise RunError(f"the number of records in a batch is that of {row.batches_of}, which has not run")
            job = replace(job, records_a_batch=round(outcome.results[row.batches_of][-1]["records_a_batch"]))
        if scenario.text:
            job = replace(job, values_file=str(values))
        self._number += 1
        topic = "bench-many" if job.topics > 1 else f"bench-{self._number}"
        if job.topics > 1:
            topics = started.create_many(topic, job.topics, job.partitions)
            before = started.stored(topics, job.partitions)
        else:
            topics, before = [topic], 0
            started.create(topic, job.partitions)
        try:
            used = started.cpu_seconds()
            measured = run(row.client, replace(job, bootstrap=started.bootstrap, topic=topic))
            used = started.cpu_seconds() - used
            sent = measured.get("sent")
            if sent is not None:
                # Of the whole run: the warm-up's records cost the brokers as much as the measured ones.
                measured["broker_cpu_us"] = used / sent * 1e6
                markers = measured.get("markers", 0)
                stored = started.stored(topics, job.partitions) - before - markers
                ends = time.monotonic() + MARKERS_WITHIN
                while markers and stored < sent and time.monotonic() < ends:
                    time.sleep(0.1)
                    stored = started.stored(topics, job.partitions) - before - markers
                if stored != sent:
                    raise RunError(f"{stored} of {sent} records are stored")
            return measured
        finally:
            if job.topics == 1:
                started.delete(topic)
