"""``aioproducer spark-sink``: what an operator sees of sinks, and what the commands leave behind."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from aioproducer.cli import main, spark_sink
from aioproducer.producer import Producer
from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch
from aioproducer.spark.options import SinkOptions
from aioproducer.spark.recovery import forget, recover
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.transactional.decisions import Decision, chunk_key
from aioproducer.spark.transactional.rules import SinkTakenOverError
from aioproducer.testing import EmbeddedClusterThread
from tests.interop.spark.sink_program import log, run_batch, write_tasks
from tests.spark.embedded_sink import committed, decide

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread(1) as cluster:
        yield cluster


@pytest.fixture
def call(cluster, sink, monkeypatch, capfd) -> Call:
    """Run a subcommand on the sink's decision topic; return its exit code, stdout and stderr."""
    monkeypatch.setenv("AIOPRODUCER_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["spark-sink", command, *arguments, "--decision-topic", f"{sink}-decisions"])
        return code, *capfd.readouterr()

    return run


def write_batch_sink(options: dict[str, str], name: str) -> dict[str, str]:
    return {**options, "write.name": name, "write.batch": "0"}


def leave_open(options: dict[str, str], batch_id: int = 0) -> None:
    parsed = SinkOptions.parse(options)
    write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", batch_id, "run"), ["open"], 1)


def test_recovery_of_a_sink_includes_those_of_its_write_batches(cluster, topic, options, sink, call, monkeypatch):
    decide(write_batch_sink(options, "a"), 0, ["a"], monkeypatch)
    leave_open(write_batch_sink(options, "b"))
    code, out, error = call("recover", sink)
    assert code == 0, error
    assert f"{sink}--a: batch 0 of query query is done" in out
    assert f"{sink}--b: no transaction of its tasks is open" in out
    assert committed(cluster, topic) == Counter("a")
    assert {each["sink"]: each["open_transactions"] for each in json.loads(call("list", "--json")[1])} == {
        f"{sink}--a": []
    }


@pytest.mark.parametrize("arguments", [("recover",), ("forget", "--older-than", "1"), ("forget", "--key", "query")])
def test_a_sink_that_does_not_exist_is_an_error_that_names_the_nearest(options, sink, call, arguments):
    command, *rest = arguments
    run_batch(options, 0, ["a"])
    code, _, error = call(command, f"{sink}x", *rest)
    assert code == 1
    assert f"has no sink '{sink}x': did you mean '{sink}'?" in error


@pytest.mark.parametrize("days", ["nan", "inf"])
def test_an_age_that_is_no_number_of_days_is_refused(sink, call, days):
    code, _, error = call("forget", sink, "--older-than", days)
    assert code == 2
    assert "--older-than must be a number of days" in error


def test_a_sink_without_a_decision_is_listed_and_recovered(cluster, topic, options, sink, call):
    leave_open(options)
    (shown,) = [each for each in json.loads(call("list", "--json")[1]) if each["sink"] == sink]
    assert (shown["key"], len(shown["open_transactions"])) == (None, 1)
    assert "nothing decided" in call("list", sink)[1]
    code, out, _ = call("recover", sink)
    assert code == 0
    assert f"{sink}: nothing is decided in topic '{options['decision.topic']}'" in out
    assert "with --decision-topic" in out
    assert call("list", sink)[1].splitlines()[1:] == []
    assert call("recover", sink)[0] == 0


def test_a_query_writes_a_forgotten_unfinished_batch_again_and_stays_with_its_run(
    cluster, topic, options, sink, call, monkeypatch
):
    run_batch(options, 0, ["a"], run_id="first run")
    decide(options, 1, ["b", "c"], monkeypatch, run_id="killed run")
    code, out, error = call("forget", sink, "--key", "query")
    assert (code, out) == (0, "query: forgotten; the query writes batch 1 again\n"), error
    # Nothing of the decision is finished.
    assert call("recover", sink)[0] == 0
    assert committed(cluster, topic) == Counter("a")
    with pytest.raises(SinkTakenOverError):
        run_batch(options, 1, ["b", "c"], run_id="first run")
    assert not any(each.skipped for each in run_batch(options, 1, ["b", "c"], run_id="second run"))
    assert committed(cluster, topic) == Counter("abc")


def test_a_finished_query_is_forgotten_as_a_whole(options, sink, call):
    run_batch(options, 7, ["a"])
    assert call("forget", sink, "--key", "query")[:2] == (0, "query: forgotten\n")
    assert json.loads(call("list", sink, "--json")[1]) == []
    assert not any(each.skipped for each in run_batch(options, 0, ["a"]))


def test_a_damaged_decision_hides_no_other_and_can_be_forgotten(cluster, options, sink, call):
    run_batch(options, 0, ["a"])
    parsed = SinkOptions.parse(options)
    for name in ("old", "new"):
        key = f"write:{name}"
        commit_batch(parsed, write_tasks(parsed, plan_batch(parsed, log, key), TaskOf(key, None, key), ["x"], 1), log)

    async def damage() -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send(f"{sink}-decisions", b"no JSON", key=chunk_key(sink, "write:old", 0))

    asyncio.run(damage())
    shown = {each["key"]: each for each in json.loads(call("list", sink, "--json")[1])}
    assert set(shown) == {"query", "write:old", "write:new"}
    assert "no JSON" in shown["write:old"]["damaged"]
    assert shown["query"]["batch"] == 0
    assert "damaged: " in call("list", sink)[1]
    assert call("recover", sink)[0] == 1
    assert call("forget", sink, "--older-than", "0")[:2] == (0, "write:new: forgotten\n")
    assert call("forget", sink, "--key", "old")[:2] == (0, "write:old: forgotten\n")
    assert call("recover", sink)[0] == 0
    assert [each["key"] for each in json.loads(call("list", sink, "--json")[1])] == ["query"]


def test_the_accepted_replay_of_several_decisions_of_a_number_must_name_the_sink(
    topic, options, sink, call, monkeypatch
):
    run_batch(options, 0, ["a"])
    run_batch(write_batch_sink(options, "w"), 0, ["a"])
    code, _, error = call("recover", sink, "--accept-replay", "0")
    assert code == 1
    assert f"'0' names 2 of the last decisions: {sink} (batch 0 of query query), {sink}--w" in error
    assert call("recover", f"{sink}--w", "--accept-replay", "0")[0] == 0
    run_batch(write_batch_sink(options, "w"), 0, ["a", "b"])


@pytest.mark.parametrize("change", ["decided", "forgotten"])
def test_an_accepted_replay_replaces_no_decision_that_changed_since_the_recovery(
    cluster, topic, options, sink, call, monkeypatch, change
):
    """It wrote the decision that the recovery had read over the newer one."""
    run_batch(options, 0, ["a"])

    async def recover_before_change(cluster: KafkaSinkCluster, log: Callable[[str], None]) -> list[Decision]:
        found = await recover(cluster, log)
        if change == "decided":
            await asyncio.to_thread(run_batch, options, 1, ["b", "c"])
        else:
            await forget(cluster, key="query")
        return found

    monkeypatch.setattr(spark_sink, "recover", recover_before_change)
    code, _, error = call("recover", sink, "--accept-replay", "0")
    assert code == 1
    how = "another one has replaced it" if change == "decided" else "it was deleted"
    assert f"the last decision of 'query' has changed during this command: {how}. No replay was accepted" in error
    left = [(each["batch"], each["rows"]) for each in json.loads(call("list", sink, "--json")[1])]
    assert left == ([(1, 2)] if change == "decided" else [])
