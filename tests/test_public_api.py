"""The public names, and their types for type checkers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import aioproducer
from aioproducer import errors

ROOT = Path(__file__).parent.parent

SNIPPET = """
import asyncio
from typing import assert_type
from aioproducer import Delivery, KafkaError, Producer, Record, RecordMetadata, SendManyResult, TopicPartition


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
"""


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


def test_user_code_passes_type_checkers(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    options = ["--strict", "--no-error-summary", "--follow-imports=silent"]
    options += ["--config-file", str(ROOT / "pyproject.toml")]
    # The library's own types are the same in the next run.
    options += ["--cache-dir", str(ROOT / ".mypy_cache" / "public_api")]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(snippet)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    wrong = [line.partition("error: ")[2] for line in run.stdout.splitlines() if "error: " in line]
    assert wrong == [
        'Unexpected keyword argument "partion" for "send" of "RecordSender"; did you mean "partition"?  [call-arg]',
        'Argument 1 to "send" of "RecordSender" has incompatible type "bytes"; expected "str"  [arg-type]',
    ], run.stdout + run.stderr
