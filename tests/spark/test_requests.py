"""How many requests a micro-batch of the exactly-once sink sends, in the plan, its tasks and the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from aioproducer.broker.faults import Faults
from aioproducer.protocol import ApiKey
from aioproducer.spark import close_executor
from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch
from aioproducer.spark.options import SinkOptions
from aioproducer.testing import EmbeddedClusterThread
from tests.interop.spark.sink_program import log, options_of, write_tasks

TASKS = 4
# Requests whose number depends on timing, and those between brokers.
UNCOUNTED = {ApiKey.FETCH, ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, str]]:
    """The requests that brokers have received, each once however often it was sent again."""
    received: set[tuple[int, str]] = set()
    take = Faults.take

    def recording_take(self, node_id, header, request):
        if header.request_api_key not in UNCOUNTED:
            received.add((header.request_api_key, str(request)))
        return take(self, node_id, header, request)

    monkeypatch.setattr(Faults, "take", recording_take)
    return received


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread(1) as cluster:
        yield cluster
        close_executor()


def counted(requests: set[tuple[int, str]]) -> dict[str, int]:
    found = Counter(ApiKey(key).name for key, _ in requests)
    requests.clear()
    return dict(found)


def test_requests_of_a_micro_batch_in_each_role(cluster, topic, requests):
    cluster.create_topic(topic, 1)
    options = SinkOptions.parse(options_of(cluster.bootstrap_servers, topic, "orders", **{"kafka.linger.ms": "0"}))
    found: dict[str, dict[str, int]] = {}
    for batch_id in range(3):
        requests.clear()
        plan = plan_batch(options, log)
        found["plan"] = counted(requests)
        task = TaskOf("query", batch_id, "run")
        reports = write_tasks(options, plan, task, [f"{batch_id}:{number}" for number in range(40)], TASKS)
        found["tasks"] = counted(requests)
        commit_batch(options, reports, log)
        found["commit"] = counted(requests)
    # No connection is made: API_VERSIONS is the question for the generation of the transaction protocol.
    assert found == {
        # It fences the committer, looks for the end of the decisions and for open transactions, and makes sure that it
        # is the committer still.
        "plan": {
            "API_VERSIONS": 1,
            "METADATA": 2,
            "INIT_PRODUCER_ID": 1,
            "FIND_COORDINATOR": 1,
            "LIST_OFFSETS": 1,
            "LIST_TRANSACTIONS": 1,
            "DESCRIBE_TRANSACTIONS": 1,
        },
        "tasks": {"INIT_PRODUCER_ID": TASKS, "PRODUCE": TASKS},
        # The decision and the done note, each with its EndTxn.
        "commit": {
            "API_VERSIONS": 1,
            "METADATA": 1,
            "PRODUCE": 2,
            "END_TXN": TASKS + 2,
            "FIND_COORDINATOR": TASKS + 1,
            "LIST_TRANSACTIONS": 1,
            "DESCRIBE_TRANSACTIONS": 1,
        },
    }
