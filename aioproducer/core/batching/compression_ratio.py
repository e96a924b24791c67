"""How well a topic's records compress, to know how many of them will make a batch."""

from __future__ import annotations

IMPROVING_STEP = 0.005
DETERIORATING_STEP = 0.05


class CompressionRatios:
    """Estimated compressed size by uncompressed size, a topic each (Kafka's ``CompressionRatioEstimator``).

    It believes bad news at once and good news slowly: batches that come out too large cost a round trip.
    """

    __slots__ = ("_estimates",)

    def __init__(self) -> None:
        self._estimates: dict[str, float] = {}

    def estimate(self, topic: str) -> float:
        return self._estimates.get(topic, 1.0)

    def observe(self, topic: str, ratio: float) -> None:
        """A batch of the topic was compressed to ``ratio`` of its size."""
        estimate = self.estimate(topic)
        if ratio > estimate:
            self._estimates[topic] = max(estimate + DETERIORATING_STEP, ratio)
        else:
            self._estimates[topic] = max(estimate - IMPROVING_STEP, ratio)

    def reset(self, topic: str, ratio: float) -> None:
        """A batch was too large for the broker: expect nothing of compression, or what it was if that is worse."""
        self._estimates[topic] = max(1.0, ratio)

    def forget(self, topic: str) -> None:
        self._estimates.pop(topic, None)
