"""Records as Arrow columns: every field, with headers and without, of several partitions."""

from __future__ import annotations

import pytest

from aioproducer import ConsumerRecord
from aioproducer.core.fetching.columns import RecordColumns

pyarrow = pytest.importorskip("pyarrow")

from aioproducer.consumer.arrow import record_batch  # noqa: E402 - behind the check for pyarrow


def record(topic, partition, offset, **options):
    fields = {"timestamp_ms": 7, "key": b"k", "value": b"v", "headers": (), "leader_epoch": 3, **options}
    return ConsumerRecord(topic, partition, offset, **fields)


def rows(*runs):
    columns = RecordColumns()
    for run in runs:
        for each in run:
            columns.append_record(each)
    batch = record_batch(columns)
    batch.validate(full=True)
    return [
        {**row, "timestamp_ms": int(row["timestamp_ms"].timestamp() * 1000)} | {"headers": row["headers"]}
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("headers", [(), (("h", b"1"), ("n", None))])
def test_each_field_is_a_column(headers):
    runs = [
        [record("a", 0, 5), record("a", 0, 6, key=None, value=None, headers=headers)],
        [],
        [record("b", 2, 0, leader_epoch=None)],
        [record("a", 1, 9, timestamp_ms=1500)],
    ]
    expected = [
        {**each._asdict(), "headers": [{"key": key, "value": value} for key, value in each.headers]}
        for run in runs
        for each in run
    ]
    assert rows(*runs) == expected


def test_no_records_are_a_batch_without_rows():
    batch = record_batch(RecordColumns())
    batch.validate(full=True)
    assert batch.num_rows == 0
    assert batch.schema.names == list(ConsumerRecord._fields)
