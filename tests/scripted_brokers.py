"""Two brokers that answer an Admin's requests as a test has scripted them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from aioproducer.admin import Admin
from aioproducer.core.transactions.requests import CoordinatorType
from aioproducer.errors import UnsupportedVersionError
from aioproducer.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from aioproducer.protocol.messages.groups import Coordinator


class ScriptedBrokers:
    """The client of an Admin: ``handlers`` answer by the type of the request, ``highest`` limits its versions.

    Broker 2 coordinates ``x-1``, broker 1 ``x-2``; partition 0 is led by broker 1, partition 1 by broker 2.
    """

    def __init__(self, coordinator_type: CoordinatorType) -> None:
        self.coordinator_type = coordinator_type
        self.metadata = SimpleNamespace(nodes={1: None, 2: None, -1: None}, node=lambda node_id: node_id)
        self.handlers: dict[type, Callable] = {FindCoordinatorRequest: self.find_coordinator}
        self.highest: dict[type, int] = {}
        self.requests: list[tuple] = []
        self.renewals = 0
        self.coordinators: dict[str, int] = {}
        self.lookup_errors: dict[str, int] = {}
        self.leaders: dict[tuple[str, int], int] = {}

    async def request(self, request, *, node_id=None, lowest=0, highest=32767, timeout):
        supported = self.highest.get(type(request), 32767)
        if lowest > supported:
            raise UnsupportedVersionError
        self.requests.append((request, node_id, min(highest, supported)))
        response = self.handlers[type(request)](request, node_id)
        if isinstance(response, Exception):
            raise response
        return response

    def sent(self, kind):
        return [each for each in self.requests if isinstance(each[0], kind)]

    def find_coordinator(self, request, node_id):
        assert request.key_type == self.coordinator_type.value
        found = [
            Coordinator(
                key=key,
                node_id=self.coordinators.get(key, 1 + int(key[-1]) % 2),
                error_code=self.lookup_errors.get(key, 0),
            )
            for key in request.coordinator_keys or [request.key]
        ]
        if request.key:
            return FindCoordinatorResponse(node_id=found[0].node_id, error_code=found[0].error_code)
        return FindCoordinatorResponse(coordinators=found)

    async def renew_metadata(self, timeout):
        self.renewals += 1

    async def broker_ids(self, timeout):
        return [1, 2]

    async def partition_count(self, topic, timeout):
        return 2

    def leader(self, topic, partition):
        return self.leaders.get((topic, partition), 1 + partition)


def admin_of(client: ScriptedBrokers) -> Admin:
    """Return an Admin that sends its requests to these brokers."""
    admin = Admin(bootstrap_servers="localhost:1", timeout=2, retry_backoff_ms=1, retry_backoff_max_ms=1)
    admin._client = client
    return admin


def in_turn(*responses):
    """Return a handler that returns one response after the other, and repeats the last one."""
    left = list(responses)
    return lambda request, node_id: left.pop(0) if len(left) > 1 else left[0]
