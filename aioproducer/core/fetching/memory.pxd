cimport cython


@cython.final
cdef class FetchBuffer:
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t decoding_room
    cdef public Py_ssize_t share
    cdef public Py_ssize_t reserved
    cdef public Py_ssize_t used
    cdef public Py_ssize_t decoded
    cdef public bint has_room_again

    cpdef object release_decoded(self, Py_ssize_t size)


@cython.final
cdef class FetchedResponse:
    cdef readonly FetchBuffer buffer
    cdef Py_ssize_t _parts
    cdef Py_ssize_t _size

    cpdef object hold(self)
    cpdef object drop(self)
