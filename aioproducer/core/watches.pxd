cimport cython


cdef class Watches:
    cdef readonly list _batches
    cdef list _line
    cdef list _room
    cdef object _loop
    cdef object _first_batch
    cdef object _first_in_line
    cdef object _has_room

    cpdef object check(self)
