cimport cython

from aioproducer.wire.crc32c cimport crc32c


cpdef bytes pack_header(
    object body,
    Py_ssize_t body_size,
    object record_count,
    object base_timestamp,
    object max_timestamp,
    object attributes,
    object producer_id,
    object producer_epoch,
    object base_sequence,
    object base_offset,
    object last_offset_delta,
    object partition_leader_epoch,
)

cdef unsigned int[256] _CHECKSUMS
cdef unsigned int _REVERSED_POLYNOMIAL
cdef Py_ssize_t _SIZE, _SHORT_BODY

@cython.locals(
    start="unsigned char *", address="unsigned char *", covered="unsigned char *", end="unsigned char *", checksum=cython.uint
)
cdef bytes write_header(
    object body,
    Py_ssize_t body_size,
    long long record_count,
    long long base_timestamp,
    long long max_timestamp,
    int attributes,
    long long producer_id,
    int producer_epoch,
    long long base_sequence,
)

cdef unsigned int _checksum_of(const unsigned char *address, const unsigned char *end, unsigned int value) noexcept

@cython.locals(index=cython.int)
cdef unsigned char *_put(unsigned char *address, long long value, int size) noexcept

@cython.locals(checksum=cython.uint, odd=cython.uint, index=cython.int)
cdef object _fill_checksums()
