cimport cython

cdef int _FIRST_VERSION, _LAST_VERSION, _IDS_FROM, _ID_SIZE
cdef int _ROOM, _LARGEST_PIECE, _LARGEST_SHORT, _INT32_SIZE, _PARTITION_SIZE
cdef long long _LONGEST_FRAME


@cython.locals(
    place="unsigned char *",
    end="unsigned char *",
    acks=cython.int,
    topics=list,
    buffers=list,
    total=cython.longlong,
    size=cython.longlong,
    name=bytes,
    partitions=list,
    first=bytes,
)
cdef list encode_plain_request(
    bytes head, Py_ssize_t correlation_id_at, object message, int version, long long correlation_id
)

@cython.locals(
    place="const unsigned char *",
    end="const unsigned char *",
    correlation_id=cython.int,
    count=Py_ssize_t,
    size=Py_ssize_t,
    responses=list,
    partitions=list,
    partitions_left=Py_ssize_t,
)
cdef tuple decode_plain_response(bytes frame, int version)

cdef unsigned char *_put_int32(unsigned char *place, long long value) noexcept

cdef unsigned char *_put_length(unsigned char *place, long long length) noexcept

@cython.locals(value=cython.ulonglong, here=cython.int, unused=cython.int)
cdef long long _integer(const unsigned char *place, int size) noexcept
