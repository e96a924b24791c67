"""Clocks and randomness of the project are those of the simulation, for as long as it runs."""

from __future__ import annotations

import contextlib
import os
import random as random_module
import sys
import time
import uuid
from random import Random
from types import ModuleType

import pytest

from aioproducer import admin, producer
from aioproducer._client import hot_path
from aioproducer.broker import cluster
from aioproducer.config import ProducerConfig
from aioproducer.config.consumer import ConsumerConfig
from aioproducer.testing.simulation.determinism import WALL_CLOCK, reproducible
from aioproducer.testing.simulation.loop import VirtualLoop


def _draw() -> tuple[object, ...]:
    loop, random = VirtualLoop(Random(1)), Random(1)
    try:
        with reproducible(loop, random):
            return (
                uuid.uuid4(),
                os.urandom(4),
                random_module.randrange(1 << 30),
                vars(producer)["Random"]().random(),
                vars(admin)["Random"]().random(),
            )
    finally:
        loop.close()


def test_equal_seeds_draw_equal_values_from_every_source() -> None:
    assert _draw() == _draw()


def test_sources_are_restored() -> None:
    _draw()
    assert vars(producer)["Random"] is Random
    assert len({os.urandom(8) for _ in range(2)}) == 2
    assert vars(hot_path)["time_ns"] is time.time_ns


def test_clocks_follow_the_loop() -> None:
    loop = VirtualLoop(Random(1))
    try:
        with reproducible(loop, Random(1)):
            time_ns = vars(hot_path)["time_ns"]
            before = time_ns()
            loop.hold_up(5.0)
            assert time_ns() - before == 5_000_000_000
            assert time_ns() == int((WALL_CLOCK + loop.time()) * 1e9)
    finally:
        loop.close()


def test_clocks_follow_the_loop_after_a_simulation_with_a_frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each later simulation of the process read the system's clock in a module whose clock was once replaced."""
    for is_frozen in (True, False):
        loop = VirtualLoop(Random(1))
        with monkeypatch.context() as frozen, contextlib.closing(loop):
            if is_frozen:
                frozen.setattr(hot_path, "time_ns", lambda: 0)
            with reproducible(loop, Random(1)):
                expected = 0 if is_frozen else int((WALL_CLOCK + loop.time()) * 1e9)
                assert vars(hot_path)["time_ns"]() == expected


def test_each_simulation_counts_from_1_and_gives_the_counters_back() -> None:
    def make_ids() -> list[str]:
        given = {"bootstrap.servers": "broker:9092"}
        clients = [ProducerConfig.from_mapping(given), ConsumerConfig.from_mapping(given)]
        return [str(client.client_id) for client in clients]

    before = make_ids()
    for _ in range(2):
        loop = VirtualLoop(Random(1))
        with contextlib.closing(loop), reproducible(loop, Random(1)):
            assert make_ids() == ["producer-1", "consumer-1"]
            assert cluster._memory_address() == "10.0.0.1"
    numbers = [int(client_id.partition("-")[2]) for client_id in before]
    assert make_ids() == [f"producer-{numbers[0] + 1}", f"consumer-{numbers[1] + 1}"]


def test_a_module_that_is_imported_meanwhile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have real clocks."""
    loop = VirtualLoop(Random(1))
    try:
        with (
            pytest.raises(AssertionError, match=r"with real clocks: \['aioproducer\.late'\]"),
            reproducible(loop, Random(1)),
        ):
            monkeypatch.setitem(sys.modules, "aioproducer.late", ModuleType("aioproducer.late"))
    finally:
        loop.close()
