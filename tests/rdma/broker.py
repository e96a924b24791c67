"""``python -m tests.rdma.broker``: an embedded broker over RDMA in a process of its own.

Its address goes to standard output. Each line that comes is the name of a topic: how many records are in it, and the
checksum of all their values in their order, go out. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib

from aioproducer.testing import EmbeddedCluster


async def main() -> None:
    """Serve until nobody asks any more."""
    async with EmbeddedCluster(transport="rdma") as cluster:
        print(json.dumps(cluster.bootstrap_servers), flush=True)
        while topic := (await asyncio.to_thread(sys.stdin.readline)).strip():
            values = [record.value or b"" for record in cluster.records(topic)]
            print(json.dumps([len(values), zlib.crc32(b"".join(values))]), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
