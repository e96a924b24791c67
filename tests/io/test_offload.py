"""Compression off the loop: in threads on real loops, and on virtual time."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from random import Random

import pytest

from aioproducer import Producer
from aioproducer.compression import codec
from aioproducer.errors import KafkaError
from aioproducer.io import offload, scheduling
from aioproducer.io.offload import Compressor
from tests.simulation import World, run

LARGE = b"compressible " * 2000


def compressor_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("aioproducer-compressor")]


class Batch:
    body = (LARGE,)
    finished = False

    def is_finished(self):
        return self.finished


class Codec:
    """A codec that records its threads, and can be blocked or fail."""

    def __init__(self, inner):
        self.inner = inner
        self.threads = set()
        self.niceness = set()
        self.go_on = threading.Event()
        self.go_on.set()
        self.error = None
        self.loop = asyncio.get_running_loop()
        self.began = asyncio.Event()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def compress(self, buffers, level=None):
        self.threads.add(threading.current_thread())
        if sys.platform == "linux":
            self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        self.loop.call_soon_threadsafe(self.began.set)
        self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        return self.inner.compress(buffers, level)


async def world_on_this_loop():
    world = World(asyncio.get_running_loop(), Random(1), nodes=0)
    world.cluster.add_node(1, "127.0.0.1")
    world.start_node(1)
    world.cluster.create_topic("clicks", leaders=[1])
    return world


def spied(producer):
    spy = Codec(producer._sender._compressor._codec)
    producer._sender._compressor._codec = spy
    return spy


@pytest.mark.parametrize("compression_type", ["gzip", "snappy", "lz4", "zstd"])
async def test_large_batches_are_compressed_in_threads_that_end_with_the_producer(compression_type):
    world = await world_on_this_loop()
    config = {"bootstrap_servers": "127.0.0.1:9092", "batch_size": 200_000, "compression_type": compression_type}
    async with Producer(transport=world, **config) as producer:
        spy = spied(producer)
        await asyncio.gather(*(producer.send("clicks", LARGE) for _ in range(20)))
        assert spy.threads
        assert threading.main_thread() not in spy.threads
        await producer.send("clicks", b"small")
        assert producer.metrics()["compression-rate-avg"] < 1
    assert compressor_threads() == []
    assert world.cluster.values("clicks") == [LARGE] * 20 + [b"small"]
    pool = producer._parts.accumulator.pool
    assert pool.available_memory == pool.total_memory


async def test_closing_waits_for_a_compressing_thread_and_releases_its_memory_once():
    world = await world_on_this_loop()
    producer = Producer(
        transport=world, bootstrap_servers="127.0.0.1:9092", compression_type="gzip", batch_size=200_000, linger_ms=0
    )
    await producer.start()
    await producer.wait_ready(5)
    spy = spied(producer)
    spy.go_on.clear()
    delivery = producer.send("clicks", LARGE)
    await spy.began.wait()
    closing = asyncio.ensure_future(producer.close(0))
    await asyncio.wait([delivery])
    assert isinstance(delivery.exception(), KafkaError)
    pool = producer._parts.accumulator.pool
    assert pool.available_memory < pool.total_memory, "the thread still reads it"
    spy.go_on.set()
    await closing
    assert pool.available_memory == pool.total_memory
    assert compressor_threads() == []


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is the process's elsewhere")
async def test_compressing_threads_give_way_to_the_loop_thread():
    own = os.getpriority(os.PRIO_PROCESS, 0)
    loop = asyncio.get_running_loop()
    spy = Codec(codec("gzip"))
    done = loop.create_future()
    compressor = Compressor(loop, spy, None, lambda batch, result: done.set_result(result))

    compressor.submit(Batch())
    assert codec("gzip").decompress(await done) == LARGE
    await compressor.close()
    assert spy.niceness == {min(own + scheduling.NICENESS, 19)}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


async def test_batches_are_compressed_if_a_sandbox_forbids_giving_way(monkeypatch):
    def forbidden(increment):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "nice", forbidden)
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    compressor = Compressor(loop, codec("gzip"), None, lambda batch, result: done.set_result(result))

    compressor.submit(Batch())
    assert codec("gzip").decompress(await done) == LARGE
    await compressor.close()


async def test_cancelling_the_close_of_a_compressor_leaves_no_thread():
    spy = Codec(codec("gzip"))
    spy.go_on.clear()
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    compressor = Compressor(loop, spy, None, lambda batch, result: done.set_result(result))

    compressor.submit(Batch())
    await spy.began.wait()
    closing = asyncio.ensure_future(compressor.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    spy.go_on.set()
    for thread in spy.threads:
        await loop.run_in_executor(None, thread.join, 10)
    assert compressor_threads() == []
    assert codec("gzip").decompress(await done) == LARGE


def test_a_codec_error_fails_the_batch_with_its_reason():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(compression_type="gzip") as producer:
            await producer.wait_ready(1)
            spy = spied(producer)
            spy.error = ZeroDivisionError("odd")
            with pytest.raises(KafkaError, match="Compression failed: ZeroDivisionError"):
                await producer.send("clicks", LARGE)
            spy.error = None
            assert (await producer.send("clicks", LARGE)).offset == 0
            pool = producer._accumulator.pool
            assert pool.available_memory == pool.total_memory

    run(scenario)


def test_records_behind_a_batch_being_compressed_keep_their_order():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"compression_type": "lz4", "batch_size": 20_000, "linger_ms": 0}
        async with world.producer(**config) as producer:
            for number in range(100):
                producer.send("clicks", b"%d " % number * (2000 if number % 3 else 1))
            await producer.flush()
        assert world.loop.executor_calls > 0
        return [int(value.split()[0]) for value in world.cluster.values("clicks")]

    assert run(scenario)[0] == list(range(100))


async def test_a_batch_compressed_before_the_one_in_front_waits_for_it(monkeypatch):
    monkeypatch.setattr(offload, "_processors", lambda: 3)
    world = await world_on_this_loop()
    config = {"bootstrap_servers": "127.0.0.1:9092", "compression_type": "gzip", "batch_size": 20_000, "linger_ms": 0}
    async with Producer(transport=world, **config) as producer:
        await producer.wait_ready(5)
        second_is_done = threading.Event()
        made = []

        class SecondFirst(Codec):
            def compress(self, buffers, level=None):
                first = b"first" in bytes(buffers[0])
                if first:
                    assert second_is_done.wait(10)
                compressed = self.inner.compress(buffers, level)
                made.append("first" if first else "second")
                if not first:
                    second_is_done.set()
                return compressed

        producer._sender._compressor._codec = SecondFirst(codec("gzip"))
        values = [b"first " * 4000, b"second " * 4000]
        await asyncio.wait_for(asyncio.gather(*[producer.send("clicks", value) for value in values]), 20)
    assert made == ["second", "first"]
    assert world.cluster.values("clicks") == values


@pytest.mark.parametrize(("processors", "workers"), [(1, 1), (2, 1), (3, 2), (64, 4)])
async def test_one_processor_is_left_to_the_loop_and_workers_take_queued_batches(monkeypatch, processors, workers):
    monkeypatch.setattr(offload, "_processors", lambda: processors)
    loop = asyncio.get_running_loop()
    spy = Codec(codec("gzip"))
    spy.go_on.clear()
    done = []
    everything = loop.create_future()

    class Numbered(Batch):
        def __init__(self, number):
            self.body = (LARGE, b"%d" % number)

    def finished(batch, result):
        assert codec("gzip").decompress(result) == b"".join(batch.body)
        done.append(batch)
        if len(done) == len(batches):
            everything.set_result(None)

    compressor = Compressor(loop, spy, None, finished)
    batches = [Numbered(number) for number in range(20)]
    for batch in batches:
        compressor.submit(batch)
    await spy.began.wait()
    assert len(compressor_threads()) == workers
    spy.go_on.set()
    await asyncio.wait_for(everything, 10)
    assert set(done) == set(batches)
    await compressor.close()
    assert compressor_threads() == []


async def test_a_batch_submitted_while_the_last_worker_exits_is_compressed(monkeypatch):
    monkeypatch.setattr(offload, "_processors", lambda: 1)
    done = []
    both = asyncio.Event()

    def finished(batch, result):
        done.append(result)
        if len(done) == 2:
            both.set()

    compressor = Compressor(asyncio.get_running_loop(), codec("gzip"), None, finished)
    compressor.submit(Batch())
    # The one thread runs this after the previous job; the loop does not know yet that it is done.
    compressor._executor.submit(int).result(10)
    compressor.submit(Batch())
    await asyncio.wait_for(both.wait(), 10)
    await compressor.close()
    assert [codec("gzip").decompress(result) for result in done] == [LARGE, LARGE]


async def test_compression_results_are_reported_in_the_context_of_the_producer():
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("the producer's")
    seen = []
    compressor = Compressor(
        asyncio.get_running_loop(), codec("gzip"), None, lambda batch, result: seen.append(variable.get())
    )
    for _ in range(50):
        compressor.submit(Batch())
    await compressor.close()
    assert seen == ["the producer's"] * 50


async def test_a_batch_that_failed_in_the_queue_is_reported_without_compression():
    spy = Codec(codec("gzip"))
    reported = []
    compressor = Compressor(asyncio.get_running_loop(), spy, None, lambda *of: reported.append(of))
    batch = Batch()
    batch.finished = True
    compressor.submit(batch)
    await compressor.close()
    assert [batch for batch, _ in reported] == [batch]
    assert spy.threads == set()


async def test_batches_are_compressed_on_the_loop_only_while_no_thread_can_start(monkeypatch, caplog):
    started = threading.Thread.start
    refused = []

    def start(thread):
        if len(refused) < 5 and thread.name.startswith("aioproducer-compressor"):
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    spy = Codec(codec("gzip"))
    reported = []
    three = asyncio.Event()

    def tell(batch, result):
        reported.append((batch, result))
        if len(reported) == 3:
            three.set()

    compressor = Compressor(asyncio.get_running_loop(), spy, None, tell)
    batches = [Batch() for _ in range(8)]
    for batch in batches[:3]:
        compressor.submit(batch)
    await three.wait()
    for batch in batches[3:]:
        compressor.submit(batch)
    await compressor.close()
    assert sorted(map(id, batches)) == sorted(id(batch) for batch, _ in reported)
    assert all(codec("gzip").decompress(result) == LARGE for _, result in reported)
    assert threading.main_thread() in spy.threads
    assert len(spy.threads) > 1
    assert [record.getMessage() for record in caplog.records] == [
        "No thread can be started: the event loop compresses batches: can't start new thread"
    ]
    assert compressor_threads() == []
