cimport cython

from aioproducer.transport.rdma.ring cimport SendQueue


@cython.final
cdef class Answers:
    cdef object _loop
    cdef SendQueue _queue
    cdef object _look
    cdef readonly bint missing
    cdef bint _late
    cdef bint _came
    cdef bint _expected
    cdef object _timer

    cpdef object came(self)
    cpdef object wait(self)
    cpdef object stop(self)
    cpdef object _expired(self)
