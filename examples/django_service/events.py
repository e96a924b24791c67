"""The producer of a program without an event loop: one in each process, used by all of its threads."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading

from aioproducer import Producer

CLOSE_SECONDS = 10.0
"""Seconds for which the end of the process waits for the delivery of the last records."""

_first_call = threading.Lock()


async def _start(producer):
    await producer.start()
    return producer.threadsafe()


@functools.cache
def _events():
    # A wrong configuration raises here, before a thread starts.
    producer = Producer(bootstrap_servers=os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092"))
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="aioproducer", daemon=True).start()
    events = asyncio.run_coroutine_threadsafe(_start(producer), loop).result()
    # The second limit counts if the loop's thread does not run: in a child that was forked after this.
    atexit.register(
        lambda: asyncio.run_coroutine_threadsafe(producer.close(CLOSE_SECONDS), loop).result(2 * CLOSE_SECONDS)
    )
    return events


def events():
    """Return ``Producer.threadsafe()`` of this process; the first call starts it.

    A producer belongs to the process that started it, and a forking server imports this module before the fork.
    Therefore the import starts no producer.
    """
    with _first_call:
        return _events()
