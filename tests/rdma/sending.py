"""``python -m tests.rdma.sending some|endless BOOTSTRAP_SERVERS TOPIC``: a producer over RDMA in its own process.

``some``: sends a few records and prints them, or the reason of a failure. ``endless``: prints each acknowledged record.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import zlib

from aioproducer import Producer
from aioproducer.errors import MetadataTimeoutError


async def connected(producer: Producer) -> None:
    """Wait until the producer knows the cluster: in an emulated machine this may take long, a failure need not."""
    for patience in (10, 50):
        try:
            await producer.wait_ready(patience)
        except MetadataTimeoutError as error:
            if patience == 50 or "locked memory" in str(error):
                raise
        else:
            return


async def some(bootstrap_servers: str, topic: str) -> None:
    """Send thirty records."""
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.WARNING)
    values = [bytes([number]) * 10_000 for number in range(30)]
    try:
        async with Producer(bootstrap_servers=bootstrap_servers, transport="rdma") as producer:
            await connected(producer)
            for value in values:
                await producer.send(topic, value)
            metrics = producer.metrics()
    except MetadataTimeoutError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    facts = {
        "sent": [len(values), zlib.crc32(b"".join(values))],
        "bytes": metrics["rdma-bytes-sent-total"],
        "copied": metrics["rdma-bytes-copied-total"],
        "log": log.getvalue(),
    }
    print(json.dumps(facts), flush=True)


async def endless(bootstrap_servers: str, topic: str) -> None:
    """Send until killed."""
    async with Producer(bootstrap_servers=bootstrap_servers, transport="rdma", linger_ms=0) as producer:
        while True:
            await asyncio.gather(*(producer.send(topic, bytes(10_000)) for _ in range(20)))
            print("acknowledged", flush=True)


if __name__ == "__main__":
    asyncio.run({"some": some, "endless": endless}[sys.argv[1]](*sys.argv[2:]))
