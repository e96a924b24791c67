"""Finds the coordinators of groups and transactional ids, for clients of single requests."""

from __future__ import annotations

from collections.abc import Sequence

from aioproducer.core.transactions.requests import KEYS_FROM, CoordinatorType
from aioproducer.errors import KafkaError, UnsupportedVersionError, broker_error
from aioproducer.io.client import BrokerClient
from aioproducer.protocol.messages.groups import FindCoordinatorRequest

_WHAT = {CoordinatorType.GROUP: "group", CoordinatorType.TRANSACTION: "transactional id"}


async def find_coordinators(
    client: BrokerClient, coordinator: CoordinatorType, keys: Sequence[str], timeout: float
) -> dict[str, int]:
    """Return the id of the node that coordinates each group or transactional id, by one request if possible.

    Any node answers. The caller keeps the result until a coordinator answers that it is none any more.

    Raises:
        KafkaError: there is no coordinator of a key; an error that is not retriable takes precedence.
    """
    if not keys:
        return {}
    try:
        request = FindCoordinatorRequest(key_type=coordinator.value, coordinator_keys=list(keys))
        response = await client.request(request, lowest=KEYS_FROM, timeout=timeout)
    except UnsupportedVersionError:
        return await _find_one_by_one(client, coordinator, keys, timeout)
    found: dict[str, int] = {}
    errors: list[KafkaError] = []
    for each in response.coordinators:
        if each.error_code:
            errors.append(_error(coordinator, each.key, each.error_code, each.error_message))
        else:
            found[each.key] = each.node_id
    if errors:
        raise next((error for error in errors if not error.retriable), errors[0])
    return {key: found[key] for key in keys}


async def _find_one_by_one(
    client: BrokerClient, coordinator: CoordinatorType, keys: Sequence[str], timeout: float
) -> dict[str, int]:
    """As ``find_coordinators``, with brokers before Kafka 3.0 (KIP-699)."""
    found: dict[str, int] = {}
    for key in keys:
        request = FindCoordinatorRequest(key=key, key_type=coordinator.value)
        response = await client.request(request, highest=KEYS_FROM - 1, timeout=timeout)
        if response.error_code:
            raise _error(coordinator, key, response.error_code, response.error_message)
        found[key] = response.node_id
    return found


def _error(coordinator: CoordinatorType, key: str, code: int, message: str | None) -> KafkaError:
    error = broker_error(code, message)
    error.args = (f"{_WHAT[coordinator]} {key!r}: {error}",)
    return error
