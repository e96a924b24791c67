cimport cython

from aioproducer.core.fetching.memory cimport FetchBuffer


cpdef object position_at(object offset, object epoch)
cpdef object position_behind_record(object record)


@cython.final
cdef class AssignedPartition:
    cdef readonly object name
    cdef readonly object attempts
    cdef public object state
    cdef public Py_ssize_t revision
    cdef object _position
    cdef object _processed
    cdef object _last_returned
    cdef object _last_processed
    cdef public object fetch_position
    cdef public object reset
    cdef public object error
    cdef public bint is_error_final
    cdef public object resume_state
    cdef public bint is_paused_by_caller
    cdef public bint is_held
    cdef public object in_flight
    cdef public bint is_looked_up
    cdef public bint is_missing
    cdef public object topic_id
    cdef public Py_ssize_t recreations
    cdef public object leader
    cdef public object leader_epoch
    cdef public object read_replica
    cdef public object read_replica_until
    cdef public object high_watermark
    cdef public object last_stable_offset
    cdef public object log_start_offset
    cdef readonly object buffered
    cdef readonly object ready
    cdef public object stop
    cdef public object failure
    cdef public object failing_for
    cdef object _failing_since
    cdef FetchBuffer _memory
    cdef readonly Py_ssize_t decoded
    cdef public object ready_position

    @cython.locals(waiting=Py_ssize_t)
    cpdef bint is_full(self) except -1
    cpdef object hold_decoded(self, Py_ssize_t size)
    cdef object _release_decoded(self)
    cpdef object passed(self, object position)
    cpdef object returned(self, object position)
    cpdef object take_one(self)
    cpdef object take_next(self)
    cpdef list take(self, Py_ssize_t limit)
