cimport cython
from cpython.object cimport PyObject

from aioproducer.core.fetching.turns cimport RecordTurns
from aioproducer.core.outcomes.delivery cimport set_send_slot


cdef extern from "Python.h":
    int PyIter_Send(object iterator, object value, PyObject **result) except -1


@cython.final
cdef class RecordIterator:
    cdef object _wait
    cdef public bint is_open
    cdef RecordTurns _records
    cdef object _membership
    cdef object _loop

    cpdef object take(self)


@cython.final
@cython.freelist(8)
cdef class NextRecord:
    cdef RecordIterator _iterator
    cdef object _waiting
    cdef bint _is_done

    cdef object _begin(self)


cdef int _send_next(NextRecord following, object value, PyObject **result) except -1
