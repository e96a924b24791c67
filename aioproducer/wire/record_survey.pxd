cimport cython

cdef long long _NO_TIMESTAMP, _INT64_MAX


@cython.locals(
    address="const unsigned char *",
    end="const unsigned char *",
    record_end="const unsigned char *",
    index=cython.longlong,
    total=cython.ulonglong,
    timestamp=cython.longlong,
    earliest=cython.longlong,
    latest=cython.longlong,
    is_dense=cython.bint,
    has_keys=cython.bint,
)
cdef object survey_by_address(object data, long long count, long long base_timestamp)

@cython.locals(read=cython.ulonglong, byte=cython.ulonglong, index=cython.int)
cdef const unsigned char* _read_zigzag(
    const unsigned char* address, const unsigned char* end, int longest, long long* value
) noexcept

cdef const unsigned char* _skip_nullable(const unsigned char* address, const unsigned char* end) noexcept

cdef const unsigned char* _skip_headers(
    const unsigned char* address, const unsigned char* end, long long count
) noexcept
