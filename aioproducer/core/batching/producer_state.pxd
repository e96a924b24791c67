cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch

cdef long long _MASK, _NO_SEQUENCE
cdef list _NOTHING


cdef class PartitionSequences:
    cdef public long long producer_id
    cdef public int producer_epoch
    cdef public long long next_sequence
    cdef public long long last_acked
    cdef public list in_flight
    cdef public Py_ssize_t acked_early
    cdef public bint unresolved
    cdef public bint bump_wanted
    cdef public bint log_is_new
    cdef public tuple sent_to_old_log
    cdef public Py_ssize_t transaction


cdef class ProducerState:
    cdef readonly bint idempotent
    cdef readonly Py_ssize_t max_in_flight
    cdef public long long producer_id
    cdef public int producer_epoch
    cdef public object fatal_error
    cdef public Py_ssize_t transaction
    cdef public object transactions
    cdef dict _sequences

    cpdef bint needs_producer_id(self) except -1
    cpdef bint may_send(self, ProducerBatch batch, PartitionSequences sequences) except -1
    cpdef object assign(self, ProducerBatch batch, PartitionSequences sequences)
    @cython.locals(last="long long")
    cpdef object acked(self, ProducerBatch batch, PartitionSequences sequences)
    cpdef bint is_first_in_flight(self, ProducerBatch batch, PartitionSequences sequences) except -1
    cpdef object abandoned(self, ProducerBatch batch, PartitionSequences sequences)
    @cython.locals(batch=ProducerBatch)
    cpdef bint resolve(self, PartitionSequences sequences) except -1
    cdef object _remove(self, ProducerBatch batch, PartitionSequences sequences)
    cdef bint _is_current(self, PartitionSequences sequences)
    cdef object _begin_epoch(self, PartitionSequences sequences)


cpdef bint _is_before(long long sequence, long long other) noexcept
