cimport cython

from aioproducer.core.accumulator cimport RecordAccumulator
from aioproducer.core.columns cimport append_rows
from aioproducer.core.partition_queue cimport TopicQueues

cdef tuple _NO_HEADERS


cdef class RecordEntry:
    cdef public RecordAccumulator _accumulator
    cdef public unsigned long _owner_thread
    cdef public bint _plain
    cdef public bint _serializes
    cdef public object _serialize_key
    cdef public object _serialize_value
    cdef public bint _keys_are_bytes
    cdef public bint _values_are_bytes
    cdef public object _time
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
    @cython.locals(queues=TopicQueues)
    cdef object _take_at(
        self, object topic, object value, object key, object partition, long long milliseconds, object headers
    )
    @cython.locals(now=double)
    cpdef double _want(self, object topic, object partition) except? -1
    cpdef object _put(
        self, object topic, object partition, object key, object value, object headers, long long timestamp_ms
    )


cdef long long wall_ms() noexcept
