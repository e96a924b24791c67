"""A cluster of Kafka brokers and its clients in one thread, on virtual time, from one seed.

``run`` gives a scenario a ``World``: a loop whose clock jumps, a network in memory, and brokers that speak the real
protocol and keep Kafka's rules, until they are told to fail.

The brokers here are a hand-written model, which answers what no real broker does. ``tests.simulation.embedded`` plays
the same on the embedded broker.
"""

from aioproducer.testing.simulation.loop import StalledError, VirtualLoop
from tests.simulation.cluster import Partition, SimulatedCluster, Topic
from tests.simulation.faults import Fault
from tests.simulation.world import World, run

__all__ = ["Fault", "Partition", "SimulatedCluster", "StalledError", "Topic", "VirtualLoop", "World", "run"]
