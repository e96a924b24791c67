"""librdkafka's mock cluster, taken from the shared object inside confluent-kafka's wheel.

It listens on real ports and injects faults on request: errors for the next requests of an API, delays, stopped brokers,
moved leaders, fewer API versions. It keeps about the newest 5 MiB of a partition in memory and ignores sequence
numbers: it stores a repeated batch twice, and accepts one after a refused one. So it shows lost records, but order and
duplicates only if no batch was refused or sent again.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

from tests.kafka import consuming
from tests.kafka.jars import HarnessUnavailableError

# Protocol request keys that faults are pushed for.
PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22

# librdkafka's code for closing the connection instead of answering.
DISCONNECT = -195

_PRODUCER = 0
_SIGNATURES = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_mem_free": (None, [c_void_p, c_void_p]),
    "rd_kafka_mock_cluster_new": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mock_cluster_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "rd_kafka_mock_topic_set_error": (None, [c_void_p, c_char_p, c_int]),
    "rd_kafka_mock_partition_set_leader": (c_int, [c_void_p, c_char_p, c_int32, c_int32]),
    "rd_kafka_mock_push_request_errors_array": (None, [c_void_p, c_int16, c_size_t, POINTER(c_int)]),
    "rd_kafka_mock_clear_request_errors": (None, [c_void_p, c_int16]),
    "rd_kafka_mock_broker_set_down": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_up": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_rtt": (c_int, [c_void_p, c_int32, c_int]),
    "rd_kafka_mock_set_apiversion": (c_int, [c_void_p, c_int16, c_int16, c_int16]),
    "rd_kafka_mock_start_request_tracking": (None, [c_void_p]),
    "rd_kafka_mock_clear_requests": (None, [c_void_p]),
    "rd_kafka_mock_get_requests": (POINTER(c_void_p), [c_void_p, POINTER(c_size_t)]),
    "rd_kafka_mock_request_destroy_array": (None, [POINTER(c_void_p), c_size_t]),
    "rd_kafka_mock_request_id": (c_int32, [c_void_p]),
    "rd_kafka_mock_request_api_key": (c_int16, [c_void_p]),
}


def _library() -> ctypes.CDLL:
    """Return the library that confluent-kafka has loaded, with types for the functions used here."""
    package = Path(confluent_kafka.__file__).parent
    bundled = [
        *package.parent.glob("confluent_kafka.libs/librdkafka-*"),
        *package.glob(".dylibs/librdkafka*"),
    ]
    if not bundled:
        raise HarnessUnavailableError(
            "confluent-kafka was not installed from a wheel that bundles librdkafka: pip install --only-binary :all: "
            "confluent-kafka"
        )
    library = ctypes.CDLL(str(bundled[0]))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class MockCluster:
    """``brokers`` mock brokers with the ids 1, 2, ...; a context manager."""

    def __init__(self, brokers: int = 3) -> None:
        self._library = _library()
        text = ctypes.create_string_buffer(512)
        configuration = self._library.rd_kafka_conf_new()
        if self._library.rd_kafka_conf_set(configuration, b"log_level", b"0", text, len(text)) != 0:
            raise RuntimeError(text.value.decode())
        self._handle = self._library.rd_kafka_new(_PRODUCER, configuration, text, len(text))
        if not self._handle:
            raise RuntimeError(text.value.decode())
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        if not self._cluster:
            self._library.rd_kafka_destroy(self._handle)
            raise RuntimeError("librdkafka could not start its mock cluster")
        self._library.rd_kafka_mock_start_request_tracking(self._cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the listeners and free everything; only once."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    @property
    def bootstrap_servers(self) -> str:
        return str(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"the mock cluster refused: {self._library.rd_kafka_err2str(code).decode()}")

    def create_topic(self, name: str, partitions: int = 1, replication_factor: int = 1) -> str:
        """Create a topic and return its name."""
        self._check(
            self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, replication_factor)
        )
        return name

    def set_topic_error(self, name: str, code: int) -> None:
        """Let Metadata responses have this error code for the topic from now on; 0 removes it."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), code)

    def set_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make another broker the leader.

        Raises ``ValueError`` for -1, no leader: librdkafka accepts it, but its mock crashes the process at the next
        Produce request of any client.
        """
        if broker_id < 0:
            raise ValueError("librdkafka's mock crashes when records come for a partition without a leader")
        self._check(
            self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker_id)
        )

    def push_errors(self, api_key: int, codes: Sequence[int]) -> None:
        """Let the next requests of that API fail with these codes, one each; nothing of them is stored."""
        array = (c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, api_key, len(codes), array)

    def clear_errors(self, api_key: int) -> None:
        """Remove pushed errors that were not used."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, api_key)

    def set_down(self, broker_id: int = -1) -> None:
        """Drop the broker's connections and accept no new ones; -1 for all brokers. Leaders stay the same."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._cluster, broker_id))

    def set_up(self, broker_id: int = -1) -> None:
        """Accept connections again."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._cluster, broker_id))

    def set_round_trip(self, milliseconds: int, broker_id: int = -1) -> None:
        """Delay every response."""
        self._check(self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker_id, milliseconds))

    def limit_versions(self, limits: Mapping[int, int]) -> None:
        """Set the newest version of each API key that the brokers advertise and serve from now on."""
        for api_key, maximum in limits.items():
            self._check(self._library.rd_kafka_mock_set_apiversion(self._cluster, api_key, 0, maximum))

    def requests(self) -> Counter[tuple[int, int]]:
        """Return the numbers of requests since ``clear_requests``, by broker id and API key."""
        count = c_size_t()
        array = self._library.rd_kafka_mock_get_requests(self._cluster, byref(count))
        try:
            return Counter(
                (self._library.rd_kafka_mock_request_id(one), self._library.rd_kafka_mock_request_api_key(one))
                for one in array[: count.value]
            )
        finally:
            self._library.rd_kafka_mock_request_destroy_array(array, count)

    def clear_requests(self) -> None:
        """Reset the numbers of requests."""
        self._library.rd_kafka_mock_clear_requests(self._cluster)

    def read_back(
        self, topic: str, *, at_least: int = 0, timeout: float = 30
    ) -> dict[int, list[consuming.StoredRecord]]:
        """Return every record that is still in the mock's memory, as confluent-kafka reads it."""
        return consuming.read_back(self.bootstrap_servers, topic, at_least=at_least, timeout=timeout)
