cimport cython


@cython.locals(length=Py_ssize_t)
cdef unsigned int _murmur2_unsigned(object data) except? 0

@cython.locals(h=cython.uint, k=cython.uint, rest=Py_ssize_t)
cdef unsigned int _murmur2_at(const unsigned char* address, Py_ssize_t length) noexcept

cpdef Py_ssize_t partition_for_key(object key, Py_ssize_t partition_count) except -1

@cython.locals(hashed=cython.uint, count=cython.uint)
cdef Py_ssize_t partition_for_key_at(const unsigned char* address, Py_ssize_t length, Py_ssize_t partition_count) noexcept
