"""The virtual loop of ``aioproducer.testing.simulation``, by the name that tests import."""

from aioproducer.testing.simulation.loop import StalledError, VirtualLoop

__all__ = ["StalledError", "VirtualLoop"]
