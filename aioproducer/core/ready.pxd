cimport cython

from aioproducer.core.batch cimport ProducerBatch
from aioproducer.core.partition_queue cimport NodeQueue, PartitionQueue


cdef class ReadyPartitions:
    cdef object _backoffs
    cdef dict _held
    cdef object _lingering
    cdef object _tie
    cdef readonly dict leaderless
    cdef readonly double linger
    cdef readonly dict nodes
    cdef readonly object producer_state
    cdef readonly dict ready
    cdef readonly object wake

    cpdef object closed(self, ProducerBatch batch)
    @cython.locals(batch=ProducerBatch)
    cpdef object poll(self, double now)
    @cython.locals(head=ProducerBatch, node=NodeQueue)
    cpdef object update(self, PartitionQueue queue, double now)
    cpdef object settle(self, PartitionQueue queue, double now)
