cimport cython

cdef int _LONGEST_START


@cython.locals(
    length=Py_ssize_t,
    data="const unsigned char*",
    size=Py_ssize_t,
    end=Py_ssize_t,
    timestamp=Py_ssize_t,
    offset=Py_ssize_t,
    size_of_key=Py_ssize_t,
    size_of_value=Py_ssize_t,
)
cpdef tuple decode_small_record(bytes body, Py_ssize_t place)


cdef class BatchReader:
    cdef object _append_time
    cdef long long _base_offset
    cdef long long _base_timestamp
    cdef bytes _body
    cdef Py_ssize_t _count
    cdef object _epoch
    cdef long long _first
    cdef long long _stop
    cdef readonly Py_ssize_t place

    @cython.locals(
        records=list,
        body=bytes,
        place=Py_ssize_t,
        end=Py_ssize_t,
        count=Py_ssize_t,
        first="long long",
        stop="long long",
        base_offset="long long",
        base_timestamp="long long",
        offset="long long",
        fields=tuple,
    )
    cpdef list read(self, object topic, object partition, Py_ssize_t limit, Py_ssize_t most_bytes)
