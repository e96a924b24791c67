"""Files of clicks that arrive in a folder, each line a record in a topic; stopped at any time, it goes on where it was.

    python examples/spark/clicks.py incoming --topic clicks --checkpoint state --bootstrap-servers localhost:9092

A line is JSON: ``{"user": "ada", "page": "/", "at": "2013-01-01T05:15:00Z"}``. Its user is the record's key. A line
that is something else goes, as it is, to the topic ``clicks-malformed``. Both have the name of their file as a header.
Files have to appear whole: write them elsewhere on the same disk, and move them into the folder.

What was being written when the query was killed is written again when it goes on: no line is lost, and lines of that
one batch may be there twice.
"""

from __future__ import annotations

import argparse
import signal
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everywhere)
from pyspark.sql.streaming.query import StreamingQuery

from aioproducer.spark import register

CLICK = "user STRING, page STRING, at TIMESTAMP, malformed STRING"


def lines_of(spark: SparkSession, folder: str, files_per_batch: int) -> DataFrame:
    """Every line of every file, and which file it is from."""
    lines = spark.readStream.option("maxFilesPerTrigger", files_per_batch).text(folder)
    return lines.select(F.col("value").alias("line"), F.col("_metadata.file_name").alias("file"))


def as_records(lines: DataFrame, topic: str) -> DataFrame:
    """Columns as the sink wants them."""
    parsed = F.from_json("line", CLICK, {"columnNameOfCorruptRecord": "malformed"})
    is_click = F.col("click.malformed").isNull() & F.col("click.user").isNotNull()
    header = F.struct(F.lit("file").alias("key"), F.col("file").cast("binary").alias("value"))
    return lines.withColumn("click", parsed).select(
        F.when(is_click, topic).otherwise(f"{topic}-malformed").alias("topic"),
        F.when(is_click, F.col("click.user")).alias("key"),
        F.col("line").alias("value"),
        F.array(header).alias("headers"),
    )


def start(records: DataFrame, bootstrap_servers: str, checkpoint: str, once: bool) -> StreamingQuery:
    writer = (
        records.writeStream.format("aioproducer")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")
    return writer.start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Lines of files in a folder into a topic, for as long as it runs.")
    parser.add_argument("folder", help="where files arrive")
    parser.add_argument("--topic", default="clicks", help="default: %(default)s")
    parser.add_argument("--checkpoint", required=True, help="a folder that remembers what was written")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--files-per-batch", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--once", action="store_true", help="end when all files that are there now are written")
    arguments = parser.parse_args()
    told_to_end = threading.Event()
    with SparkSession.builder.appName("clicks").getOrCreate() as spark:
        # Spark has just put in a handler of its own, which cancels jobs.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: told_to_end.set())
        # Where aioproducer is installed beside pyspark, Spark finds the format without this as well.
        register(spark)
        records = as_records(lines_of(spark, arguments.folder, arguments.files_per_batch), arguments.topic)
        query = start(records, arguments.bootstrap_servers, arguments.checkpoint, arguments.once)
        print("started", flush=True)
        # Raises what the query failed with.
        while not query.awaitTermination(1):
            if told_to_end.is_set():
                query.stop()
        print("ended", flush=True)


if __name__ == "__main__":
    main()
