cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.batching.buffer_pool cimport BufferPool, Slab

cdef Py_ssize_t _MIN_AVAILABLE, _MAX_EXACT_SLAB


@cython.locals(up=Py_ssize_t)
cdef Py_ssize_t _near_power_of_two(Py_ssize_t size) except? -1


cdef class BatchMemory:
    cdef BufferPool _pool
    cdef Py_ssize_t _batch_size
    cdef Py_ssize_t _open_limit
    cdef bint _compresses

    @cython.locals(preferred=Py_ssize_t)
    cpdef Slab first(
        self,
        Py_ssize_t record_size,
        Py_ssize_t last_batch_size,
        Py_ssize_t size_limit,
        Py_ssize_t open_batches,
        Py_ssize_t in_progress,
    )
    cpdef Slab next(self, ProducerBatch batch, Py_ssize_t record_size, Py_ssize_t in_progress)
    cdef Slab _take(self, Py_ssize_t minimum, Py_ssize_t preferred, Py_ssize_t in_progress)
    @cython.locals(step=Py_ssize_t)
    cdef Py_ssize_t _slab_size(self, Py_ssize_t expected, Py_ssize_t limit) except -1
