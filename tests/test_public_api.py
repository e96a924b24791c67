"""The public names, and their types for type checkers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import aioproducer
from aioproducer import errors

ROOT = Path(__file__).parent.parent

SNIPPET = """
import asyncio
from typing import Literal, assert_type
from aioproducer import ConsumerGroupMetadata, Delivery, KafkaError, OffsetAndMetadata, Producer, Record, RecordMetadata
from aioproducer import SendManyResult, TopicPartition, Transaction, TransactionPool


def on_error(topic_partition: TopicPartition, count: int, error: KafkaError) -> None: ...


async def takes_a_future(future: asyncio.Future[RecordMetadata]) -> RecordMetadata:
    return await future


async def main() -> None:
    async with Producer(bootstrap_servers="localhost:9092", linger_ms=5, on_error=on_error) as producer:
        assert_type(producer, Producer)
        delivery = producer.send("t", b"v", key=bytearray(b"k"), headers=[("h", b"v"), ("n", None)])
        assert_type(delivery, Delivery)
        assert_type(await delivery, RecordMetadata)
        assert_type(await producer.send("t"), RecordMetadata)
        assert_type((await delivery).offset, int | None)
        assert_type(await asyncio.wait_for(delivery, 1), RecordMetadata)
        assert_type(await asyncio.gather(delivery), tuple[RecordMetadata])
        assert_type(await asyncio.shield(delivery), RecordMetadata)
        assert_type(await takes_a_future(delivery), RecordMetadata)
        await asyncio.wait([delivery])
        await producer.drain()
        await producer.flush()
        many = await producer.send_many("t", [b"1"], keys=(b"2",), timestamps_ms=[1], headers=[[]])
        assert_type(many, SendManyResult)
        assert_type(many.offsets, dict[int, list[range]])
        assert_type(producer.send_record(Record("t", b"v")), Delivery)
        assert_type(producer.threadsafe().send("t", b"v").result(), RecordMetadata)
        assert_type(producer.threadsafe().send_many("t", [b"v"]).result(), SendManyResult)
        producer.send("t", b"v", partion=1)
        producer.send(b"t", b"v")
    Producer.from_config({"bootstrap.servers": "localhost:9092"}, hooks=[])


async def transactions(pool: TransactionPool, producer: Producer) -> None:
    async with pool.transaction() as transaction:
        assert_type(transaction, Transaction)
        assert_type(transaction.send("t", b"v"), Delivery)
        await transaction.send_offsets({TopicPartition("t", 0): 7}, "group")
        offsets = {TopicPartition("t", 0): OffsetAndMetadata(7)}
        await transaction.send_offsets(offsets, ConsumerGroupMetadata("group", 1, "member"))
    assert_type(await transaction.outcome(), Literal["committed", "aborted"])
    async with producer.transaction() as own:
        assert_type(own, Transaction)
    assert_type(await producer.begin_transaction(), Transaction)
"""

KEYS = """
import json
import ssl
from typing import Any, Unpack

from aioproducer import OAuthBearerToken, Producer, ProducerConfig, Record, RecordMetadata, TransactionPool
from aioproducer.admin import Admin
from aioproducer.config import ConnectionConfigDict, Password, ProducerConfigDict
from aioproducer.consumer import Reader
from aioproducer.interceptors import ProducerInterceptor
from aioproducer.partitioner import ClusterView, RoundRobinPartitioner
from aioproducer.record import HeaderPair
from aioproducer.serializers import JsonSerializer, StringSerializer
from aioproducer.testing import EmbeddedCluster, EmbeddedClusterThread

B = "localhost:9092"


class Order: ...


class OrderSerializer:
    def serialize(self, subject: str, order: Order, headers: list[HeaderPair]) -> bytes:
        return b""


class AsyncSerializer:
    async def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> bytes:
        return b""


class Stamp:
    def on_send(self, record: Record) -> Record:
        return record


class Counter:
    def on_acknowledgement(self, metadata: RecordMetadata, exception: BaseException | None) -> None: ...


class Tracing:
    def on_headers(self, name: str, pairs: list[tuple[str, bytes | None]]) -> None:
        pairs.append(("traceparent", name.encode()))


class FirstPartition:
    def partition(self, topic: str, key: bytes | None, payload: bytes | None, cluster: ClusterView) -> int:
        return 0


