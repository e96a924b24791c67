"""``python -m tests.rdma.broker``: an embedded broker over RDMA in its own process.

It prints its address. Each line of its input is the name of a topic; for each it prints the number of records, and the
checksum of all their values in order. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib

from aioproducer.testing import EmbeddedCluster


async def main() -> None:
    """Serve until the input ends."""
    async with EmbeddedCluster(transport="rdma") as cluster:
        print(json.dumps(cluster.bootstrap_servers), flush=True)
        while topic := (await asyncio.to_thread(sys.stdin.readline)).strip():
            values = [record.value or b"" for record in cluster.records(topic)]
            print(json.dumps([len(values), zlib.crc32(b"".join(values))]), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
