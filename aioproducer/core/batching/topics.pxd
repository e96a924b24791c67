cimport cython

from aioproducer.core.batching.partition_queue cimport PartitionQueue, TopicQueues
from aioproducer.core.batching.producer_state cimport ProducerState
from aioproducer.core.batching.ready cimport ReadyPartitions
from aioproducer.partitioner cimport StickyPartitioner


cdef class Topics:
    cdef ReadyPartitions _ready
    cdef ProducerState _producer_state
    cdef object _settings
    cdef object _random
    cdef public object rack_of
    cdef dict _queues

    cpdef TopicQueues get(self, object name)
    @cython.locals(topic=TopicQueues, sticky=StickyPartitioner)
    cpdef object closed(self, PartitionQueue queue, double fullness, double now)
    @cython.locals(sticky=StickyPartitioner)
    cpdef object end_turn(self, TopicQueues topic, object partition, double now)
    cdef object _refresh_load(self, TopicQueues topic, double now)
