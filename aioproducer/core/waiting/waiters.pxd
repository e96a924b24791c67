cimport cython
from cpython.object cimport PyObject

from aioproducer.core.outcomes.delivery cimport set_send_slot


cdef class WaiterQueue


cdef class FlushWaiters:
    cdef readonly WaiterQueue _batches
    cdef WaiterQueue _records
    cdef object _loop
    cdef object _first_batch
    cdef object _first_record
    cdef bint _continues

    @cython.locals(more=cython.bint)
    cpdef object check(self)


cdef class WaiterQueue:
    cdef readonly object waiting
    cdef Py_ssize_t _many

    cpdef object add(self, Py_ssize_t number, object future)
    @cython.locals(left=Py_ssize_t)
    cpdef bint resolve(self, Py_ssize_t oldest) except -1


cdef class NoWait:
    pass


cdef int _send_no_wait(NoWait wait, object value, PyObject **result) except -1
