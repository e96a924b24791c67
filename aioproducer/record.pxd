cimport cython

cdef extern from *:
    """
    #define OFFSET_IN_RECORD_METADATA offsetof(struct __pyx_obj_11aioproducer_6record_RecordMetadata, _offset)
    """
    const Py_ssize_t OFFSET_IN_RECORD_METADATA


cdef class RecordMetadata:
    cdef object _topic_partition
    cdef object _offset
    cdef long long _timestamp_ms

    cpdef tuple _as_tuple(self)


@cython.locals(metadata=RecordMetadata)
cpdef RecordMetadata new_record_metadata(object topic_partition, long long offset, long long timestamp_ms)
