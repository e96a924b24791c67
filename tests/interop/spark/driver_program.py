"""A Spark driver that does what another process asks of it: functions come over a socket, what they return goes back.

It imports nothing of this project: what is there of it, the session that runs here has found by itself.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import traceback
from multiprocessing.connection import Client, Connection
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession


class _Asked:
    """One function after the other, each in a thread of its own."""

    def __init__(self, spark: SparkSession, connection: Connection) -> None:
        self._spark = spark
        self._connection = connection
        self._sending = threading.Lock()

    def begin(self, number: int, pickled: bytes) -> None:
        threading.Thread(target=self._run, args=(number, pickled), daemon=True).start()

    def _run(self, number: int, pickled: bytes) -> None:
        # Spark finds data sources of Python for the active session alone, and it is a thread's.
        self._spark._jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
        try:
            function, arguments = cloudpickle.loads(pickled)
            answer = pickle.dumps((number, "result", function(self._spark, *arguments)))
        except BaseException:
            answer = pickle.dumps((number, "error", traceback.format_exc()))
        with self._sending:
            self._connection.send_bytes(answer)


def main(address: str, configuration: str) -> None:
    builder: Any = SparkSession.builder
    for name, value in json.loads(configuration).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    with Client(address) as connection:
        connection.send(os.getpid())
        asked = _Asked(spark, connection)
        while (request := connection.recv()) is not None:
            asked.begin(*request)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
