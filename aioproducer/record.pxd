cimport cython


cdef class RecordMetadata:
    cdef object _topic_partition
    cdef long long _offset
    cdef long long _timestamp_ms

    cpdef tuple _as_tuple(self)


@cython.locals(metadata=RecordMetadata)
cpdef RecordMetadata new_record_metadata(object topic_partition, long long offset, long long timestamp_ms)
