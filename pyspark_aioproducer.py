"""Where Spark looks for data sources: a top-level module named ``pyspark_...`` with a ``DefaultSource``.

With it ``format("aioproducer")`` needs no ``register``. Spark imports all such modules in every session, and one that
raises takes away the data sources of all.
"""

import logging

try:
    from aioproducer.spark.source import ProducerDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception as error:
    logging.getLogger("aioproducer.spark").warning(
        "The format 'aioproducer' is not there, because its module cannot be imported: %r", error
    )
