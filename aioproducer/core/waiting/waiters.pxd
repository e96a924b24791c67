cimport cython


cdef class Watched


cdef class Watches:
    cdef readonly Watched _batches
    cdef Watched _line
    cdef object _loop
    cdef object _first_batch
    cdef object _first_in_line
    cdef bint _to_go_on

    @cython.locals(more=cython.bint)
    cpdef object check(self)


cdef class Watched:
    cdef readonly object waiting
    cdef Py_ssize_t _many

    cpdef object add(self, Py_ssize_t number, object future)
    @cython.locals(left=Py_ssize_t)
    cpdef bint end(self, Py_ssize_t oldest) except -1
