"""Transports carry the producer's bytes; ``base`` is their common interface."""
