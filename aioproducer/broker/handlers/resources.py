"""The kinds of resources with configurations, by the protocol's numbers (Kafka's ``ConfigResource.Type``)."""

from __future__ import annotations

from typing import Final

TOPIC: Final = 2
BROKER: Final = 4

RESOURCE_TYPES: Final = {TOPIC: "TOPIC", BROKER: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
"""Kafka's types; only topics and brokers have configurations here."""
