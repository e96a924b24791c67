cimport cython

from aioproducer.core.batch cimport ProducerBatch
from aioproducer.io.node cimport NodeConnection


@cython.locals(batch=ProducerBatch)
cpdef object choose_version(NodeConnection node, list batches, dict topic_ids)

@cython.locals(batch=ProducerBatch, by_id=cython.bint, by_partition=dict)
cpdef tuple produce_request(list batches, object version, dict topic_ids, object acks, object timeout_ms)


cdef class ProduceInFlight:
    cdef object _owner
    cdef list _batches
    cdef dict _unanswered

    @cython.locals(batch=ProducerBatch)
    cpdef object reading(self)
    @cython.locals(batch=ProducerBatch)
    cpdef object released(self)
    @cython.locals(batch=ProducerBatch, answered=ProducerBatch, by_id=cython.bint, unanswered=dict)
    cpdef object answered(self, NodeConnection node, object completed)
