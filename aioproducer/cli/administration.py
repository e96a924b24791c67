"""Running a command that consists of admin calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aioproducer.admin import Admin
from aioproducer.cli.exits import SUCCEEDED
from aioproducer.cli.options import ClusterOptions
from aioproducer.cli.running import run_briefly


def administer(cluster: ClusterOptions, work: Callable[[Admin], Awaitable[None]]) -> int:
    """Run ``work`` with an Admin of the given options, and return the exit code."""
    config = cluster.config()

    async def body() -> int:
        async with Admin.from_config(config, timeout=cluster.timeout) as admin:
            await work(admin)
        return SUCCEEDED

    return run_briefly(body)
