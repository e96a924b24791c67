"""The clients: the module of each, its loop, and its requirements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import MappingProxyType

from bench import franz_go, java_peer, spark_parts
from tests.kafka.jars import HarnessUnavailableError


def _nothing() -> None:
    """Do nothing: only this project is needed."""


def _package(*names: str) -> Callable[[], None]:
    def look() -> None:
        for name in names:
            if find_spec(name) is None:
                raise HarnessUnavailableError(f"the package {name} is not installed")

    return look


def _together(*needs: Callable[[], object]) -> Callable[[], None]:
    def look() -> None:
        for need in needs:
            need()

    return look


@dataclass(frozen=True)
class Client:
    """A client. ``module`` has a function for each work; ``environment`` is added to its process's environment."""

    module: str
    loop: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Raises HarnessUnavailableError, which names the missing requirement.
    look: Callable[[], object] = _nothing
    ours: bool = False


_PURE = MappingProxyType({"AIOPRODUCER_PURE": "1"})
_AIOKAFKA_PURE = MappingProxyType({"AIOKAFKA_NO_EXTENSIONS": "1"})
_UVLOOP = _package("uvloop")
_SPARK = _together(_package("psutil", "pyarrow", "py4j"), spark_parts.pyspark)

CLIENTS: dict[str, Client] = {
    "aioproducer (uvloop)": Client("bench.ours", "uvloop", look=_UVLOOP, ours=True),
    "aioproducer (asyncio)": Client("bench.ours", "asyncio", ours=True),
    "franz-go": Client("bench.franz_go", look=franz_go.program),
    "confluent-kafka": Client("bench.confluent_peer", look=_package("confluent_kafka")),
    "confluent-kafka AIOProducer (uvloop)": Client(
        "bench.confluent_aio_peer", "uvloop", look=_together(_package("confluent_kafka"), _UVLOOP)
    ),
    "aiokafka (uvloop)": Client("bench.aiokafka_peer", "uvloop", look=_together(_package("aiokafka"), _UVLOOP)),
    "aiokafka (asyncio)": Client("bench.aiokafka_peer", "asyncio", look=_package("aiokafka")),
    "kafka-python": Client("bench.kafka_python_peer", look=_package("kafka")),
    "Java ProducerPerformance": Client("bench.java_peer", look=java_peer.classpath),
    "Java": Client("bench.java_peer", look=_together(java_peer.classpath, java_peer.compiler)),
    "raw socket": Client("bench.raw_socket"),
    "aioproducer pure (uvloop)": Client("bench.ours", "uvloop", _PURE, look=_UVLOOP, ours=True),
    "aioproducer pure (asyncio)": Client("bench.ours", "asyncio", _PURE, ours=True),
    "aiokafka pure (uvloop)": Client(
        "bench.aiokafka_peer", "uvloop", _AIOKAFKA_PURE, look=_together(_package("aiokafka"), _UVLOOP)
    ),
    "aiokafka pure (asyncio)": Client("bench.aiokafka_peer", "asyncio", _AIOKAFKA_PURE, look=_package("aiokafka")),
    "aioproducer's sink": Client("bench.spark_ours", look=_SPARK, ours=True),
    "aioproducer's sink, exactly once": Client("bench.spark_once", look=_SPARK, ours=True),
    "Spark's own sink": Client("bench.spark_jvm", look=_together(_SPARK, spark_parts.connector)),
    "null sink and raw socket": Client("bench.spark_ceiling", look=_SPARK),
    "nothing but uvloop": Client("bench.plain", "uvloop", look=_UVLOOP),
    "nothing but asyncio": Client("bench.plain", "asyncio"),
}
