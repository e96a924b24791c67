"""Send a file to a topic, line by line; lines that Kafka rejects go to the topic TOPIC.dead-letters, with the reason.

    python examples/dead_letters.py access.log access --bootstrap-servers localhost:9092

The exit code is 1 if a line is in neither topic.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from aioproducer import KafkaError, Producer, Record, TopicPartition


class DeadLetterTopic:
    """A hook that sends each failed record to a separate topic, by another producer.

    Headers contain the error's class and text, and whether the record may be in its topic nevertheless: sending such a
    dead letter again may cause a duplicate.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.count = 0
        self.lost = 0
        self.producer = Producer(bootstrap_servers=bootstrap_servers, on_error=self._note)

    def on_record_failed(self, record: Record, error: KafkaError) -> None:
        """Handle a failed record; its producer calls this on the event loop, so it must not wait."""
        self.count += 1
        reason = [
            ("error", type(error).__name__.encode()),
            ("reason", str(error).encode()),
            ("may-have-been-written", str(error.may_have_been_written).lower().encode()),
        ]
        try:
            headers = [*record.headers, *reason]
            self.producer.send(f"{record.topic}.dead-letters", record.value, record.key, headers=headers)
        except KafkaError:
            # Too many dead letters already wait for memory.
            self.lost += 1
            logging.exception("a dead letter of %s is lost", record.topic)

    def _note(self, where: TopicPartition, count: int, error: KafkaError) -> None:
        self.lost += count


async def pipe(path: Path, topic: str, bootstrap_servers: str) -> int:
    """Send every line; return how many are in neither topic."""
    letters = DeadLetterTopic(bootstrap_servers)
    sent = 0
    # Closed last, because the other producer reports failed records while it closes.
    async with letters.producer, Producer(bootstrap_servers=bootstrap_servers, hooks=[letters]) as producer:
        with path.open("rb") as lines:
            for line in lines:
                producer.send(topic, line.rstrip(b"\r\n"))
                sent += 1
                await producer.drain()
    delivered = sent - letters.count
    print(f"{sent} lines, {delivered} delivered, {letters.count - letters.lost} dead letters, {letters.lost} lost")
    return letters.lost


def main() -> int:
    parser = argparse.ArgumentParser(description="Send the lines of a file to a topic, with a topic for dead letters.")
    parser.add_argument("file", type=Path)
    parser.add_argument("topic")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    arguments = parser.parse_args()
    return 1 if asyncio.run(pipe(arguments.file, arguments.topic, arguments.bootstrap_servers)) else 0


if __name__ == "__main__":
    sys.exit(main())
