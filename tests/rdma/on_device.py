"""``pytest -p tests.rdma.on_device`` runs tests that are written for the double on this machine's RDMA device.

They may count live objects and receivers that were not ready, and put queue pairs into error. A device offers none of
the double's other controls.
"""

from __future__ import annotations

import aioproducer.testing.verbs
from aioproducer.testing.verbs import LiveObjects
from aioproducer.transport.rdma.pyverbs_layer import PyverbsDevice, PyverbsLayer, PyverbsQueuePair


class DeviceFabric(PyverbsLayer):
    """Replaces ``SimulatedFabric``."""

    # A device lets the sender wait without reporting it.
    receiver_not_ready = 0

    def __init__(self) -> None:
        super().__init__()
        self._opened: list[PyverbsDevice] = []

    def open(self, device: str | None, gid: str | None) -> PyverbsDevice:
        opened = super().open(device, gid)
        self._opened.append(opened)
        return opened

    @property
    def queue_pairs(self) -> list[PyverbsQueuePair]:
        found = [child for device in self._opened for child in device._children if isinstance(child, PyverbsQueuePair)]
        # Numbers are assigned in ascending order.
        return sorted(found, key=lambda queue_pair: queue_pair.facts.number)

    @property
    def live(self) -> LiveObjects:
        devices = [device for device in self._opened if not device._closed]
        queue_pairs = len(self.queue_pairs)
        return LiveObjects(len(devices), sum(len(device._children) for device in devices) - queue_pairs, queue_pairs)


aioproducer.testing.verbs.SimulatedFabric = DeviceFabric  # type: ignore[assignment,misc]  # as the package says
