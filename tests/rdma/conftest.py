"""The RDMA device that these tests need; without one they are skipped, with the reason."""

from __future__ import annotations

import os

import pytest

from aioproducer.transport.rdma.pyverbs_layer import PyverbsLayer
from aioproducer.transport.rdma.verbs import RdmaUnavailableError

IN_GUEST = os.environ.get("AIOPRODUCER_IN_GUEST") == "1"


@pytest.fixture
def verbs() -> PyverbsLayer:
    """This machine's RDMA devices, at least one of which works. In the guest a missing device is an error."""
    try:
        layer = PyverbsLayer()
        layer.open(None, None).close()
    except RdmaUnavailableError as missing:
        if IN_GUEST:
            raise
        pytest.skip(f"`make test-rdma` runs this in a guest that has an RDMA device: {missing}")
    return layer


@pytest.fixture
def guest_verbs(verbs: PyverbsLayer) -> PyverbsLayer:
    """As ``verbs``, for a test that changes the machine's devices."""
    if not IN_GUEST:
        pytest.skip("`make test-rdma` runs this in a guest: it changes the machine's RDMA devices")
    return verbs
