"""The command line, as ``python -m aioproducer``."""

from __future__ import annotations

import sys

from aioproducer.cli import main

if __name__ == "__main__":
    sys.exit(main())
