cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch


cdef class IncompleteBatches:
    cdef readonly ProducerBatch oldest
    cdef readonly ProducerBatch newest
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t last_number

    cpdef Py_ssize_t next_number(self) except? -1
    @cython.locals(newest=ProducerBatch)
    cpdef object add(self, ProducerBatch batch)
    @cython.locals(older=ProducerBatch, newer=ProducerBatch)
    cpdef object discard(self, ProducerBatch batch)
    @cython.locals(part=ProducerBatch, parent=ProducerBatch)
    cpdef object finish(self, ProducerBatch batch)
