cdef class FutureOfMetadata:
    pass