def choose(topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
    return 0


async def token() -> OAuthBearerToken:
    return OAuthBearerToken("t", 1.0)


def plain_token() -> tuple[str, float]:
    return "t", 1.0


async def password() -> str:
    return "x"


def engine(config: ProducerConfig) -> ssl.SSLContext:
    return ssl.create_default_context()


counters: list[Counter] = []
Producer(bootstrap_servers=B, acks="all", linger_ms=5, enable_idempotence=False)
Producer(bootstrap_servers=[B], acks=-1, compression_type="zstd")
Producer(bootstrap_servers=(B,), acks="-1", sasl_login_refresh_window_factor=1)
Producer(bootstrap_servers=B, key_serializer=StringSerializer, value_serializer=JsonSerializer())
Producer(bootstrap_servers=B, key_serializer=str.encode, value_serializer=lambda value: json.dumps(value).encode())
Producer(bootstrap_servers=B, key_serializer="json:dumps", value_serializer=OrderSerializer())
Producer(bootstrap_servers=B, key_serializer=AsyncSerializer(), value_serializer=AsyncSerializer)
Producer(bootstrap_servers=B, interceptor_classes=[Stamp(), Counter, Tracing(), "keys:Stamp", ProducerInterceptor()])
Producer(bootstrap_servers=B, partitioner_class=FirstPartition(), interceptor_classes=counters)
Producer(bootstrap_servers=B, partitioner_class=choose, interceptor_classes=(Stamp,))
Producer(bootstrap_servers=B, partitioner_class=RoundRobinPartitioner, ssl_engine_factory_class=engine)
Producer(bootstrap_servers=B, ssl_context=ssl.create_default_context(), security_protocol="ssl")
Producer(
    bootstrap_servers=B, security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_token_provider=token
)
Producer(
    bootstrap_servers=B, security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_token_provider=plain_token
)
Producer(
    bootstrap_servers=B,
    security_protocol="SASL_SSL",
    sasl_mechanism="SCRAM-SHA-256",
    sasl_username="a",
    sasl_password=password,
    ssl_truststore_location=None,
)
Producer(
    bootstrap_servers=B,
    security_protocol="sasl_ssl",
    sasl_mechanism="PLAIN",
    sasl_username="a",
    sasl_password=Password("x"),
)
Producer.from_config({"bootstrap.servers": B, "linger.ms": "5"})
ProducerConfig.from_kwargs(bootstrap_servers=B, linger_ms=3)
Admin(bootstrap_servers=B, timeout=3, client_id="x")
Reader("t", bootstrap_servers=B, request_timeout_ms=100)

TransactionPool(transactional_id_prefix="x", max_producers=2, acquire_timeout_ms=5, bootstrap_servers=B, linger_ms=5)

settings: dict[str, Any] = {"bootstrap_servers": B}
Producer(**settings)
common: ProducerConfigDict = {"bootstrap_servers": B, "acks": "all"}
Producer(**common)
connection: ConnectionConfigDict = {"bootstrap_servers": B}
Admin(**connection)
Producer(**connection)


def producers_of_tests(cluster: EmbeddedCluster, thread: EmbeddedClusterThread) -> None:
    cluster.producer(acks=1)
    thread.producer(acks=1)
    cluster.producer(ack=1)  # wrong
    thread.producer(ack=1)  # wrong


def fast_producer(**config: Unpack[ProducerConfigDict]) -> Producer:
    config.setdefault("linger_ms", 0)
    return Producer(**config)


Producer(bootstrap_server=B)  # wrong
Producer(bootstrap_servers=9092)  # wrong
Producer(bootstrap_servers=B, linger_ms="five")  # wrong
Producer(bootstrap_servers=B, enable_idempotence="yes")  # wrong
Producer(bootstrap_servers=B, compression_type="gzp")  # wrong
Producer(bootstrap_servers=B, acks=2)  # wrong
Producer(bootstrap_servers=B, acks=None)  # wrong
Producer(bootstrap_servers=B, value_serializer=json.dumps)  # wrong
Producer(bootstrap_servers=B, interceptor_classes=[FirstPartition()])  # wrong
Producer(bootstrap_servers=B, partitioner_class=Stamp())  # wrong
Producer(bootstrap_servers=B, ssl_context=True)  # wrong
Producer(bootstrap_servers=B, sasl_password=b"x")  # wrong
Producer(bootstrap_servers=B, sasl_token_provider=password)  # wrong
Producer(bootstrap_servers=B, transactional_id=1)  # wrong
ProducerConfig.from_kwargs(bootstrap_servers=B, linger=3)  # wrong
TransactionPool(transactional_id_prefix="x", max_producers=2, acquire_timeout_ms=5, linger=5)  # wrong
Admin(bootstrap_servers=B, linger_ms=5)  # wrong
Reader("t", bootstrap_servers=B, acks=1)  # wrong
fast_producer(linger=5)  # wrong
"""
"""Configuration as keyword arguments; a type checker has to reject the lines that end in ``# wrong``."""


def test_every_public_name_exists() -> None:
    for name in aioproducer.__all__:
        assert getattr(aioproducer, name) is not None
    assert aioproducer.__all__ == sorted(aioproducer.__all__)
    assert issubclass(errors.SendManyError, aioproducer.KafkaError)


def test_a_delivery_is_a_future_to_asyncio() -> None:
    assert asyncio.isfuture(aioproducer.Delivery(None, 0))  # type: ignore[arg-type]  # without a batch: not looked at


def test_importing_the_package_is_light() -> None:
    """Arrow, uvloop and unconfigured codecs are not imported."""
    code = (
        "import sys, aioproducer\n"
        "print({'pyarrow', 'uvloop', 'cryptography', 'zstandard', 'cramjam', 'lz4', 'numpy'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "set()\n"


def mypy(file: Path) -> tuple[list[tuple[int, str]], str]:
    """Return line and text of each error that mypy finds in a file, and its whole output."""
    options = ["--strict", "--no-error-summary", "--follow-imports=silent"]
    options += ["--config-file", str(ROOT / "pyproject.toml")]
    # The library's own types are the same in the next run.
    options += ["--cache-dir", str(ROOT / ".mypy_cache" / "public_api")]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    errors = [line.partition(": error: ") for line in run.stdout.splitlines() if ": error: " in line]
    return [(int(place.rpartition(":")[2]), text) for place, _, text in errors], run.stdout + run.stderr


def pyright(file: Path) -> tuple[list[tuple[int, str]], str]:
    """Return line and text of each error that pyright finds in a file, and its whole output."""
    settings = {"include": [file.name], "pythonVersion": "3.11"}
    (file.parent / "pyrightconfig.json").write_text(json.dumps({**settings, "extraPaths": [str(ROOT)]}))
    # The sanitizers' libraries are for this Python, not for pyright's JavaScript.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(file.parent), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    found = json.loads(run.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, run.stdout + run.stderr
    return [
        (each["range"]["start"]["line"] + 1, each["message"])
        for each in found["generalDiagnostics"]
        if each["severity"] == "error"
    ], run.stdout + run.stderr


TYPE_CHECKERS = {"mypy": mypy, "pyright": pyright}

WRONG_CALLS = {
    "mypy": [
        'Unexpected keyword argument "partion" for "send" of "RecordSender"; did you mean "partition"?  [call-arg]',
        'Argument 1 to "send" of "RecordSender" has incompatible type "bytes"; expected "str"  [arg-type]',
    ],
    "pyright": [
        'No parameter named "partion"',
        """Argument of type "Literal[b"t"]" cannot be assigned to parameter "topic" of type "str" in function "send"
  "Literal[b"t"]" is not assignable to "str\"""",
    ],
}


@pytest.mark.parametrize("checker", TYPE_CHECKERS)
def test_user_code_passes_type_checkers(tmp_path: Path, checker: str) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    errors, output = TYPE_CHECKERS[checker](snippet)
    assert [text.replace("\xa0", " ") for _, text in errors] == WRONG_CALLS[checker], output


@pytest.mark.parametrize("checker", TYPE_CHECKERS)
def test_user_code_passes_type_checkers_and_wrong_keys_do_not(tmp_path: Path, checker: str) -> None:
    snippet = tmp_path / "keys.py"
    snippet.write_text(KEYS)
    wrong = [number for number, line in enumerate(KEYS.splitlines(), 1) if line.endswith("# wrong")]
    errors, output = TYPE_CHECKERS[checker](snippet)
    assert [line for line, _ in errors] == wrong, output
    assert len(wrong) == 21


def test_keys_that_type_checkers_accept_are_accepted_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected key would raise an exception in the module."""
    accepted = "\n".join(line for line in KEYS.splitlines() if not line.endswith("# wrong"))
    module = ModuleType("keys")
    monkeypatch.setitem(sys.modules, "keys", module)
    exec(compile(accepted, "keys.py", "exec"), vars(module))
