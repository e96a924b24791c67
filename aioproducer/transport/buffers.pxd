cimport cython


@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t bytes_of(object buffers) except -1
cpdef list views_of(object buffers)
