cimport cython

from aioproducer.core.accumulator cimport RecordAccumulator
from aioproducer.core.metadata cimport ClusterMetadata
from aioproducer.core.producer_state cimport ProducerState
from aioproducer.core.retry cimport Attempts
from aioproducer.core.slots cimport InternalQueue
from aioproducer.io.node cimport NodeConnection, NodeOwner
from aioproducer.metrics cimport Metrics


cdef class Cluster(NodeOwner):
    cdef readonly dict nodes
    cdef readonly ClusterMetadata metadata
    cdef object _loop
    cdef RecordAccumulator _accumulator
    cdef ProducerState _producer_state
    cdef object _connector
    cdef object _node_settings
    cdef object _log
    cdef Metrics _metrics
    cdef object _hooks
    cdef object _random
    cdef object _answers_taken
    cdef object _node_usable
    cdef object _wake
    cdef object _topic_refused
    cdef InternalQueue _internal
    cdef bint _producer_id_asked
    cdef Attempts _producer_id_attempts
    cdef readonly dict _metadata_watches
    cdef object _metadata_request
    cdef public object _intake
    cdef dict _retired

    cpdef object node_ready(self, NodeConnection node)
    cpdef object node_changed(self, NodeConnection node, double now)
    cpdef object expected_cluster_id(self)
    cpdef object record_topic_use(self, object name, double now)
    cpdef NodeConnection node(self, object node_id)
    cpdef bint is_due(self, double now) except -1
    cdef bint _producer_id_due(self, double now) except -1
    @cython.locals(node=NodeConnection)
    cpdef bint send_internal(self, double now) except -1
    @cython.locals(deadline=double, delay=double)
    cpdef double send_due(self, double now) except? -1
