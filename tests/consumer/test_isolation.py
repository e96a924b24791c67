"""Readers of committed records: none of an open or aborted transaction, and each of the others once and in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from aioproducer.consumer import Reader
from aioproducer.testing import EmbeddedCluster
from aioproducer.wire.record_batch import SimpleRecord, encode_batch


def reader_of(cluster, **options):
    return Reader(
        "a",
        bootstrap_servers=cluster.bootstrap_servers,
        transport=cluster.transport,
        **{"stop": "end", "timeout": 5.0, "max_wait_ms": 50, "isolation_level": "read_committed", **options},
    )


class Transactions:
    """Writes to the log of ``a`` as clients and coordinators do."""

    def __init__(self, cluster, **config):
        self.cluster = cluster
        self.epochs = {}
        self.sequences = {}
        cluster.create_topic("a", 1, configs=config)

    def _in_partition(self, function):
        return self.cluster._call(lambda cluster: function(cluster.brokers[1].replicas.leader("a", 0)))

    def write(self, *values, producer_id=1):
        epoch = self.epochs.setdefault(producer_id, 0)
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(values)
        records = b"".join(
            encode_batch(
                [SimpleRecord(1_000, None, value) for value in values],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )

        def append(partition):
            guard = partition.begin_verification(producer_id, sequence, epoch, supports_epoch_bump=True)
            return partition.append(bytearray(records), acks=-1, guard=guard).first_offset

        return self._in_partition(append)

    def end(self, *, committed, producer_id=1):
        epoch = self.epochs[producer_id] = self.epochs.setdefault(producer_id, 0) + 1
        self.sequences[producer_id] = 0
        return self._in_partition(
            lambda partition: partition.append_marker(
                producer_id, epoch, committed=committed, coordinator_epoch=0, transaction_version=2
            )
        )


async def values_of(reader):
    async with reader:
        return [record.value async for record in reader]


async def test_records_of_open_and_aborted_transactions_are_not_read():
    async with EmbeddedCluster(transport="memory") as cluster:
        transactions = Transactions(cluster)
        transactions.write(b"good")
        transactions.write(b"bad", producer_id=2)
        transactions.end(committed=True)
        transactions.end(committed=False, producer_id=2)
        transactions.write(b"open")
        transactions.write(b"good, behind", producer_id=2)
        transactions.end(committed=True, producer_id=2)
        assert await values_of(reader_of(cluster)) == [b"good"]
        everything = [b"good", b"bad", b"open", b"good, behind"]
        assert await values_of(reader_of(cluster, isolation_level="read_uncommitted")) == everything
        assert [record.value for record in cluster.records("a")] == everything
        assert [record.value for record in cluster.records("a", committed=True)] == [b"good"]
        transactions.end(committed=True)
        assert await values_of(reader_of(cluster)) == [b"good", b"open", b"good, behind"]
        assert [record.value for record in cluster.records("a", committed=True)] == [b"good", b"open", b"good, behind"]


async def test_a_reader_waits_for_the_end_of_a_transaction():
    async with EmbeddedCluster(transport="memory") as cluster:
        transactions = Transactions(cluster)
        transactions.write(b"first")
        async with reader_of(cluster, stop=None, max_wait_ms=10_000) as reader:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(reader)
            transactions.end(committed=True)
            async with asyncio.timeout(5):
                assert (await anext(reader)).value == b"first"
            transactions.write(b"second")
            transactions.end(committed=False)
            transactions.write(b"third")
            transactions.end(committed=True)
            async with asyncio.timeout(5):
                assert (await anext(reader)).value == b"third"


@pytest.mark.parametrize("seed", range(5))
async def test_every_transaction_is_read_whole_or_not_at_all(seed):
    """Three producers in turn, over several segments, read in small answers from any offset."""
    chooser = random.Random(seed)
    async with EmbeddedCluster(transport="memory") as cluster:
        transactions = Transactions(cluster, **{"internal.segment.bytes": "3000"})
        open_values = {}
        committed, offsets = [], {}
        for number in range(120):
            producer_id = chooser.randrange(3)
            value = b"%d" % number
            if chooser.random() < 0.7:
                offset = transactions.write(value, value + b"b", producer_id=producer_id)
                open_values.setdefault(producer_id, []).extend((offset, offset + 1))
                offsets |= {offset: value, offset + 1: value + b"b"}
            elif producer_id in open_values:
                is_committed = chooser.random() < 0.5
                transactions.end(committed=is_committed, producer_id=producer_id)
                ended = open_values.pop(producer_id)
                committed += ended if is_committed else []
        stable = min((offsets_[0] for offsets_ in open_values.values()), default=len(offsets) * 2)
        wanted = sorted(offset for offset in committed if offset < stable)
        for start in (0, wanted[len(wanted) // 2], wanted[-1]):
            async with reader_of(cluster, start=start, partition_max_bytes=500) as reader:
                read = [(record.offset, record.value) async for record in reader]
            assert read == [(offset, offsets[offset]) for offset in wanted if offset >= start]


async def test_an_unknown_isolation_level_is_refused():
    with pytest.raises(ValueError, match="isolation_level must be 'read_uncommitted' or 'read_committed', not 'all'"):
        Reader("a", bootstrap_servers="localhost:1", isolation_level="all")
