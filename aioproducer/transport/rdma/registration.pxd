cdef Py_ssize_t _PART_BYTES


cdef class RegisteredMemory:
    cdef readonly object memory
    cdef object _device
    cdef list _regions
    cdef list _parts
    cdef readonly Py_ssize_t address
    cdef readonly Py_ssize_t size

    cpdef tuple part_of(self, Py_ssize_t address)
