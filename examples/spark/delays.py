"""Flights, the weather they left in and the planes that flew them; and how late each carrier is in each hour.

    python examples/spark/delays.py --flights flights.jsonl --weather weather.csv --planes planes.csv \\
        --bootstrap-servers localhost:9092

Every flight goes to one topic with its carrier as key, the delays of each carrier and hour to another. The second topic
is written exactly once: all rows of a run are committed together, or none. Its readers set
``isolation.level=read_committed``. With ``--write-id`` the same run again writes no row of it twice.

With ``python`` it runs on this machine; ``spark-submit`` selects a cluster.
"""

from __future__ import annotations

import argparse
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everywhere)

from aioproducer.spark import register

FLIGHTS = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour STRING
"""
WEATHER = ["temp", "wind_speed", "precip", "visib"]
PLANE = ["manufacturer", "model", "seats"]


def flights_in_context(spark: SparkSession, flights: str, weather: str, planes: str) -> DataFrame:
    """One row for each flight; what is not known of its weather or plane is null."""
    observed = (
        spark.read.csv(weather, header=True, nullValue="NA")
        .withColumns({name: F.col(name).cast("double") for name in WEATHER})
        .select("origin", "time_hour", *WEATHER)
    )
    built = (
        spark.read.csv(planes, header=True, nullValue="NA")
        .withColumns({"seats": F.col("seats").cast("int"), "built": F.col("year").cast("int")})
        .select("tailnum", "built", *PLANE)
    )
    # Both are small: each executor has them whole, and no flight moves to another.
    return (
        spark.read.schema(FLIGHTS)
        .json(flights)
        .join(F.broadcast(observed), ["origin", "time_hour"], "left")
        .join(F.broadcast(built), ["tailnum"], "left")
    )


def delays(flights: DataFrame) -> DataFrame:
    """One row for each carrier and scheduled hour of departure."""
    in_rain = F.col("precip") > 0
    return flights.groupBy("carrier", "hour").agg(
        F.count("*").alias("flights"),
        (F.count("*") - F.count("dep_time")).alias("cancelled"),
        F.sum("dep_delay").alias("minutes_late"),
        F.avg("dep_delay").alias("mean_delay"),
        F.max("dep_delay").alias("worst_delay"),
        F.avg(F.when(in_rain, F.col("dep_delay"))).alias("mean_delay_in_rain"),
        F.sum("seats").alias("seats"),
    )


def as_records(rows: DataFrame, *key: str) -> DataFrame:
    """Columns as the sink wants them: a key, and the whole row as JSON."""
    value = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return rows.select(F.concat_ws("-", *key).alias("key"), value.alias("value"))


def write(records: DataFrame, topic: str, bootstrap_servers: str, **options: str) -> None:
    """Return when every record is stored on all in-sync replicas."""
    (
        records.write.format("aioproducer")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.compression.type", "zstd")
        .option("topic", topic)
        .options(**options)
        .mode("append")
        .save()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Flights with weather and planes, and delays by carrier and hour.")
    parser.add_argument("--flights", required=True, help="JSON lines")
    parser.add_argument("--weather", required=True, help="CSV")
    parser.add_argument("--planes", required=True, help="CSV")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--flights-topic", default="flights-in-context", help="default: %(default)s")
    parser.add_argument("--delays-topic", default="delays", help="default: %(default)s")
    parser.add_argument("--write-id", help="names this run: the same id again writes no delay twice")
    arguments = parser.parse_args()
    with SparkSession.builder.appName("delays").getOrCreate() as spark:
        # Where aioproducer is installed beside pyspark, Spark finds the format without this as well.
        register(spark)
        flights = flights_in_context(spark, arguments.flights, arguments.weather, arguments.planes).cache()
        once = {"delivery": "exactly-once", "sink.id": "delays"}
        if arguments.write_id is not None:
            once["write.id"] = arguments.write_id
        outputs = [
            (arguments.flights_topic, as_records(flights, "carrier"), {}),
            (arguments.delays_topic, as_records(delays(flights), "carrier", "hour"), once),
        ]
        for topic, records, options in outputs:
            began = time.perf_counter()
            write(records, topic, arguments.bootstrap_servers, **options)
            print(f"{topic}: written in {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
