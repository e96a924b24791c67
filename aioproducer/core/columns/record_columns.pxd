cimport cython

from aioproducer.core.columns.binary_column cimport BinaryColumn, bit_at, number_at
from aioproducer.wire.record cimport write_zigzag, zigzag_size


@cython.final
cdef class TimestampColumn:
    cdef readonly Py_ssize_t length
    cdef Py_ssize_t first
    cdef size_t numbers
    cdef size_t validity
    cdef object owner

    @cython.locals(index=Py_ssize_t)
    cdef long long find(self, Py_ssize_t row, long long default) noexcept


@cython.final
cdef class HeaderColumn:
    cdef readonly Py_ssize_t length
    cdef Py_ssize_t first
    cdef size_t offsets
    cdef int offset_size
    cdef size_t validity
    cdef BinaryColumn keys
    cdef BinaryColumn values
    cdef object owner
    cdef Py_ssize_t found_begin
    cdef Py_ssize_t found_end

    cdef void find(self, Py_ssize_t row) noexcept
    @cython.locals(size=Py_ssize_t, index=Py_ssize_t)
    cdef Py_ssize_t size_of(self, Py_ssize_t row) noexcept
    @cython.locals(index=Py_ssize_t, data="const unsigned char *")
    cdef void write(self, unsigned char* address, Py_ssize_t row) noexcept
