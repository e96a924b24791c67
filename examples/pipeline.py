"""Send a file to a topic, line by line, in memory that does not grow with the file.

    python examples/pipeline.py access.log access --bootstrap-servers localhost:9092

``await producer.drain()`` is the back-pressure: it waits while ``buffer_memory`` is full, so that the file is read only
as fast as Kafka accepts the lines. The exit code is 1 if a line was not delivered.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path

from aioproducer import KafkaError, Producer, TopicPartition


async def pipe(path: Path, topic: str, bootstrap_servers: str, buffer_memory: int) -> int:
    """Send every line; return how many were not delivered."""
    failures: Counter[str] = Counter()

    def note(where: TopicPartition, count: int, error: KafkaError) -> None:
        failures[type(error).__name__] += count

    sent = 0
    async with Producer(
        bootstrap_servers=bootstrap_servers,
        buffer_memory=buffer_memory,
        compression_type="zstd",
        linger_ms=50,
        on_error=note,
    ) as producer:
        # Reading a local file blocks the loop for microseconds; read a slow source by asyncio.to_thread.
        with path.open("rb") as lines:
            for line in lines:
                producer.send(topic, line.rstrip(b"\r\n"))
                sent += 1
                await producer.drain()
        await producer.flush()
    failed = failures.total()
    print(f"{sent} lines, {sent - failed} delivered")
    for name, count in failures.most_common():
        print(f"{count} failed: {name}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Send the lines of a file to a topic.")
    parser.add_argument("file", type=Path)
    parser.add_argument("topic")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--buffer-memory", type=int, default=8 * 1024 * 1024, help="bytes, default: %(default)s")
    arguments = parser.parse_args()
    failed = asyncio.run(pipe(arguments.file, arguments.topic, arguments.bootstrap_servers, arguments.buffer_memory))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
