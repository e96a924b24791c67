cimport cython
from cpython.object cimport PyObject

cdef int _MAX_OVERHEAD, _SHORT, _SHORTEST


@cython.locals(zigzagged=cython.ulonglong, size=Py_ssize_t)
cdef Py_ssize_t zigzag_size(long long value) noexcept

@cython.locals(zigzagged=cython.ulonglong)
cdef unsigned char* write_zigzag(unsigned char* address, long long value) noexcept

@cython.locals(size=Py_ssize_t, total=Py_ssize_t)
cdef Py_ssize_t write_plain_record(
    unsigned char* address,
    Py_ssize_t room,
    Py_ssize_t offset_delta,
    long long timestamp_delta,
    const unsigned char* key,
    Py_ssize_t key_size,
    const unsigned char* value,
    Py_ssize_t value_size,
    Py_ssize_t headers_size,
) noexcept

@cython.locals(size=Py_ssize_t, value_size=Py_ssize_t)
cdef Py_ssize_t plain_headers_size(object headers) except -1

@cython.locals(header=tuple, name="const char *", value_size=Py_ssize_t)
cdef object write_headers(unsigned char* address, object headers)

@cython.locals(
    begin=cython.p_uchar,
    here=Py_ssize_t,
    head_size=Py_ssize_t,
    head_value_size=Py_ssize_t,
    head_ends_at=Py_ssize_t,
    offset_at=Py_ssize_t,
    total=Py_ssize_t,
    largest=Py_ssize_t,
    value="PyObject *",
    value_size=Py_ssize_t,
    data=cython.p_uchar,
    size=Py_ssize_t,
    behind=cython.p_uchar,
    zigzagged=cython.uint,
    written=Py_ssize_t,
)
cdef Py_ssize_t write_run(
    unsigned char* address,
    Py_ssize_t room,
    Py_ssize_t enough,
    Py_ssize_t offset_delta,
    long long timestamp_delta,
    list values,
    Py_ssize_t first,
    Py_ssize_t stop,
    Py_ssize_t* sizes,
) except -1

@cython.locals(size=Py_ssize_t, encoded_size=Py_ssize_t)
cpdef Py_ssize_t record_size_upper_bound(Py_ssize_t key_size, Py_ssize_t value_size, object headers=*) except -1
