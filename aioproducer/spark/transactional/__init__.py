"""Exactly-once delivery of the Spark sink: the decisions, without IO.

Tasks leave their transactions open. The driver writes one *decision* for each micro-batch into a topic, in a
transaction of the sink's *committer*: it holds a *handle* of each open transaction. A decided batch is finished by the
process that comes next, even if the coordinator has aborted its transactions meanwhile: their rows are still in the
log, and are copied. The flows await the calls of ``SinkCluster`` only, so that tests run them on a model of Kafka.
"""
