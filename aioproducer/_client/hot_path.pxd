cimport cython

from aioproducer.core.batching.accumulator cimport RecordAccumulator
from aioproducer.core.batching.partition_queue cimport TopicQueues
from aioproducer.interceptors cimport InterceptorChain
from aioproducer.record cimport Record, header_list, new_record

cdef extern from "Python.h":
    bint PyCFunction_CheckExact(object function)
    void *PyCFunction_GET_FUNCTION(object function)

cdef tuple _NO_HEADERS
cdef double _USE_RECORDED_EVERY
cdef void *_system_time
cdef void *_system_counter
cdef double _LONGEST_TURN


cdef class FieldSerializer:
    cdef object _function
    cdef object _resolved
    cdef bint _takes_value_alone

    cdef object serialize(self, object topic, object value, list headers)


cdef class RecordSender:
    cdef public RecordAccumulator _accumulator
    cdef public object _slow_path
    cdef public unsigned long _owner_thread
    cdef public unsigned long _sending_thread
    cdef public object _owner_loop
    cdef public object _life
    cdef public bint _plain
    cdef public InterceptorChain _interceptors
    cdef public bint _intercepts
    cdef public bint _serializes
    cdef public FieldSerializer _key_serializer
    cdef public FieldSerializer _value_serializer
    cdef public bint _key_is_bytes
    cdef public bint _value_is_bytes
    cdef public object _record_topic_use
    cdef public double _turn_began
    cdef object __weakref__

    @cython.locals(milliseconds=cython.longlong)
    cdef object _send_plain(
        self, object topic, object partition, object key, object value, object headers, object timestamp_ms
    )
    @cython.locals(interceptors=InterceptorChain, record=Record)
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


cdef class TransactionSender:
    cdef public RecordSender _sender


cdef long long wall_ms() except? -1
cpdef double seconds() except? -1
