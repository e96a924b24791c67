"""The tool without the extras of other rooms."""

from __future__ import annotations

import subprocess
import sys


def test_the_list_of_commands_needs_no_pyarrow() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from aioproducer.cli import main; sys.exit(main(['--help']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "spark-sink" in run.stdout
