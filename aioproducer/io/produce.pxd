cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.requests.connection cimport Completed
from aioproducer.core.metadata.cluster_metadata cimport ClusterMetadata
from aioproducer.core.batching.partition_queue cimport PartitionQueue
from aioproducer.io.node cimport NodeConnection, NodeOwner, RequestContext
from aioproducer.protocol.produce_frames cimport Acknowledged, PlainProduceRequest


@cython.locals(batch=ProducerBatch, queue=PartitionQueue)
cpdef object group_by_topic(list batches)

@cython.locals(batch=ProducerBatch, queue=PartitionQueue, targets=list, records=list)
cpdef PlainProduceRequest produce_request(
    list batches, ClusterMetadata metadata, object acks, object timeout_ms, object transactional_id=*
)

@cython.locals(batch=ProducerBatch, target=tuple)
cpdef object choose_version(NodeConnection node, list batches, PlainProduceRequest request, int highest=*)


cdef class ProduceOwner(NodeOwner):
    cpdef object request_answered(self, NodeConnection node, Completed completed, object throttle_time_ms)
    cpdef object batch_acknowledged(
        self, ProducerBatch batch, long long base_offset, long long log_append_time, double now
    )
    cpdef object batch_refused(self, ProducerBatch batch, object answer, list endpoints, double now)
    cpdef object batch_written(self, ProducerBatch batch)
    cpdef object batch_failed(self, ProducerBatch batch, object error)
    cpdef object release(self, ProducerBatch batch)


cdef class ProduceInFlight(RequestContext):
    cdef ProduceOwner _owner
    cdef list _batches
    cdef list _targets

    @cython.locals(batch=ProducerBatch)
    cpdef object reading(self)
    @cython.locals(batch=ProducerBatch)
    cpdef object released(self)
    @cython.locals(batch=ProducerBatch, unanswered=dict, owner=ProduceOwner, by_id=cython.bint)
    cpdef object answered(self, NodeConnection node, Completed completed)
    @cython.locals(batch=ProducerBatch)
    cpdef object failed(self, NodeConnection node, object error)
    cdef dict _by_target(self, bint by_id)
    @cython.locals(batch=ProducerBatch, unanswered=dict, owner=ProduceOwner, target=tuple)
    cdef dict _acknowledged(self, Acknowledged response, bint by_id, double now)
    @cython.locals(batch=ProducerBatch, unanswered=dict, owner=ProduceOwner)
    cdef dict _answered_in_full(self, object response, bint by_id, double now)


@cython.locals(context=ProduceInFlight)
cpdef ProduceInFlight produce_in_flight(ProduceOwner owner, list batches, PlainProduceRequest request)
