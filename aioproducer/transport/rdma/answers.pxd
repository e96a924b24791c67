cimport cython

from aioproducer.transport.rdma.ring cimport SendQueue


@cython.final
cdef class Answers:
    cdef object _loop
    cdef SendQueue _queue
    cdef object _poll
    cdef readonly bint missing
    cdef bint _missed_once
    cdef bint _received
    cdef bint _expected
    cdef object _timer

    cpdef object received(self)
    cpdef object start_timer(self)
    cpdef object stop(self)
    cpdef object _expired(self)
