"""A Kafka cluster, its clients and a user's own coroutines on virtual time, with faults that a seed draws.

``run_simulated`` runs a coroutine; ``@pytest.mark.simulated(seeds=range(20))`` runs a test once for each seed.
``docs/simulation.md`` shows how to use them.

===============  =====================================================================================================
module           task
===============  =====================================================================================================
``loop``         an event loop whose clock jumps to the next timer
``determinism``  clocks and randomness follow the loop and the seed
``trace``        one line for each event, and the digest of all: a seed replays exactly if the digests are equal
``network``      connections with latency, and with faults: cuts at any byte, half-open connections, stopped nodes
``disk``         the nodes' disks: full, or with unsynced bytes that a power loss takes
``world``        the loop, the network, the disk and the cluster of one simulation
``trouble``      draws faults, and ends them
``simulation``   what users call
===============  =====================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.testing.simulation.loop import StalledError
    from aioproducer.testing.simulation.simulation import Process, Simulation, SimulationError, run_simulated

__all__ = ["Process", "Simulation", "SimulationError", "StalledError", "run_simulated"]


def __getattr__(name: str) -> object:
    # The tests of this project import single modules of this package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aioproducer.testing.simulation import loop, simulation

    return getattr(loop if name == "StalledError" else simulation, name)
