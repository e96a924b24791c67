cimport cython

from aioproducer.core.batching.accumulator cimport RecordAccumulator
from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.batching.producer_state cimport ProducerState


cdef class Completion:
    cdef RecordAccumulator _accumulator
    cdef ProducerState _producer_state
    cdef readonly object _retries
    cdef readonly bint _keep_failed

    cpdef object acked(self, ProducerBatch batch, long long base_offset, long long log_append_time, double now)
    cpdef object written(self, ProducerBatch batch, double now)
    cdef object _succeed(
        self, ProducerBatch batch, long long base_offset, long long log_append_time, double now, bint acknowledged
    )
