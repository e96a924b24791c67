cdef class StickyPartitioner:
    cdef public Py_ssize_t sticky_size
    cdef public object rack
    cdef public Py_ssize_t produced_bytes
    cdef object _random
    cdef object _candidates
    cdef object _frequencies
    cdef public Py_ssize_t partition

    cpdef bint update(self, Py_ssize_t appended_bytes, bint enable_switch=*) except -1
