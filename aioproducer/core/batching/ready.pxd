cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.batching.partition_queue cimport NodeQueue, PartitionQueue
from aioproducer.core.batching.producer_state cimport ProducerState


cdef class BatchFinisher:
    cpdef bint finish_batch(self, PartitionQueue queue, ProducerBatch batch, double now) except -1


cdef class ReadyPartitions:
    cdef object _backoffs
    cdef dict _held
    cdef object _lingering
    cdef object _tie
    cdef readonly dict leaderless
    cdef readonly double linger
    cdef readonly dict nodes
    cdef readonly ProducerState producer_state
    cdef readonly dict ready
    cdef readonly object wake

    cpdef object opened(self, PartitionQueue queue, ProducerBatch batch, double now, bint hurry)
    cpdef object closed(self, ProducerBatch batch)
    @cython.locals(batch=ProducerBatch)
    cpdef object poll(self, double now)
    @cython.locals(deadline=double, batch=ProducerBatch)
    cpdef double next_deadline(self) except? -1
    @cython.locals(head=ProducerBatch, node=NodeQueue)
    cpdef object update(self, PartitionQueue queue, double now)
    cpdef object settle(self, PartitionQueue queue, double now)
    @cython.locals(
        drained=list,
        node=NodeQueue,
        room=Py_ssize_t,
        again=list,
        queue=PartitionQueue,
        head=ProducerBatch,
        size=Py_ssize_t,
    )
    cpdef list drain(
        self, object node_id, double now, Py_ssize_t max_request_size, bint one_in_flight, BatchFinisher finisher
    )
