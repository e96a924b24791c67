"""Running a command that consists of admin calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aioproducer.admin import Admin
from aioproducer.cli.exits import SUCCEEDED
from aioproducer.cli.options import client_config
from aioproducer.cli.running import run_briefly


def administer(
    bootstrap_server: str | None,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    config_file: str | None,
    timeout: float,
    work: Callable[[Admin], Awaitable[None]],
) -> int:
    """Run ``work`` with an Admin of the given options, and return the exit code."""
    config = client_config(bootstrap_server, settings, secrets, config_file)

    async def body() -> int:
        async with Admin.from_config(config, timeout=timeout) as admin:
            await work(admin)
        return SUCCEEDED

    return run_briefly(body)
