"""Every message in every version: Kafka's generated classes read it and write the same bytes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioproducer.protocol import APIS, ApiKey, Message, RequestHeader, ResponseHeader, encode
from aioproducer.protocol.messages import (
    ApiVersionsResponse,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

pytestmark = pytest.mark.interop

MESSAGES: list[type[Message]] = [
    RequestHeader,
    ResponseHeader,
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
    *[message for api in APIS.values() for message in (api.request, api.response)],
]


class Judge:
    """A Java process that answers line by line."""

    def __init__(self, java: str, jar: Path) -> None:
        source = Path(__file__).with_name("MessageJudge.java")
        self.process = subprocess.Popen(
            [java, "-XX:TieredStopAtLevel=1", "-cp", str(jar), str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline()
        assert answer, "the Java process has ended"
        return answer.rstrip("\n")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def judge(kafka_clients_jar: Path) -> Iterator[Judge]:
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java on the path: install a JDK of version 17 or later")
    judge = Judge(java, kafka_clients_jar)
    yield judge
    judge.close()


def same_to_kafka(judge: Judge, message: Message, version: int) -> None:
    name = type(message).__name__
    java_class = name if name.startswith("ConsumerProtocol") else f"{name}Data"
    ours = b"".join(encode(message, version)).hex()
    assert judge.ask(f"{java_class} {version} {ours}") == ours, f"{message!r} of version {version}"


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message_class: message_class.__name__)
def test_full_and_empty_messages_of_every_version_equal_kafkas(
    message_class: type[Message], judge: Judge, full_instance: Callable[[type[Message], int], Message]
) -> None:
    """``same_to_kafka`` compares the bytes, and what Kafka's class reads from them."""
    for version in message_class.schema.versions:
        same_to_kafka(judge, full_instance(message_class, version), version)
        same_to_kafka(judge, message_class(), version)


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message_class: message_class.__name__)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_message_equals_kafkas(
    message_class: type[Message], judge: Judge, instances: Any, data: st.DataObject
) -> None:
    """``same_to_kafka`` compares the bytes, and what Kafka's class reads from them."""
    version = data.draw(st.sampled_from(message_class.schema.versions))
    same_to_kafka(judge, data.draw(instances(message_class, version)), version)


def test_api_keys_names_versions_and_headers_equal_kafkas(judge: Judge) -> None:
    """``ApiKey`` has all of Kafka's requests, ``APIS`` their stable versions and header versions."""
    lines = [line.split(" ") for line in judge.ask("apis").rstrip(";").split(";")]
    assert {key.value: key.name for key in ApiKey} == {int(line[0]): line[1] for line in lines}
    by_key = {int(line[0]): [int(word) for word in line[2:]] for line in lines if line[2]}
    for key, api in APIS.items():
        request_header = 2 if api.max_version in api.flexible else 1
        response_header = int(api.max_version in api.flexible and api.response is not ApiVersionsResponse)
        assert by_key[key] == [api.min_version, api.max_version, request_header, response_header], key.name
