"""Files that arrive in a folder, each line a record in a topic, exactly once: kill it at any time, and start it again.

    python examples/spark/exactly_once.py incoming --topic lines --checkpoint state --bootstrap-servers localhost:9092

Readers of the topic set ``isolation.level=read_committed``. Files have to appear whole: write them elsewhere on the
same disk, and move them into the folder. ``aioproducer spark-sink list`` shows what is decided.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from aioproducer.spark import register


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    lines = spark.readStream.option("maxFilesPerTrigger", arguments.files_per_batch).text(arguments.folder)
    writer = (
        lines.writeStream.format("aioproducer")
        .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
        .option("topic", arguments.topic)
        .option("delivery", "exactly-once")
        .option("sink.id", f"{arguments.topic}-lines")
        .option("checkpointLocation", arguments.checkpoint)
    )
    return (writer.trigger(availableNow=True) if arguments.once else writer.trigger(processingTime="1 second")).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Lines of files in a folder into a topic, exactly once.")
    parser.add_argument("folder", help="where files arrive")
    parser.add_argument("--topic", default="lines")
    parser.add_argument("--checkpoint", required=True, help="where Spark keeps what it has read")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--files-per-batch", type=int, default=10)
    parser.add_argument("--once", action="store_true", help="end when all files are written")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("exactly-once").getOrCreate()
    register(spark)
    start(spark, arguments).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
