cimport cython

from aioproducer.core.batching.buffer_pool cimport BufferPool
from aioproducer.core.batching.incomplete_batches cimport IncompleteBatches


cdef class DrainWaiters:
    cdef readonly object waiters
    cdef object _loop
    cdef BufferPool _pool
    cdef IncompleteBatches _incomplete
    cdef object _blocked_records
    cdef object _memory_waiters
    cdef object _pending
    cdef object _pending_records
    cdef object _max_request_size
    cdef Py_ssize_t _reserve
    cdef object _wake

    @cython.locals(available=Py_ssize_t)
    cpdef bint has_room(self) except -1
    cdef bint _pending_have_room(self) except -1
    cdef bint _has_ample_memory(self) except -1
