"""A Spark session in a separate process, which runs blocks of the documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from tests.docs.blocks import ADDRESS, Block, BlockError
from tests.kafka import jars

SUBMIT = (
    "--master local[2] --driver-memory 512m --conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
    "--conf spark.sql.shuffle.partitions=2 "
    f"--driver-java-options '{' '.join(jars.SHORT_LIVED)}' pyspark-shell"
)
# Reads blocks from its input, and returns whether they failed, and their output.
SESSION = """
import contextlib, io, json, sys, traceback
from pyspark.sql import SparkSession

with SparkSession.builder.getOrCreate() as spark:
    names = {"__name__": "__main__", "spark": spark}
    for line in sys.stdin:
        name, text = json.loads(line)
        failed, printed = False, io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(text, name, "exec"), names)
            except Exception:
                failed = True
                traceback.print_exc(file=printed)
        print(json.dumps([failed, printed.getvalue()]), flush=True)
"""


class Session:
    """The process; ``address`` replaces ``ADDRESS`` in the blocks."""

    def __init__(self, folder: Path, address: str) -> None:
        self._address = address
        self.log = folder / "session.log"
        self._stderr: TextIO = self.log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-c", SESSION],
            cwd=folder,
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": SUBMIT, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def run(self, block: Block) -> str:
        """Run a block, and return its output.

        Raises:
            BlockError: it failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(block), block.text.replace(ADDRESS, self._address)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise BlockError(f"the session has ended before {block}:\n{self.log.read_text()}")
        failed, printed = json.loads(answer)
        if failed:
            raise BlockError(f"{block} failed; it printed:\n{printed}")
        return printed

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._stderr.close()
