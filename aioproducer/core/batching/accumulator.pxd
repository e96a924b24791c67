cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch, new_batch
from aioproducer.core.batching.batch_memory cimport BatchMemory
from aioproducer.core.batching.buffer_pool cimport Slab
from aioproducer.core.outcomes.delivery cimport Delivery, new_delivery
from aioproducer.core.batching.incomplete cimport IncompleteBatches
from aioproducer.core.batching.partition_queue cimport PartitionQueue, TopicQueues
from aioproducer.core.batching.topics cimport Topics
from aioproducer.partitioner cimport StickyPartitioner
from aioproducer.wire.murmur2 cimport partition_for_key
from aioproducer.wire.record cimport record_size_upper_bound

cdef Py_ssize_t _INLINE_COMPRESSION_SIZE


cdef Py_ssize_t _size_of(object data) except? -1


cdef class RecordAccumulator(IncompleteBatches):
    cdef readonly object choose_partition
    cdef readonly Topics topics
    cdef object _last_name
    cdef TopicQueues _last_topic
    cdef bint _appending
    cdef list _sent_meanwhile
    cdef readonly list refused
    cdef bint _ignore_keys
    cdef Py_ssize_t _max_request_size
    cdef bint _one_in_flight
    cdef double _delivery_timeout
    cdef Py_ssize_t _size_limit
    cdef bint _compresses
    cdef BatchMemory _memory
    cdef Py_ssize_t _inline_size
    cdef Py_ssize_t _largest_plain

    @cython.locals(topic=TopicQueues, partitions=list, place=Py_ssize_t, queue=PartitionQueue, batch=ProducerBatch, index=Py_ssize_t)
    cpdef object append(
        self, object topic_name, object partition, object key, object value, object headers, long long timestamp_ms
    )
    @cython.locals(topic=TopicQueues)
    cpdef object enqueue(
        self,
        object topic_name,
        object partition,
        object key,
        object value,
        object headers,
        long long timestamp_ms,
        double now,
    )
    cpdef bint begin_append(self) except -1
    cpdef object end_append(self)
    cdef object _put_in_line(self, object pending, Py_ssize_t size)
    cdef object _advance(self, TopicQueues topic, double now)
    @cython.locals(
        sticky=StickyPartitioner, queue=PartitionQueue, batch=ProducerBatch, index=Py_ssize_t, size=Py_ssize_t
    )
    cdef object _place(
        self,
        TopicQueues topic,
        object partition,
        object key,
        object value,
        object headers,
        long long timestamp_ms,
        double now,
        bint first,
    )
    @cython.locals(fullness=double)
    cpdef object _close(self, PartitionQueue queue, ProducerBatch batch, double now, bint full)
    cpdef bint admit(self, double now, Py_ssize_t limit) except -1
    cdef bint _admit(self, double now, Py_ssize_t limit) except -1
    cpdef list take_refused(self)
    cpdef bint finish_batch(self, PartitionQueue queue, ProducerBatch batch, double now) except -1
    @cython.locals(topic=TopicQueues)
    cpdef TopicQueues plain_topic(self, object name, object partition)
    @cython.locals(topic=TopicQueues)
    cpdef object chosen_partition(self, object name, object key, object value)
    @cython.locals(size=Py_ssize_t)
    cpdef object place_plain(
        self,
        TopicQueues topic,
        object partition,
        object key,
        object value,
        object headers,
        long long timestamp_ms,
        double now,
    )
    @cython.locals(deadline=double, oldest=ProducerBatch)
    cpdef double next_deadline(self) except? -1
    cpdef list drain(self, object node_id, double now)
    cdef bint _grow(self, ProducerBatch batch, Py_ssize_t record_size) except -1
    @cython.locals(slab=Slab)
    cdef bint _extend(self, ProducerBatch batch, Py_ssize_t record_size) except -1
    @cython.locals(
        slab=Slab, limit=Py_ssize_t, estimate=Py_ssize_t, under_way=Py_ssize_t, batch=ProducerBatch
    )
    cdef ProducerBatch _open(
        self, TopicQueues topic, PartitionQueue queue, Py_ssize_t record_size, long long timestamp_ms, double now
    )
    @cython.locals(queue=PartitionQueue)
    cdef object _note_new_batch(self, PartitionQueue queue, ProducerBatch batch, double now)
