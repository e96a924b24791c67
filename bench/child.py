"""The process of one run: `python -m bench.child MODULE JOB`; prints the measurements as JSON."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

from bench.job import Job, Measurement


def command_for(module: str, job: Job) -> list[str]:
    """Return the command line that runs ``job`` with a client; its working directory is the project's root."""
    return [sys.executable, "-m", "bench.child", module, json.dumps(asdict(job))]


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the loop with that name: uvloop's or asyncio's."""
    if name == "uvloop":
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory
    return asyncio.new_event_loop


def run(module: str, job: Job) -> Measurement:
    """Run a job in this process, on the loop that it names."""
    # Read before the measurement.
    job.values()
    work: Any = getattr(import_module(module), job.work)
    if not inspect.iscoroutinefunction(work):
        measured: Measurement = work(job)
        return measured
    with asyncio.Runner(loop_factory=loop_factory(job.loop)) as runner:
        return runner.run(work(job))


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Job(**json.loads(sys.argv[2])))))
