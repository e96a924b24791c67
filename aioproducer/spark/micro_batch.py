"""``write_batch``: a micro-batch of ``foreachBatch`` into topics, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aioproducer.errors import ConfigurationError
from aioproducer.spark.options import EXACTLY_ONCE, WRITE_BATCH, WRITE_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_batch(df: DataFrame, batch_id: int, *, name: str = "batch", options: Mapping[str, str]) -> None:
    """Write a micro-batch in the function of ``foreachBatch``, exactly once for readers of committed records.

    If the query is killed, or the function raises after this call, Spark calls it with the same ``batch_id`` again, and
    this writes nothing the second time. Each call of the function needs a ``name`` of its own: it is a sink of its own,
    ``<sink.id>--<name>``. Call it once for every micro-batch, also if there are no rows.

    Args:
        df: rows in the sink's columns.
        batch_id: the second argument of the function.
        name: names the write within the function, in letters, digits, ``_`` and ``-``.
        options: the sink's options, with ``sink.id``; ``delivery`` is ``exactly-once``.

    Raises:
        ConfigurationError: ``batch_id`` is no number, or an option is set that this call sets.
        KafkaError: as the sink; Spark wraps it.
    """
    if isinstance(batch_id, bool) or not isinstance(batch_id, int):
        raise ConfigurationError(f"batch_id must be the number that foreachBatch passes, not {batch_id!r}")
    given = {key.lower(): value for key, value in options.items()}
    for own in ("write.id", WRITE_NAME, WRITE_BATCH):
        if own in given:
            raise ConfigurationError(
                f"the option {own} cannot be set: write_batch names the write by its argument name"
            )
    writer = df.write.format("aioproducer").options(**given).option("delivery", EXACTLY_ONCE)
    writer.option(WRITE_NAME, name).option(WRITE_BATCH, str(batch_id)).mode("append").save()
