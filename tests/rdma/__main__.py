"""``python -m tests.rdma`` rewrites ``transcript.txt``, from the RDMA device of this machine."""

from __future__ import annotations

from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer
from tests.rdma import script


def main() -> None:
    """Play every scenario, and print its lines in the form of ``transcript.txt``."""
    verbs = PyverbsLayer()
    for scenario in script.SCENARIOS:
        print(f"{scenario.__name__}")
        for line in script.played(scenario, verbs):
            print(f"    {line}", flush=True)


if __name__ == "__main__":
    main()
