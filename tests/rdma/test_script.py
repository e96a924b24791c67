"""A device behaves as the transcript of soft-RoCE; cards have to as well."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer
from tests.rdma import script


@pytest.mark.parametrize("scenario", script.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_device_behaves_as_the_transcript(scenario: Callable[[script.Stage], None], verbs: PyverbsLayer) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert script.played(scenario, verbs) == script.transcript()[scenario.__name__]
    assert len(os.listdir("/proc/self/fd")) == before
