"""Fixtures of the tests of data handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.broker.scene import Scene, a_scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """One node in memory, with the topic ``t`` of three partitions."""
    async with a_scene() as scene:
        yield scene
