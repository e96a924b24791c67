"""What tests do with an exactly-once sink on the embedded broker."""

from __future__ import annotations

from collections import Counter

import pytest

from aioproducer.errors import KafkaError
from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch
from aioproducer.spark.options import SinkOptions
from aioproducer.spark.transactional.flows import Finisher
from aioproducer.testing import EmbeddedClusterThread
from tests.interop.spark.sink_program import log, write_tasks


def committed(cluster: EmbeddedClusterThread, topic: str) -> Counter[str]:
    """Return the committed values of a topic."""
    return Counter((each.value or b"").decode() for each in cluster.records(topic, committed=True))


def decide(
    options: dict[str, str], batch_id: int, rows: list[str], monkeypatch: pytest.MonkeyPatch, run_id: str = "run"
) -> None:
    """Write and decide a batch in a process that is killed before it ends a transaction."""

    async def killed(*_: object) -> None:
        raise KafkaError("killed")

    parsed = SinkOptions.parse(options)
    reports = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", batch_id, run_id), rows)
    with monkeypatch.context() as patch:
        patch.setattr(Finisher, "end", killed)
        with pytest.raises(KafkaError, match="killed"):
            commit_batch(parsed, reports, log)
