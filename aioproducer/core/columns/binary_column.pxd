cimport cython


@cython.final
cdef class BinaryColumn:
    cdef readonly Py_ssize_t length
    cdef Py_ssize_t first
    cdef Py_ssize_t first_index
    cdef size_t offsets
    cdef int offset_size
    cdef Py_ssize_t row_size
    cdef size_t data
    cdef size_t validity
    cdef size_t indices
    cdef int index_size
    cdef size_t dictionary_validity
    cdef object owner
    cdef Py_ssize_t found_size
    cdef const int* plain_offsets

    @cython.locals(index=Py_ssize_t, begin=Py_ssize_t)
    cdef const unsigned char* find(self, Py_ssize_t row) noexcept
    @cython.locals(address="const unsigned char *")
    cpdef bytes bytes_of(self, Py_ssize_t row)


cdef bint bit_at(size_t bitmap, Py_ssize_t index) noexcept
cdef Py_ssize_t number_at(size_t numbers, int size, Py_ssize_t index) noexcept
