cimport cython

from aioproducer.wire.record_batch cimport read_integer

cdef int _FIRST_VERSION, _LAST_VERSION, _IDS_FROM, _ID_SIZE
cdef int _ROOM, _LARGEST_PIECE, _LARGEST_COPIED, _LARGEST_SHORT, _INT32_SIZE, _PARTITION_SIZE
cdef long long _LONGEST_FRAME


cdef class PlainProduceRequest:
    cdef readonly object acks
    cdef readonly object timeout_ms
    cdef readonly list targets
    cdef readonly list records
    cdef readonly object transactional_id


cdef class Acknowledged:
    cdef readonly int throttle_time_ms
    cdef readonly list batches


@cython.locals(
    begin="unsigned char *",
    address="unsigned char *",
    end="unsigned char *",
    acks=cython.int,
    buffers=list,
    total=cython.longlong,
    size=cython.longlong,
    targets=list,
    count=Py_ssize_t,
    topics=Py_ssize_t,
    number=Py_ssize_t,
    left=Py_ssize_t,
    where=tuple,
    name=bytes,
    index=cython.longlong,
    records=list,
    first=bytes,
    transactional_id=bytes,
)
cdef list encode_plain_request(
    bytes head, Py_ssize_t correlation_id_at, PlainProduceRequest request, int version, long long correlation_id
)

@cython.locals(
    address="const unsigned char *",
    end="const unsigned char *",
    count=Py_ssize_t,
    size=Py_ssize_t,
    batches=list,
    partitions_left=Py_ssize_t,
)
cdef Acknowledged decode_acknowledged(bytes frame, int version)

cdef bint _other_topic(tuple one, tuple other) except -1

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _add_piece(list buffers, unsigned char *begin, unsigned char *end) except -1

cdef unsigned char *_put_int32(unsigned char *address, long long value) noexcept

cdef unsigned char *_put_length(unsigned char *address, long long length) noexcept
