"""Runs one block of Python in this process: ``python -m tests.docs.run_block SCRIPT NAME ADDRESS``.

A block with a top-level ``await``, as in ``python -m asyncio``, has a started ``producer``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from pathlib import Path

from aioproducer import Producer


def main(script: str, name: str, address: str) -> None:
    code = compile(Path(script).read_text(), name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, object] = {"__name__": "__main__"}
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, names)
        return

    async def run() -> None:
        async with Producer(bootstrap_servers=address) as producer:
            names["producer"] = producer
            await eval(code, names)

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
