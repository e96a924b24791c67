cimport cython


cpdef object view_of(object buffer)
cpdef bint is_of_bytes(object view) except -1
@cython.locals(part=object, buffer="Py_buffer *")
cpdef object part_of(object view, Py_ssize_t offset, Py_ssize_t length)
