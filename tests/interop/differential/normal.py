"""Normalizing observations to plain values, with stable names for everything that differs between clusters."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from aioproducer.error_codes import CODES
from aioproducer.errors import ProtocolError
from aioproducer.protocol import ZERO_UUID, Message
from aioproducer.protocol.schema import BYTES, RECORDS, UUID, Field
from aioproducer.wire.record_batch import LOG_APPEND_TIME, RecordBatch, iter_batches

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | int | bool | None"

_MINUTES_10_MS = 600_000
_RANDOM_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME_IN_TEXT = re.compile(r"-?\b(?!17000000)\d{13,19}\b")

# The first of these fields that the elements of a list have is their sort key: brokers promise no order.
_KEYS = (
    "name",
    "topic",
    "topic_name",
    "key",
    "group_id",
    "transactional_id",
    "resource_name",
    "topic_id",
    "partition_index",
    "partition",
    "index",
    "node_id",
    "broker_id",
    "api_key",
    "metadata",
)


class Names:
    """Stable names for values that a cluster chooses, in the order of appearance."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._ports = {port: f"port of node {node}" for node, port in ports.items()}
        self._topics: dict[bytes, str] = {}
        self._found: dict[tuple[str, object], str] = {}

    def add_topic(self, topic_id: bytes, name: str) -> None:
        """Name the id by its topic; a later topic with the same name has another name."""
        if topic_id != ZERO_UUID and topic_id not in self._topics:
            again = sum(found.split("#")[0] == f"id of {name}" for found in self._topics.values())
            self._topics[topic_id] = f"id of {name}" + (f"#{again + 1}" if again else "")

    def add_producer(self, producer_id: int) -> None:
        """Record that the cluster has assigned the id; others are the scenario's."""
        if producer_id >= 0:
            self.of("producer", producer_id)

    def of(self, kind: str, value: object) -> str:
        """Return ``kind-1`` for the first value of that kind, and so on."""
        count = sum(known_kind == kind for known_kind, _ in self._found)
        return self._found.setdefault((kind, value), f"{kind}-{count + 1}")

    def integer(self, field: str, value: int) -> Tree:
        if field.endswith("error_code"):
            return CODES[value][0] if value in CODES else value
        if field == "port":
            return self._ports.get(value, value)
        if field == "controller_id":
            # KRaft brokers name a random live broker.
            return "a node" if value >= 1 else value
        if field == "session_id" and value > 0:
            return self.of("session", value)
        if field == "producer_id":
            return self._found.get(("producer", value), value)
        if field == "finalized_features_epoch" and value >= 0:
            return "an epoch"
        if abs(value - time.time() * 1000) < _MINUTES_10_MS:
            return "now"
        return value

    def text(self, field: str, value: str) -> str:
        if field == "cluster_id" and value:
            return "the cluster"
        for topic_id, name in self._topics.items():
            value = value.replace(base64.urlsafe_b64encode(topic_id).decode().rstrip("="), name)
        value = _RANDOM_UUID.sub(lambda found: self.of("uuid", found.group()), value)
        return _TIME_IN_TEXT.sub("TIME", value)

    def uuid(self, value: bytes) -> str:
        return "no id" if value == ZERO_UUID else self._topics.get(value, value.hex())


def normalise(names: Names, value: object, version: int = -1, field: str = "") -> Tree:
    """Return ``value``, a message of ``version`` or any observation, as plain values."""
    if isinstance(value, Message):
        return _message(names, value, version)
    if isinstance(value, Mapping):
        return {str(key): normalise(names, item, version, str(key)) for key, item in value.items()}
    if field == "synonyms" and isinstance(value, list):
        # The strongest comes first: this order has a meaning.
        return [f"{synonym.name}={synonym.value} from {synonym.source}" for synonym in value]
    if isinstance(value, list | tuple):
        items = [normalise(names, item, version, field) for item in value]
        key = _key(items)
        return items if key is None else sorted(items, key=lambda item: _order(item, key))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return names.integer(field, value)
    if isinstance(value, str):
        return names.text(field, value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)


def _message(names: Names, message: Message, version: int) -> Tree:
    found: dict[str, Tree] = {}
    for field in type(message).schema.fields:
        if version in field.versions:
            found[field.name] = _field(names, field, getattr(message, field.name), version)
    return found


def _field(names: Names, field: Field, value: object, version: int) -> Tree:
    if field.element is RECORDS:
        assert value is None or isinstance(value, bytes | memoryview)
        return None if value is None else _records(names, value)
    if field.element is UUID and isinstance(value, bytes):
        return names.uuid(value)
    if field.element is BYTES and isinstance(value, bytes):
        return value.hex()
    return normalise(names, value, version, field.name)


def _records(names: Names, data: bytes | memoryview) -> Tree:
    batches = list(iter_batches(data))
    left = len(data) - sum(batch.size_in_bytes for batch in batches)
    return {"batches": [_batch(names, batch) for batch in batches], "bytes of a batch cut off": left}


def _batch(names: Names, batch: RecordBatch) -> Tree:
    fixed = batch.timestamp_type != LOG_APPEND_TIME
    return {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "partition_leader_epoch": batch.partition_leader_epoch,
        "size": batch.size_in_bytes if batch.compression_id == 0 else "compressed",
        "attributes": batch.attributes,
        "base_timestamp": names.integer("timestamp", batch.base_timestamp),
        "max_timestamp": names.integer("timestamp", batch.max_timestamp),
        "producer_id": names.integer("producer_id", batch.producer_id),
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "record_count": batch.record_count,
        "checksum": "right" if batch.checksum_matches else "wrong",
        "records": _contents(names, batch, fixed),
    }


def _contents(names: Names, batch: RecordBatch, fixed: bool) -> Tree:
    try:
        return [
            f"{record.offset} {names.integer('timestamp', record.timestamp) if fixed else 'time of the batch'} "
            f"{record.key!r} {record.value!r:.60} {record.headers}"
            for record in batch.records()
        ]
    except ProtocolError:
        return "malformed"


def _key(items: list[Tree]) -> str | None:
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    for key in _KEYS:
        values = [item[key] for item in items if isinstance(item, dict) and isinstance(item.get(key), str | int)]
        if len(set(values)) == len(items):
            return key
    return None


def _order(item: Tree, key: str) -> tuple[bool, int, str]:
    assert isinstance(item, dict)
    value = item[key]
    return isinstance(value, str), value if isinstance(value, int) else 0, str(value)


def flatten(tree: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """Yield every value with its path: ``topics[orders].partitions[0].error_code``."""
    if isinstance(tree, dict) and tree:
        for name, item in tree.items():
            yield from flatten(item, f"{path}.{name}" if path else name)
    elif isinstance(tree, list) and tree:
        key = _key(tree)
        for position, item in enumerate(tree):
            place = item[key] if key is not None and isinstance(item, dict) else position
            yield from flatten(item, f"{path}[{place}]")
    else:
        yield path, tree
