"""Brokers of other projects, started by the tests and the bench.

``KafkaCluster`` runs Apache Kafka itself, from its Maven artifacts. ``MockCluster`` is librdkafka's mock cluster, which
injects faults on request and needs no Java. ``verify`` compares a producer's outcomes with the records that another
project's consumer reads.
"""
