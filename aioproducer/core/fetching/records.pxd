cimport cython


cdef extern from *:
    """
    /* An instance of a subclass of tuple, without its fields. */
    static inline PyObject *allocate_tuple(PyObject *type, Py_ssize_t size) {
        return PyType_GenericAlloc((PyTypeObject *) type, size);
    }
    """
    object allocate_tuple(object type, Py_ssize_t size)


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


cdef void _set(object record, Py_ssize_t index, object field) noexcept


cdef class BatchReader:
    cdef readonly object append_time
    cdef readonly long long base_offset
    cdef readonly long long base_timestamp
    cdef readonly object body
    cdef public Py_ssize_t count
    cdef readonly object epoch
    cdef readonly long long first
    cdef public Py_ssize_t place
    cdef readonly long long stop

    cpdef bytes body_bytes(self)
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
        number=object,
    )
    cpdef list read(self, object topic, object partition, Py_ssize_t limit, Py_ssize_t most_bytes)
