cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.batching.partition_queue cimport NodeQueue, PartitionQueue
from aioproducer.core.batching.producer_state cimport ProducerState

cdef int _CLOSED, _DUE
cdef int _BACKING_OFF, _HELD, _IDLE, _LEADERLESS, _MUTED, _READY


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
    cdef readonly dict ready_nodes
    cdef readonly object wake

    cpdef object batch_opened(self, PartitionQueue queue, ProducerBatch batch, double now, bint is_due)
    cpdef object batch_closed(self, ProducerBatch batch)
    @cython.locals(batch=ProducerBatch, queue=PartitionQueue)
    cpdef object process_deadlines(self, double now)
    @cython.locals(deadline=double, batch=ProducerBatch)
    cpdef double next_deadline(self) except? -1
    @cython.locals(old=cython.int, node=NodeQueue)
    cdef object _leave(self, PartitionQueue queue, int state)
    cdef object _nothing_ready(self, NodeQueue node)
    cpdef object batch_withdrawn(self, PartitionQueue queue)
    cpdef object unmute(self, PartitionQueue queue)
    @cython.locals(first=ProducerBatch, head=cython.int, state=cython.int, node=NodeQueue)
    cpdef object update(self, PartitionQueue queue, double now)
    cpdef object unblock(self, PartitionQueue queue, double now)
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
