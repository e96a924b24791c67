"""What the driver asks the cluster, without Spark's processes."""

from __future__ import annotations

import io
import logging
import pickle
import re
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from aioproducer.admin import NoSuchTopicError
from aioproducer.errors import ConfigurationError, KafkaTimeoutError
from aioproducer.spark import SinkOptions
from aioproducer.spark.checks import check_cluster, check_cluster_once
from aioproducer.spark.source import ProducerDataSource, SinkCommitMessage, check_all_wrote, log, log_job
from aioproducer.testing import EmbeddedClusterThread


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread(2, properties={"auto.create.topics.enable": "false"}) as cluster:
        cluster.create_topic("there", 1)
        yield cluster


def options(bootstrap_servers: str, topic: str | None = "there", timeout_ms: int = 10_000) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": bootstrap_servers, "check_timeout_ms": str(timeout_ms)}
    return given if topic is None else {**given, "topic": topic}


def parsed(bootstrap_servers: str, topic: str | None = "there", timeout_ms: int = 10_000) -> SinkOptions:
    return SinkOptions.parse(options(bootstrap_servers, topic, timeout_ms))


@pytest.mark.parametrize("topic", ["there", None])
def test_all_is_well_and_nothing_is_left_behind(cluster: EmbeddedClusterThread, topic: str | None) -> None:
    before = set(threading.enumerate())
    check_cluster(parsed(cluster.bootstrap_servers, topic))
    assert set(threading.enumerate()) == before


def test_no_topic_is_created(cluster: EmbeddedClusterThread) -> None:
    with pytest.raises(NoSuchTopicError, match="the brokers do not create topics on demand"):
        check_cluster(parsed(cluster.bootstrap_servers, "not-there"))
    assert cluster.topics() == ["there"]


def test_brokers_that_do_not_say_whether_they_create_topics(cluster: EmbeddedClusterThread) -> None:
    cluster.fail("DescribeConfigs", "CLUSTER_AUTHORIZATION_FAILED", times=1)
    with pytest.raises(NoSuchTopicError, match="the brokers do not say whether they create topics on demand"):
        check_cluster(parsed(cluster.bootstrap_servers, "not-there"))


def test_brokers_that_create_topics_are_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedClusterThread(1, properties={"auto.create.topics.enable": "true"}) as cluster:
        check_cluster(parsed(cluster.bootstrap_servers, "not-there"))
        assert cluster.topics() == []
    assert "There is no topic 'not-there' yet" in caplog.text


def test_a_running_query_is_not_asked_again() -> None:
    with EmbeddedClusterThread(1) as cluster:
        cluster.create_topic("there", 1)
        address = cluster.bootstrap_servers
        found = parsed(address, timeout_ms=60_000)
        check_cluster_once(found)
    with socket.socket() as held:
        # No other process can listen there, and connections are refused.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        check_cluster_once(found)
        with pytest.raises(KafkaTimeoutError, match=r"did not answer within 500 ms \(check_timeout_ms\)"):
            check_cluster(parsed(address, timeout_ms=500))
        other = parsed(address, "another", timeout_ms=500)
        for _ in range(2):
            with pytest.raises(KafkaTimeoutError):
                check_cluster_once(other)


def test_where_a_micro_batch_is_committed_nobody_asks_the_cluster() -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField("value", StringType())])
    source = ProducerDataSource(options("127.0.0.1:9", timeout_ms=500))
    with pytest.raises(KafkaTimeoutError):
        source.streamWriter(schema, False)
    writer = pickle.loads(pickle.dumps(source)).streamWriter(schema, False)
    writer.commit([], 3)


def test_the_batch_sink_refuses_to_overwrite_before_it_looks_at_anything_else() -> None:
    from pyspark.sql.types import StructType

    with pytest.raises(ConfigurationError, match="The sink only appends"):
        ProducerDataSource({}).writer(StructType(), True)


def test_reading_is_refused() -> None:
    from pyspark.sql.types import StructType

    source = ProducerDataSource({})
    for read in (source.schema, lambda: source.reader(StructType()), lambda: source.streamReader(StructType())):
        with pytest.raises(ConfigurationError, match="only writes: read topics with Spark's own format 'kafka'"):
            read()


def test_pyspark_without_the_streaming_sinks_base_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.types import StructType

    monkeypatch.setitem(sys.modules, "aioproducer.spark.streaming", None)
    with pytest.raises(ConfigurationError, match=r"needs pyspark 4\.1 or later"):
        ProducerDataSource({}).streamWriter(StructType(), False)


MESSAGES = [
    SinkCommitMessage(0, 0, 1, "the-query", 7, 10, 200, 1, 0, 4.0, 4.0, 0.1),
    None,
    SinkCommitMessage(2, 1, 3, "the-query", 7, 30, 600, 3, 2, 8.0, 12.5, 0.1),
]


@pytest.mark.parametrize(
    ("what", "messages", "batch_id", "text"),
    [
        (
            "written",
            MESSAGES,
            None,
            "query the-query, batch 7, written; 40 rows of 2 finished tasks are in the topic, 800 bytes in 4 batches, "
            "2 retries, latency 7.0 ms, at most 12.5 ms",
        ),
        (
            "written",
            [SinkCommitMessage(0, 0, 1, None, None, 10, 200, 1, 0, 4.0, 4.0, 0.1)],
            None,
            "written; 10 rows of 1 finished task are in the topic, 200 bytes in 1 batch, 0 retries, latency 4.0 ms, "
            "at most 4.0 ms",
        ),
        (
            "aborted",
            MESSAGES,
            7,
            "query the-query, batch 7, aborted; 40 rows of 2 finished tasks are in the topic, 800 bytes in 4 batches, "
            "2 retries, latency 7.0 ms, at most 12.5 ms",
        ),
        (
            "aborted",
            [None],
            7,
            "batch 7, aborted; 0 rows of 0 finished tasks are in the topic, 0 bytes in 0 batches, 0 retries, latency "
            "0.0 ms, at most 0.0 ms",
        ),
    ],
)
def test_what_a_job_has_written_is_summed_up(
    caplog: pytest.LogCaptureFixture,
    what: str,
    messages: list[SinkCommitMessage | None],
    batch_id: int | None,
    text: str,
) -> None:
    log_job(what, messages, batch_id)
    assert caplog.messages == [text]


def test_what_no_task_has_written_is_not_committed() -> None:
    """Spark runs no task of a sink in Python in a continuous query, and commits its offsets all the same."""
    check_all_wrote([])
    check_all_wrote(MESSAGES[:1])
    with pytest.raises(ConfigurationError, match=r"Rows were not written: .* continuous query .*processingTime"):
        check_all_wrote(MESSAGES)


def test_where_nobody_listens_the_line_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("aioproducer.spark"), "propagate", False)
    log("5 rows")
    assert re.fullmatch(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d INFO aioproducer\.spark: 5 rows\n", capsys.readouterr().err)


def test_a_line_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end came by itself: lines of two workers were one."""
    written: list[str] = []

    class Unbuffered(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr(logging.getLogger("aioproducer.spark"), "propagate", False)
    monkeypatch.setattr(sys, "stderr", Unbuffered())
    log("5 rows")
    (line,) = written
    assert line.endswith(": 5 rows\n")
