cimport cython


@cython.locals(length=Py_ssize_t)
cdef unsigned int _murmur2_unsigned(object data) except? 0

@cython.locals(address=cython.p_char, h=cython.uint, k=cython.uint, rest=Py_ssize_t)
cdef unsigned int _murmur2_of_bytes(bytes data, Py_ssize_t length) noexcept

cpdef Py_ssize_t partition_for_key(object key, Py_ssize_t partition_count) except -1
