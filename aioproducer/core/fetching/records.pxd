cimport cython


cdef extern from *:
    """
    /* An instance of a subclass of tuple, without its fields. */
    static inline PyObject *allocate_tuple(PyObject *type, Py_ssize_t size) {
        return PyType_GenericAlloc((PyTypeObject *) type, size);
    }
    """
    object allocate_tuple(object type, Py_ssize_t size)
    void PyObject_GC_UnTrack(object instance) noexcept


cdef long long _EXTREME


cdef struct RecordFields:
    long long offset_delta
    long long timestamp_delta
    const unsigned char* key
    Py_ssize_t key_size
    const unsigned char* value
    Py_ssize_t value_size
    const unsigned char* end


@cython.locals(is_plain=cython.bint)
cdef bint parse_record(const unsigned char* place, const unsigned char* end, RecordFields* fields) noexcept


@cython.locals(read=cython.uint, byte=cython.uint, index=cython.int)
cdef const unsigned char* _number(const unsigned char* place, const unsigned char* end, long long* value) noexcept


@cython.locals(copied=bytes)
cdef object _bytes_at(const unsigned char* address, Py_ssize_t size)


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
    cpdef object check_end(self)
    cpdef object next_record(self)
    @cython.locals(records=list)
    cpdef list read(self, object topic, object partition, Py_ssize_t limit, Py_ssize_t most_bytes)
    cdef object _read_one_by_one(
        self, list records, object topic, object partition, Py_ssize_t limit, Py_ssize_t end
    )
    cdef bint _append_next(self, list records, object topic, object partition) except -1
    @cython.locals(
        begin="const unsigned char *",
        end="const unsigned char *",
        count=Py_ssize_t,
        has_append_time=cython.bint,
        last_delta="long long",
        offset="long long",
    )
    cdef int _read_by_address(
        self, list records, object topic, object partition, Py_ssize_t limit, Py_ssize_t last_place
    ) except -1
