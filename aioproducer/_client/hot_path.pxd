cimport cython

from aioproducer.core.batching.accumulator cimport RecordAccumulator
from aioproducer.core.batching.partition_queue cimport TopicQueues

cdef extern from "Python.h":
    bint PyCFunction_CheckExact(object function)
    void *PyCFunction_GET_FUNCTION(object function)

cdef tuple _NO_HEADERS
cdef double _USE_RECORDED_EVERY
cdef void *_system_time


cdef class RecordSender:
    cdef public RecordAccumulator _accumulator
    cdef public object _slow_path
    cdef public unsigned long _owner_thread
    cdef public object _owner_loop
    cdef public object _life
    cdef public bint _plain
    cdef public bint _intercepts
    cdef public object _serialize_key
    cdef public object _serialize_value
    cdef public bint _key_is_bytes
    cdef public bint _value_is_bytes
    cdef public object _record_topic_use
    cdef object __weakref__

    @cython.locals(milliseconds=cython.longlong)
    cdef object _send_plain(
        self, object topic, object partition, object key, object value, object headers, object timestamp_ms
    )
    cdef object _send_intercepted(
        self, object topic, object partition, object key, object value, object headers, object timestamp_ms
    )
    @cython.locals(milliseconds=cython.longlong, is_serialized=cython.bint)
    cdef object _send_serialized(
        self, object topic, object partition, object key, object value, list headers, object timestamp_ms
    )
    @cython.locals(accumulator=RecordAccumulator)
    cdef object _append_or_enqueue(
        self, object topic, object partition, object key, object value, object headers, long long timestamp_ms
    )
    @cython.locals(accumulator=RecordAccumulator, queues=TopicQueues, now=double)
    cdef object _begin_batch(self, object topic, object partition, object key, object value, long long timestamp_ms)
    cdef double _now(self) except? -1


cdef long long wall_ms() except? -1
