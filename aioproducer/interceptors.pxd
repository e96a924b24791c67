cimport cython

from aioproducer.record cimport Record, normalise_in_place


cdef class InterceptorChain:
    cdef object _log
    cdef tuple _on_send
    cdef tuple _on_headers
    cdef tuple _on_acknowledgement
    cdef tuple _close
    cdef readonly bint wants_records
    cdef readonly bint wants_headers
    cdef readonly bint wants_acknowledgements

    cpdef Record on_send(self, Record record)
    cpdef object on_headers(self, object topic, list headers)
    @cython.locals(takes_headers=cython.bint)
    cpdef object on_acknowledgement(self, object metadata, object exception, object headers=*)
    cpdef object on_send_error(self, object topic, object partition, object exception, object headers)
