"""``make simulate SEEDS=0-999`` and ``make planted-bugs``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.embedded.planted import BUGS
from tests.simulation.embedded.sweep import MAX_SEEDS, Played, find_all, sweep

_TESTS = "tests/simulation/embedded/test_seeds.py"
_TEST = """
def test_seed_{seed}() -> None:
    assert play_seed({seed}, kinds=({kind!r},), version={version}, is_small={is_small}).violations == []
"""


def _simulate(seeds: range, version: int, size: str, histories: Path | None) -> int:
    is_small = size == "small"
    if histories is not None:
        histories.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    failed: list[Played] = []
    for count, played in enumerate(sweep(seeds, version=version, is_small=is_small, histories=histories), 1):
        if played.violations:
            failed.append(played)
            print(f"\rseed {played.seed} ({played.kind}):", *played.violations[:5], sep="\n  ")
        rate = 60 * count / (time.monotonic() - began)
        print(f"\r{count} of {len(seeds)} seeds, {rate:.0f} a minute, {len(failed)} failed ", end="", flush=True)
    print()
    for played in failed:
        print(f"\nmake simulate SEEDS={played.seed} SIZE={size} TRANSACTION_VERSION={version}, or in {_TESTS}:")
        print(_TEST.format(seed=played.seed, kind=played.kind, version=version, is_small=is_small))
    return 1 if failed else 0


def _plant(names: list[str]) -> int:
    unknown = [name for name in names if name not in BUGS]
    if unknown:
        print(f"no such bug: {', '.join(unknown)}; there are {', '.join(BUGS)}", file=sys.stderr)
        return 2
    missed = 0
    for name, found in find_all(names or list(BUGS)):
        if found is None:
            missed += 1
            print(f"{name:55} NOT FOUND in {MAX_SEEDS} seeds", flush=True)
        else:
            print(f"{name:55} {found.seeds:3} seeds  {str(found.violation)[:110]}", flush=True)
    return 1 if missed else 0


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.embedded")
    commands = parser.add_subparsers(dest="command", required=True)
    simulate = commands.add_parser("simulate", help="play seeds on all processors")
    simulate.add_argument("seeds", type=_range, help="first-last")
    simulate.add_argument("--transaction-version", type=int, choices=(1, 2), default=2)
    simulate.add_argument("--size", choices=("small", "large"), default="small", help="of each seed's story")
    simulate.add_argument("--histories", type=Path, help="folder for each seed's transactions, as Elle's JSON lines")
    plant = commands.add_parser("planted-bugs", help="how many seeds each planted bug needs")
    plant.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.command == "simulate":
        return _simulate(arguments.seeds, arguments.transaction_version, arguments.size, arguments.histories)
    return _plant(arguments.names)


if __name__ == "__main__":
    sys.exit(main())
