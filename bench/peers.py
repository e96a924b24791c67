"""`python -m bench`, by the path of a file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)

from bench.__main__ import main  # noqa: E402  # the project's root has to be on the path

if __name__ == "__main__":
    sys.exit(main())
