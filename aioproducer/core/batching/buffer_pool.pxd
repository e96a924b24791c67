cimport cython


cdef Py_ssize_t _UNIT


cdef class Slab:
    cdef readonly object memory
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t size
    # The address of memory[0].
    cdef unsigned char* address


cdef unsigned char* _address_of(object memory) except NULL


cdef class BufferPool:
    cdef readonly Py_ssize_t total_memory
    cdef public Py_ssize_t available_memory
    cdef readonly object _arena
    cdef readonly object _view
    cdef readonly list _free
    cdef dict _spares

    @cython.locals(available=Py_ssize_t, min_units=Py_ssize_t, units=Py_ssize_t, slab=Slab)
    cpdef Slab take(self, Py_ssize_t minimum, Py_ssize_t preferred)
    @cython.locals(spares=list)
    cpdef object release(self, Slab slab)
    cpdef object charge(self, Py_ssize_t size)
    cpdef object refund(self, Py_ssize_t size)
    @cython.locals(spares=list, spare=Slab, left=Py_ssize_t)
    cpdef bint merge_spares(self, Py_ssize_t limit) except -1
    @cython.locals(larger=cython.int)
    cdef int _order_with_free(self, int order) except -2
    @cython.locals(spares=list, spare=Slab, larger=cython.int, first=Py_ssize_t, rest=Py_ssize_t, size=Py_ssize_t, slab=Slab)
    cpdef Slab _take_units(self, Py_ssize_t units)
    @cython.locals(end=Py_ssize_t, order=cython.int)
    cdef object _free_units(self, Py_ssize_t first, Py_ssize_t units)
    @cython.locals(last=cython.int, neighbour=Py_ssize_t)
    cdef object _merge(self, Py_ssize_t first, int order)
