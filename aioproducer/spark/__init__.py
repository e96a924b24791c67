"""aioproducer inside Spark: a sink for DataFrames, and an event loop in each Python worker for code of one's own.

::

    from aioproducer.spark import executor_producer, register

    register(spark)  # not needed where the package is installed on the driver
    options = {"kafka.bootstrap.servers": "host:9092", "topic": "clicks"}
    df.write.format("aioproducer").options(**options).mode("append").save()

    def send(rows):
        with executor_producer({"bootstrap.servers": "host:9092"}) as producer:
            for row in rows:
                producer.send("clicks", row.value, row.key)

    df.foreachPartition(send)

Nothing of Spark, Arrow or the producer is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aioproducer.spark.executor import close_executor, run
    from aioproducer.spark.figures import Figures
    from aioproducer.spark.intake import RowsFailedError
    from aioproducer.spark.micro_batch import write_batch
    from aioproducer.spark.options import SinkOptions
    from aioproducer.spark.rows import ExecutorProducer, executor_producer

__all__ = [
    "ExecutorProducer",
    "Figures",
    "RowsFailedError",
    "SinkOptions",
    "close_executor",
    "executor_producer",
    "register",
    "run",
    "write_batch",
]

_HOMES = {
    "ExecutorProducer": "aioproducer.spark.rows",
    "Figures": "aioproducer.spark.figures",
    "RowsFailedError": "aioproducer.spark.intake",
    "SinkOptions": "aioproducer.spark.options",
    "close_executor": "aioproducer.spark.executor",
    "executor_producer": "aioproducer.spark.rows",
    "run": "aioproducer.spark.executor",
    "write_batch": "aioproducer.spark.micro_batch",
}


def register(spark: SparkSession) -> None:
    """Make ``format("aioproducer")`` known to a Spark session, and to the thread that calls this.

    Spark finds it by itself where the package is installed in the driver's Python, in the thread that has made the
    session. This is for where it is not searched, and for other threads; it is harmless where it is not needed.
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
