cimport cython

from aioproducer._common.views cimport part_of, view_of
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
cdef Py_ssize_t _SIZE, _SHORT_BODY, _EPOCH_AT, _CHECKSUM_AT, _ATTRIBUTES_AT

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

@cython.locals(value=cython.ulonglong, unused=cython.int, index=cython.int)
cdef long long read_integer(const unsigned char *address, int size) noexcept

cdef unsigned int _checksum_of(const unsigned char *address, const unsigned char *end, unsigned int value) noexcept

@cython.locals(index=cython.int)
cdef unsigned char *_put(unsigned char *address, long long value, int size) noexcept

@cython.locals(checksum=cython.uint, odd=cython.uint, index=cython.int)
cdef object _fill_checksums()


@cython.final
cdef class RecordBatch:
    cdef readonly Py_ssize_t size_in_bytes
    cdef readonly object buffer
    cdef readonly long long base_offset
    cdef readonly int partition_leader_epoch
    cdef readonly unsigned int checksum
    cdef readonly int attributes
    cdef readonly int last_offset_delta
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly long long producer_id
    cdef readonly int producer_epoch
    cdef readonly int base_sequence
    cdef readonly int record_count
    cdef readonly object last_offset
    cdef readonly int compression_id

    cpdef object validate(self)
    @cython.locals(address="const unsigned char *")
    cdef int _read_header(self) noexcept
