cimport cython

cdef Py_ssize_t _PART_BYTES


cdef class RegisteredMemory:
    cdef readonly object memory
    cdef object _device
    cdef list _regions
    cdef list _keys
    cdef readonly Py_ssize_t address
    cdef readonly Py_ssize_t size

    @cython.locals(part=Py_ssize_t)
    cpdef (Py_ssize_t, unsigned int) part_of(self, Py_ssize_t address) except *
