cdef class Attempts:
    cdef object _backoff
    cdef object _random
    cdef public Py_ssize_t failures
    cdef readonly double retry_at

    cpdef double delay(self, double now) except? -1
