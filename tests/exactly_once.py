"""The example of consume, transform, produce as a module, and what its results must be."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

EXAMPLE = Path(__file__).parents[1] / "examples" / "consume_transform_produce.py"


def load_example() -> ModuleType:
    """Return the example's module, without running it."""
    spec = importlib.util.spec_from_file_location("consume_transform_produce", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_results(inputs: list[bytes], results: list[bytes]) -> None:
    """Compare results with inputs, which are distinct: each one transformed, once."""
    counts = Counter(results)
    missing = sorted({each.upper() for each in inputs} - counts.keys())
    twice = sorted(each for each, count in counts.items() if count > 1)
    unknown = sorted(counts.keys() - {each.upper() for each in inputs})
    assert (missing, twice, unknown) == ([], [], [])
