cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.batching.buffer_pool cimport BufferPool
from aioproducer.core.batching.partition_queue cimport PartitionQueue
from aioproducer.core.batching.producer_state cimport ProducerState
from aioproducer.core.batching.ready cimport BatchFinisher, ReadyPartitions
from aioproducer.core.waiting.waiters cimport Watches


cdef class BatchList:
    cdef readonly ProducerBatch oldest
    cdef readonly ProducerBatch newest
    cdef readonly Py_ssize_t count

    @cython.locals(newest=ProducerBatch)
    cpdef object add(self, ProducerBatch batch)
    @cython.locals(older=ProducerBatch, newer=ProducerBatch)
    cpdef object discard(self, ProducerBatch batch)


cdef class IncompleteBatches(BatchFinisher):
    cdef readonly object loop
    cdef readonly BufferPool pool
    cdef readonly ProducerState producer_state
    cdef readonly object settings
    cdef readonly object wake
    cdef readonly object random
    cdef readonly ReadyPartitions ready
    cdef readonly BatchList incomplete
    cdef public dict to_compress
    cdef public Py_ssize_t flushing
    cdef public bint closing
    cdef public object lines
    cdef public object _memory_line
    cdef public object _waiting
    cdef Py_ssize_t _batch_number
    cdef Py_ssize_t _open_batches
    cdef readonly object _ratios
    cdef Watches _watches
    cdef readonly object _drains

    cpdef object _begin_compression(self, ProducerBatch batch)
    cpdef object _set_compressed(self, ProducerBatch batch, bytes data)
    cpdef object request_ended(self, ProducerBatch batch)
    @cython.locals(queue=PartitionQueue)
    cpdef object completed(self, ProducerBatch batch, double now)
    cpdef object release(self, ProducerBatch batch)
    @cython.locals(part=ProducerBatch, parent=ProducerBatch)
    cdef object _forget(self, ProducerBatch batch)
    cpdef bint has_room(self) except -1
    cpdef bint _lines_have_room(self) except -1
    cpdef bint _has_ample_memory(self) except -1
