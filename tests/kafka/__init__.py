"""Brokers this project did not write, started by its tests and its bench.

``KafkaCluster`` runs Apache Kafka itself, from its Maven artifacts; ``MockCluster`` is librdkafka's mock cluster, which
takes faults on command and needs no Java. ``verify`` holds what a producer said was stored against what a foreign
consumer reads.
"""
