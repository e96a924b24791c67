cimport cython

from aioproducer.core.batching.partition_queue cimport PartitionQueue, TopicQueues
from aioproducer.core.batching.producer_state cimport ProducerState
from aioproducer.core.batching.ready cimport ReadyPartitions
from aioproducer.partitioner cimport StickyPartitioner


cdef class Topics:
    cdef ReadyPartitions _ready
    cdef ProducerState _producer_state
    cdef object _random
    cdef Py_ssize_t _batch_size
    cdef bint _is_adaptive
    cdef double _availability_timeout
    cdef object _rack
    cdef public object rack_of
    cdef dict _queues

    cpdef TopicQueues get(self, object name)
    cpdef PartitionQueue queue(self, TopicQueues topic, Py_ssize_t number)
    @cython.locals(topic=TopicQueues, sticky=StickyPartitioner)
    cpdef object batch_closed(self, PartitionQueue queue, double fullness, double now)
    @cython.locals(sticky=StickyPartitioner)
    cpdef object switch_sticky(self, TopicQueues topic, object partition, double now)
    cdef object _refresh_load(self, TopicQueues topic, double now)
