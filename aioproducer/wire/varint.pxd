cimport cython


@cython.locals(byte=cython.ulonglong, value=cython.ulonglong, index=cython.int, end=Py_ssize_t)
cdef tuple _decode(object buffer, Py_ssize_t position, int longest, unsigned long long mask)
