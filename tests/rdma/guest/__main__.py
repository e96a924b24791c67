"""``python -m tests.rdma.guest [--limit SECONDS] [--accelerator auto|tcg|kvm] COMMAND...``: see the package."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.kafka import jars
from tests.rdma.guest import machine

_UNAVAILABLE = 125


def main() -> int:
    """Return the command's exit code, 124 after the limit, 125 without a guest or its result."""
    parser = argparse.ArgumentParser(prog="python -m tests.rdma.guest", description="Runs a command beside soft-RoCE.")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that the command may take (%(default)s)")
    parser.add_argument(
        "--accelerator",
        choices=("auto", "tcg", "kvm"),
        default=os.environ.get("AIOPRODUCER_GUEST_ACCELERATOR", "auto"),
        help="kvm, an emulated processor (tcg), or kvm if it works (auto); default: %(default)s, "
        "from AIOPRODUCER_GUEST_ACCELERATOR",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, after -- if it begins with a dash")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command")

    def show(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    began = time.monotonic()
    try:
        code = machine.run(command, limit=options.limit, output=show, accelerator=options.accelerator)
    except (jars.HarnessUnavailableError, machine.GuestError) as error:
        print(f"guest: {error}", file=sys.stderr)
        return _UNAVAILABLE
    print(f"guest: exit code {code} after {time.monotonic() - began:.0f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
