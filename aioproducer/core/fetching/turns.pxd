cimport cython

from aioproducer.core.fetching.buffer cimport FetchedBatches
from aioproducer.core.fetching.columns cimport RecordColumns
from aioproducer.core.fetching.memory cimport FetchBuffer
from aioproducer.core.fetching.partition cimport AssignedPartition
from aioproducer.core.fetching.records cimport BatchReader


@cython.final
cdef class RecordTurns:
    cdef FetchBuffer _buffer
    cdef dict _turns
    cdef readonly dict ready
    cdef dict _outstanding
    cdef AssignedPartition _only
    cdef readonly Py_ssize_t returned

    cpdef object offer(self, AssignedPartition partition)
    cpdef object hold_back(self, AssignedPartition partition)
    @cython.locals(partition=AssignedPartition)
    cpdef FetchedBatches next_batches(self)
    @cython.locals(partition=AssignedPartition)
    cpdef object record_ready(self, FetchedBatches batches, object record)
    @cython.locals(batches=FetchedBatches, reader=BatchReader, place=Py_ssize_t, count=Py_ssize_t, partition=AssignedPartition)
    cpdef bint decode(self, Py_ssize_t limit, Py_ssize_t most_bytes) except -1
    @cython.locals(batches=FetchedBatches)
    cpdef bint decode_raw(self, Py_ssize_t limit, Py_ssize_t most_bytes) except -1
    @cython.locals(batches=FetchedBatches, partition=AssignedPartition, before=Py_ssize_t)
    cpdef bint decode_columns(self, RecordColumns columns, Py_ssize_t limit, Py_ssize_t most_bytes) except -1
    @cython.locals(partition=AssignedPartition, was_full=cython.bint)
    cdef bint _open(self, FetchedBatches batches) except -1
    cpdef object end_turn(self, FetchedBatches batches)
    @cython.locals(partition=AssignedPartition)
    cpdef object finish(self, FetchedBatches batches)
    cpdef dict take(self, Py_ssize_t limit)
    cpdef list take_run(self, Py_ssize_t limit)
    @cython.locals(partition=AssignedPartition)
    cpdef object take_one(self)
    @cython.locals(only=AssignedPartition)
    cpdef object next_one(self)
    cpdef object mark_processed(self)
