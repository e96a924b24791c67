"""Finds the coordinators of groups and transactional ids, for clients of single requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aioproducer.core.transactions.requests import KEYS_FROM, CoordinatorType
from aioproducer.errors import KafkaError, UnsupportedVersionError, broker_error
from aioproducer.io.client import BrokerClient
from aioproducer.protocol.messages.groups import FindCoordinatorRequest

_WHAT = {CoordinatorType.GROUP: "group", CoordinatorType.TRANSACTION: "transactional id"}


async def find_coordinators(
    client: BrokerClient, coordinator: CoordinatorType, keys: Sequence[str], timeout: float
) -> dict[str, int]:
    """Return the id of the node that coordinates each group or transactional id, as ``look_up_coordinators`` finds it.

    Raises:
        KafkaError: there is no coordinator of a key; an error that is not retriable takes precedence.
    """
    found = await look_up_coordinators(client, coordinator, keys, timeout)
    nodes = {key: node_id for key, node_id in found.items() if not isinstance(node_id, KafkaError)}
    errors = [error for error in found.values() if isinstance(error, KafkaError)]
    if errors:
        raise next((error for error in errors if not error.retriable), errors[0])
    return nodes


async def look_up_coordinators(
    client: BrokerClient, coordinator: CoordinatorType, keys: Sequence[str], timeout: float
) -> dict[str, int | KafkaError]:
    """Return the id of the node that coordinates each group or transactional id, or the error of the lookup.

    Any node answers, one request if possible. The caller keeps the result until a coordinator answers that it is none
    any more. A new client has the bootstrap addresses only: it requests metadata then, as a request to a node that
    metadata does not list fails.

    Raises:
        KafkaError: there was no response.
    """
    if not keys:
        return {}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    found = await _look_up(client, coordinator, keys, timeout)
    nodes = [each for each in found.values() if not isinstance(each, KafkaError)]
    if not all(node_id in client.metadata.nodes for node_id in nodes):
        await client.renew_metadata(max(deadline - loop.time(), 0))
    return found


async def _look_up(
    client: BrokerClient, coordinator: CoordinatorType, keys: Sequence[str], timeout: float
) -> dict[str, int | KafkaError]:
    try:
        request = FindCoordinatorRequest(key_type=coordinator.value, coordinator_keys=list(keys))
        response = await client.request(request, lowest=KEYS_FROM, timeout=timeout)
    except UnsupportedVersionError:
        return await _look_up_one_by_one(client, coordinator, keys, timeout)
    found = {
        each.key: _error(coordinator, each.key, each.error_code, each.error_message)
        if each.error_code
        else each.node_id
        for each in response.coordinators
    }
    return {key: found[key] for key in keys}


async def _look_up_one_by_one(
    client: BrokerClient, coordinator: CoordinatorType, keys: Sequence[str], timeout: float
) -> dict[str, int | KafkaError]:
    """As ``_look_up``, with brokers before Kafka 3.0 (KIP-699)."""
    found: dict[str, int | KafkaError] = {}
    for key in keys:
        request = FindCoordinatorRequest(key=key, key_type=coordinator.value)
        response = await client.request(request, highest=KEYS_FROM - 1, timeout=timeout)
        code = response.error_code
        found[key] = _error(coordinator, key, code, response.error_message) if code else response.node_id
    return found


def _error(coordinator: CoordinatorType, key: str, code: int, message: str | None) -> KafkaError:
    error = broker_error(code, message)
    error.args = (f"{_WHAT[coordinator]} {key!r}: {error}",)
    return error
