cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.outcomes.delivery cimport Delivery


cdef class BatchRuns:
    cdef readonly Py_ssize_t acked
    cdef readonly dict errors
    cdef readonly bint may_have_been_written
    cdef readonly dict offsets
    cdef dict _runs

    @cython.locals(runs=list)
    cpdef object add(self, ProducerBatch batch, Py_ssize_t start, Py_ssize_t stop)
    cpdef bint add_delivery(self, Delivery delivery) except -1
    @cython.locals(batch=ProducerBatch, start=Py_ssize_t, stop=Py_ssize_t, count=Py_ssize_t)
    cpdef Py_ssize_t add_columns(self, list touched) except -1
    @cython.locals(batch=ProducerBatch, closed=list, allowed=Py_ssize_t)
    cpdef ProducerBatch batch_to_await(self, Py_ssize_t limit)
    @cython.locals(batch=ProducerBatch, finished=list)
    cpdef object count_first(self, Py_ssize_t limit)
    @cython.locals(batch=ProducerBatch)
    cpdef object count_finished(self)
    @cython.locals(runs=list, plain=bint, index=Py_ssize_t)
    cpdef object count(self, ProducerBatch batch)


cdef bint _is_finished(ProducerBatch batch) except -1
