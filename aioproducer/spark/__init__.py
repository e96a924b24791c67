"""aioproducer inside Spark: a sink for DataFrames, and an event loop in each Python worker for your own code.

::

    from aioproducer.spark import executor_producer, register

    register(spark)  # not needed if the package is installed on the driver
    options = {"kafka.bootstrap.servers": "host:9092", "topic": "clicks"}
    df.write.format("aioproducer").options(**options).mode("append").save()

    def send(rows):
        with executor_producer({"bootstrap.servers": "host:9092"}) as producer:
            for row in rows:
                producer.send("clicks", row.value, row.key)

    df.foreachPartition(send)

Spark, Arrow and the producer are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aioproducer.spark.executor import close_executor, run
    from aioproducer.spark.micro_batch import write_batch
    from aioproducer.spark.options import SinkOptions
    from aioproducer.spark.row_queue import RowsFailedError
    from aioproducer.spark.rows import ExecutorProducer, executor_producer
    from aioproducer.spark.statistics import SendStatistics

__all__ = [
    "ExecutorProducer",
    "RowsFailedError",
    "SendStatistics",
    "SinkOptions",
    "close_executor",
    "executor_producer",
    "register",
    "run",
    "write_batch",
]

_HOMES = {
    "ExecutorProducer": "aioproducer.spark.rows",
    "SendStatistics": "aioproducer.spark.statistics",
    "RowsFailedError": "aioproducer.spark.row_queue",
    "SinkOptions": "aioproducer.spark.options",
    "close_executor": "aioproducer.spark.executor",
    "executor_producer": "aioproducer.spark.rows",
    "run": "aioproducer.spark.executor",
    "write_batch": "aioproducer.spark.micro_batch",
}


def register(spark: SparkSession) -> None:
    """Register ``format("aioproducer")`` with a Spark session, and with the calling thread.

    If the package is installed in the driver's Python, Spark finds the format in the thread that has created the
    session. Call this for other threads, and for packages that Spark does not search; otherwise it changes nothing.
    """
    from aioproducer.spark.source import ProducerDataSource

    spark.dataSource.register(ProducerDataSource)
    # Spark looks for sources in Python in the active session of the JVM's thread, and a new one has none. A session of
    # Spark Connect has no JVM.
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
