from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.batching.producer_state cimport PartitionSequences
from aioproducer.partitioner cimport StickyPartitioner


cdef long long _TRANSITIONS


cdef class NodeQueue:
    cdef readonly int node_id
    cdef readonly object ready
    cdef public object waiting_since


cdef class PartitionQueue:
    cdef readonly object topic_partition
    cdef readonly str topic
    cdef readonly object partition
    cdef readonly PartitionSequences sequences
    cdef readonly object batches
    cdef public ProducerBatch open_batch
    cdef public NodeQueue node
    cdef readonly int state
    cdef public Py_ssize_t on_wire
    cdef public double backoff_until
    cdef public Py_ssize_t last_batch_size

    cpdef object set_state(self, int state)
    cpdef object own_batches(self)
    cpdef object take(self)
    cpdef object remove(self, ProducerBatch batch)


cdef class TopicQueues:
    cdef readonly str name
    cdef readonly list partitions
    cdef readonly list leaders
    cdef readonly dict spare
    cdef public StickyPartitioner sticky
    cdef public double load_at
    cdef public double use_recorded_at
    cdef public double sized_at
    cdef object _available
    cdef readonly object metadata_waiters
    cdef readonly object unknown_partition_waiters
    cdef public Py_ssize_t blocked_count

    cpdef object own_metadata_waiters(self)
    cpdef object own_unknown_partition_waiters(self)
    cpdef object clear_waiters(self)
    cpdef bint has_partition(self, object partition) except -1
