cimport cython

from aioproducer._common.views cimport part_of
from aioproducer.core.fetching.columns cimport RecordColumns
from aioproducer.core.fetching.memory cimport FetchBuffer, FetchedResponse
from aioproducer.core.fetching.partition cimport AssignedPartition, position_at, position_behind_record
from aioproducer.core.fetching.records cimport BatchReader
from aioproducer.wire.record_batch cimport RecordBatch


@cython.final
cdef class FetchedBatches:
    cdef readonly AssignedPartition partition
    cdef readonly Py_ssize_t left
    cdef readonly object first
    cdef readonly bint is_dropped
    cdef readonly RecordBatch batch
    cdef readonly BatchReader reader
    cdef readonly object raw
    cdef bint _check_crcs
    cdef object _batches
    cdef object _aborted
    cdef FetchedResponse _response
    cdef FetchBuffer _buffer
    cdef RecordBatch _last_opened
    cdef Py_ssize_t _body_size

    cpdef object drop(self)
    cdef object _close_batch(self)
    @cython.locals(batch=RecordBatch, is_dropped=cython.bint)
    cpdef RecordBatch open_batch(self)
    @cython.locals(batch=RecordBatch)
    cpdef bint open_body(self) except -1
    cpdef object set_body(self, object body)
    @cython.locals(reader=BatchReader, place=Py_ssize_t, records=list)
    cdef list _decode(self, Py_ssize_t limit, Py_ssize_t most_bytes)
    cpdef object read(self, Py_ssize_t limit, Py_ssize_t most_bytes=*)
    @cython.locals(records=list)
    cpdef Py_ssize_t read_ready(self, Py_ssize_t limit, Py_ssize_t most_bytes=*) except -1
    @cython.locals(reader=BatchReader, partition=AssignedPartition, rows=Py_ssize_t)
    cpdef Py_ssize_t read_columns(self, RecordColumns columns, Py_ssize_t limit, Py_ssize_t most_bytes) except -1
    cpdef bint is_batch_read(self) except -1
    cpdef object pass_record(self)
    cdef object _pass(self, object record)


cpdef object position_behind(RecordBatch batch)
