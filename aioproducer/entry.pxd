cimport cython

from aioproducer.core.accumulator cimport RecordAccumulator
from aioproducer.core.columns cimport append_rows
from aioproducer.core.partition_queue cimport TopicQueues

cdef extern from "Python.h":
    bint PyCFunction_CheckExact(object function)
    void *PyCFunction_GET_FUNCTION(object function)

cdef tuple _NO_HEADERS
cdef double _USE_NOTED_EVERY
cdef void *_system_time


cdef class RecordEntry:
    cdef public RecordAccumulator _accumulator
    cdef public unsigned long _owner_thread
    cdef public bint _plain
    cdef public bint _serializes
    cdef public object _serialize_key
    cdef public object _serialize_value
    cdef public bint _keys_are_bytes
    cdef public bint _values_are_bytes
    cdef public object _owner_loop
    cdef public object _want_topic
    cdef object __weakref__

    @cython.locals(milliseconds=cython.longlong)
    cdef object _take(
        self, object topic, object value, object key, object partition, object timestamp_ms, object headers
    )
    @cython.locals(milliseconds=cython.longlong)
    cpdef object _take_serialized(
        self, object topic, object value, object key, object partition, object timestamp_ms, list headers
    )
    cdef object _take_at(
        self, object topic, object value, object key, object partition, long long milliseconds, object headers
    )
    @cython.locals(accumulator=RecordAccumulator, queues=TopicQueues, now=double)
    cdef object _begin_batch(self, object topic, object partition, object key, object value, long long timestamp_ms)
    @cython.locals(now=double)
    cpdef double _want(self, object topic, object partition) except? -1
    cdef double _now(self) except? -1
    cpdef object _put(
        self, object topic, object partition, object key, object value, object headers, long long timestamp_ms
    )


cdef long long wall_ms() except? -1
