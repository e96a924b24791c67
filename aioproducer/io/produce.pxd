cimport cython

from aioproducer.core.batch cimport ProducerBatch
from aioproducer.io.node cimport NodeConnection
from aioproducer.protocol.produce_frames cimport Acknowledged, PlainProduceRequest


@cython.locals(batch=ProducerBatch)
cpdef object choose_version(NodeConnection node, list batches, dict topic_ids)

@cython.locals(
    batch=ProducerBatch, by_id=cython.bint, by_partition=dict, topics=dict, partitions=list, request=PlainProduceRequest
)
cpdef tuple produce_request(list batches, object version, dict topic_ids, object acks, object timeout_ms)


cdef class ProduceInFlight:
    cdef object _owner
    cdef list _batches
    cdef dict _unanswered

    @cython.locals(batch=ProducerBatch)
    cpdef object reading(self)
    @cython.locals(batch=ProducerBatch)
    cpdef object released(self)
    @cython.locals(batch=ProducerBatch, answered=ProducerBatch, unanswered=dict)
    cpdef object answered(self, NodeConnection node, object completed)
    @cython.locals(batch=ProducerBatch, by_id=cython.bint)
    cdef object _answered_in_full(self, object response, object completed)
