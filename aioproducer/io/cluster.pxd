cimport cython

from aioproducer.core.batching.accumulator cimport RecordAccumulator
from aioproducer.core.metadata.cluster_metadata cimport ClusterMetadata
from aioproducer.core.batching.producer_state cimport ProducerState
from aioproducer.core.requests.retry cimport Attempts
from aioproducer.core.requests.slots cimport InternalQueue
from aioproducer.io.node cimport NodeConnection
from aioproducer.metrics cimport ProducerMetrics


cdef class Cluster:
    cdef readonly object pool
    cdef readonly dict nodes
    cdef readonly dict rejected_topics
    cdef readonly ClusterMetadata metadata
    cdef object _loop
    cdef RecordAccumulator _accumulator
    cdef ProducerState _producer_state
    cdef double _setup_timeout
    cdef object _log
    cdef ProducerMetrics _metrics
    cdef object _hooks
    cdef object _random
    cdef object _wake
    cdef InternalQueue _internal
    cdef readonly object _transactional
    cdef bint _producer_id_requested
    cdef Attempts _producer_id_attempts
    cdef readonly dict _metadata_waiters
    cdef bint _is_paused
    cdef object _metadata_request
    cdef double _metadata_requested_at
    cdef public object shared_metadata
    cdef public object _apply_steps

    cpdef object node_ready(self, NodeConnection node)
    cpdef object node_lost(self, NodeConnection node, double now)
    cdef bint _pauses(self) except -1
    cpdef object record_topic_use(self, object name, double now)
    cpdef bint is_due(self, double now) except -1
    cdef bint _producer_id_due(self, double now) except -1
    @cython.locals(node=NodeConnection)
    cpdef bint send_internal(self, double now) except -1
    @cython.locals(node=NodeConnection)
    cdef bint _send_kind(self, object kind, double now) except -1
    @cython.locals(deadline=double, delay=double)
    cpdef double send_due(self, double now) except? -1
