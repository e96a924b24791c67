"""The bench: this project's producer and every peer side by side, against Apache Kafka on this machine.

Every run has its own process. Clients take turns, in another order each round. Client and broker are warmed up first,
and the stored records are counted at the broker. CPU is user and system time of the client's process.

    python -m bench --quick                         scenarios 1 to 4 and import time, within two minutes
    python -m bench                                 everything, five rounds
    python -m bench --scenarios 1a,4 --clients aioproducer,raw --rounds 9
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="one short round: a check of the bench, not a measurement")
    found.add_argument(
        "--scenarios", default="", metavar="NAME,...", help="scenarios with names that begin like this; default: all"
    )
    found.add_argument("--clients", default="", metavar="NAME,...", help="clients with one of these in their names")
    found.add_argument("--rounds", type=int, default=0, help="runs of each client (5; 1 with --quick)")
    found.add_argument("--records", type=int, default=0, help="records of each run that measures throughput")
    found.add_argument(
        "--output",
        type=Path,
        help="folder for results.json and plots, which keeps other scenarios' (build/bench/ and the time)",
    )
    found.add_argument("--list", action="store_true", help="show scenarios and clients, run nothing")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen scenarios; return 1 if a run failed. An exceeded limit is not a failure of the bench."""
    from bench import report
    from bench.runner import Run
    from bench.scenarios import rows, select
    from bench.verdicts import verdicts

    asked = parser()
    chosen = asked.parse_args(arguments)
    try:
        scenarios = select(chosen.scenarios, chosen.quick)
    except ValueError as error:
        asked.error(str(error))
    scenarios = [scenario for scenario in scenarios if rows(scenario, chosen.clients)]
    if not scenarios:
        asked.error(f"no client's name contains {chosen.clients!r}")
    if chosen.rounds < 0 or chosen.records < 0:
        asked.error("--rounds and --records must be at least 1")
    if chosen.list:
        for scenario in scenarios:
            print(f"{scenario.name}: {scenario.title}")
            for row in rows(scenario, chosen.clients):
                print(f"    {row.label}")
        return 0
    rounds = chosen.rounds or (1 if chosen.quick else 5)
    output = chosen.output or ROOT / "build" / "bench" / time.strftime("%Y-%m-%d-%H%M%S")
    surroundings = report.environment()
    run = Run(
        quick=chosen.quick,
        rounds=rounds,
        clients=chosen.clients,
        records=chosen.records,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    began = time.monotonic()
    outcomes = run.scenarios(scenarios)
    found = verdicts({outcome.scenario.name: outcome.results for outcome in outcomes})
    for outcome in outcomes:
        print(f"\n{report.table(outcome)}")
    print(f"\n{report.verdict_lines(found)}")
    output.mkdir(parents=True, exist_ok=True)
    settings = {"quick": chosen.quick, "rounds": rounds, "records": chosen.records or None}
    settings |= {"seconds": round(time.monotonic() - began, 1)}
    results = output / "results.json"
    of_scenarios = report.recorded(results) | report.scenarios(outcomes, surroundings)
    results.write_text(json.dumps(report.document(settings, surroundings, of_scenarios), indent=1) + "\n")
    print(f"\nwritten: {results}")
    try:
        from bench.plots import draw
    except ImportError as error:
        print(f"no plots: {error}")
    else:
        for outcome in outcomes:
            path = draw(outcome, surroundings, output)
            if path is not None:
                print(f"written: {path}")
    return 1 if any(outcome.failures for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
