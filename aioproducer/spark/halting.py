"""Named points of the exactly-once flows at which a test may have a process wait to be killed.

Off unless ``AIOPRODUCER_SPARK_HALT_AT`` is ``point=path``: the process that reaches the point creates the file and
waits there. It goes on only if the file is removed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

VARIABLE = "AIOPRODUCER_SPARK_HALT_AT"
# In seconds.
_LOOK_EVERY = 0.05
_LONGEST = 300.0


def halts_at(point: str) -> bool:
    """Return whether a process waits at this point."""
    return os.environ.get(VARIABLE, "").partition("=")[0] == point


async def reached(point: str) -> None:
    """Wait here if a test wants it.

    Raises:
        TimeoutError: nothing has killed the process within five minutes.
    """
    if not halts_at(point):
        return
    path = os.environ[VARIABLE].partition("=")[2]
    Path(path).touch()  # noqa: ASYNC240  # in tests only
    async with asyncio.timeout(_LONGEST):
        while os.path.exists(path):  # noqa: ASYNC110, ASYNC240  # another process removes it
            await asyncio.sleep(_LOOK_EVERY)
