cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.interceptors cimport InterceptorChain
from aioproducer.record cimport RecordMetadata, new_record_metadata

cdef double _REPORT_SLICE
cdef Py_ssize_t _RECORDS_PER_CHUNK, _MAX_BACKLOG
cdef tuple _NO_HEADERS


cdef class OutcomeReporter:
    cdef object _loop
    cdef InterceptorChain _interceptors
    cdef object _waiting
    cdef ProducerBatch _batch
    cdef Py_ssize_t _next
    cdef Py_ssize_t _added
    cdef Py_ssize_t _reported
    cdef bint _is_scheduled
    cdef object _context

    cdef object _schedule(self)
    @cython.locals(batch=ProducerBatch, index=Py_ssize_t, headers=tuple)
    cdef bint _report_next(self) except -1
    cdef object _report_waiting(self, object pending)
