cimport cython

from aioproducer.core.batching.batch cimport ProducerBatch, new_batch
from aioproducer.core.batching.batch_memory cimport BatchMemory
from aioproducer.core.batching.buffer_pool cimport BufferPool, Slab
from aioproducer.core.outcomes.delivery cimport Delivery, new_delivery
from aioproducer.core.waiting.waiters cimport FlushWaiters
from aioproducer.core.batching.drain_waiters cimport DrainWaiters
from aioproducer.core.batching.incomplete_batches cimport IncompleteBatches
from aioproducer.core.batching.partition_queue cimport PartitionQueue, TopicQueues
from aioproducer.core.batching.producer_state cimport ProducerState
from aioproducer.core.batching.ready cimport BatchFinisher, ReadyPartitions
from aioproducer.core.batching.topics cimport Topics
from aioproducer.partitioner cimport StickyPartitioner
from aioproducer.wire.murmur2 cimport partition_for_key
from aioproducer.wire.record cimport record_size_upper_bound

cdef int _CLOSED, _SUCCEEDED


cdef Py_ssize_t _size_of(object data) except? -1


cdef class RecordAccumulator(BatchFinisher):
    cdef readonly object loop
    cdef readonly BufferPool pool
    cdef readonly ProducerState producer_state
    cdef readonly object settings
    cdef readonly object wake
    cdef readonly object random
    cdef readonly object choose_partition
    cdef readonly ReadyPartitions ready
    cdef readonly IncompleteBatches incomplete
    cdef Py_ssize_t _open_batches
    cdef readonly object compression
    cdef readonly object blocked_records
    cdef object _memory_waiters
    cdef object _pending_records
    cdef FlushWaiters _flush_waiters
    cdef readonly DrainWaiters drain_waiters
    cdef public Py_ssize_t on_wire
    cdef public Py_ssize_t flushing
    cdef public bint closing
    cdef readonly Topics topics
    cdef object _last_name
    cdef TopicQueues _last_topic
    cdef bint _appending
    cdef list _sent_meanwhile
    cdef readonly list refused
    cdef object _on_outcome
    cdef bint _ignore_keys
    cdef Py_ssize_t _max_request_size
    cdef bint _one_in_flight
    cdef double _delivery_timeout
    cdef Py_ssize_t _size_limit
    cdef BatchMemory _memory
    cdef Py_ssize_t _largest_plain

    @cython.locals(topic=TopicQueues, partitions=list, number=Py_ssize_t, queue=PartitionQueue, batch=ProducerBatch, index=Py_ssize_t)
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
    cdef object _enqueue_sent_meanwhile(self, object pending, Py_ssize_t size)
    cdef object _unblock(self, TopicQueues topic, double now)
    @cython.locals(
        sticky=StickyPartitioner, queue=PartitionQueue, batch=ProducerBatch, index=Py_ssize_t, size=Py_ssize_t
    )
    cdef object _append_to_queue(
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
    cpdef object _close_batch(self, PartitionQueue queue, ProducerBatch batch, double now, bint full)
    cpdef bint admit(self, double now, Py_ssize_t limit) except -1
    cdef bint _admit(self, double now, Py_ssize_t limit) except -1
    cpdef list take_refused(self)
    cpdef bint finish_batch(self, PartitionQueue queue, ProducerBatch batch, double now) except -1
    @cython.locals(topic=TopicQueues)
    cpdef TopicQueues plain_topic(self, object name, object partition)
    @cython.locals(topic=TopicQueues)
    cpdef object chosen_partition(self, object name, object key, object value)
    @cython.locals(size=Py_ssize_t)
    cpdef object append_to_new_batch(
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
    cdef bint _add_slab(self, ProducerBatch batch, Py_ssize_t record_size) except -1
    @cython.locals(
        slab=Slab, limit=Py_ssize_t, estimate=Py_ssize_t, in_progress=Py_ssize_t, batch=ProducerBatch
    )
    cdef ProducerBatch _open_batch(
        self, TopicQueues topic, PartitionQueue queue, Py_ssize_t record_size, long long timestamp_ms, double now
    )
    @cython.locals(queue=PartitionQueue)
    cdef object _queue_open_batch(self, PartitionQueue queue, ProducerBatch batch, double now)
    cpdef object request_ended(self, ProducerBatch batch)
    @cython.locals(queue=PartitionQueue)
    cpdef object completed(self, ProducerBatch batch, double now)
    cdef object _finish(self, ProducerBatch batch)
    cpdef object release(self, ProducerBatch batch)
