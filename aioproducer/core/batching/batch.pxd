cimport cython

from aioproducer.core.batching.buffer_pool cimport BufferPool, Slab
from aioproducer.core.outcomes.delivery cimport DeliveryGroup
from aioproducer.core.batching.partition_queue cimport PartitionQueue
from aioproducer.record cimport new_record_metadata
from aioproducer.wire.record cimport plain_headers_size, write_headers, write_plain_record, write_run
from aioproducer.wire.record_batch cimport pack_header, write_header

cdef int _DUE, _CLOSED, _SUCCEEDED, _FAILED, _SPLIT, _TRANSACTIONAL
cdef long long _TRANSITIONS
cdef Py_ssize_t _HEADER_SIZE, _LARGEST_COPIED
cdef tuple _NO_HEADERS


cdef class ProducerBatch(DeliveryGroup):
    cdef public PartitionQueue queue
    cdef public object topic_partition
    cdef public Py_ssize_t number
    cdef public tuple order
    cdef public double created_at
    cdef public int attempts
    cdef public int sent_to
    cdef public object last_error
    cdef public bint on_wire
    cdef public bint has_unknown_attempt
    cdef public Py_ssize_t size_limit
    cdef public list slabs
    cdef unsigned char* address
    cdef public Py_ssize_t position
    cdef public Py_ssize_t room_end
    cdef public Py_ssize_t used_before
    cdef public Py_ssize_t record_count
    cdef public Py_ssize_t max_record_size
    cdef public long long base_timestamp
    cdef public long long max_timestamp
    cdef public long long last_timestamp
    cdef public Py_ssize_t column_start
    cdef public long long first_timestamp
    cdef public list timestamps_from
    cdef public list timestamp_values
    cdef public Py_ssize_t run_start
    cdef public Py_ssize_t run_stop
    cdef public long long run_timestamp
    cdef public list body
    cdef public Py_ssize_t body_size
    cdef public int codec_id
    cdef public Py_ssize_t charged_size
    cdef public object header
    cdef public int readers
    cdef public long long producer_id
    cdef public int producer_epoch
    cdef public int base_sequence
    cdef public int state
    cdef public long long base_offset
    cdef public long long log_append_time
    cdef public bint acknowledged
    cdef public object stored_error
    cdef public object record_errors
    cdef public Py_ssize_t unobserved
    cdef public ProducerBatch older
    cdef public ProducerBatch newer
    cdef public ProducerBatch parent
    cdef public list children
    cdef public Py_ssize_t undone_children
    cdef public object on_outcome
    cdef public dict kept_headers

    cpdef object begin(
        self,
        object loop,
        PartitionQueue queue,
        object topic_partition,
        Py_ssize_t number,
        double created_at,
        Py_ssize_t size_limit,
    )
    @cython.locals(
        key_address=cython.p_uchar,
        value_address=cython.p_uchar,
        key_size=Py_ssize_t,
        value_size=Py_ssize_t,
        index=Py_ssize_t,
        position=Py_ssize_t,
        size=Py_ssize_t,
        headers_size=Py_ssize_t,
    )
    cpdef Py_ssize_t append(self, object key, object value, object headers, long long timestamp_ms) except -1
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t append_at(
        self,
        const unsigned char* key,
        Py_ssize_t key_size,
        const unsigned char* value,
        Py_ssize_t value_size,
        Py_ssize_t headers_size,
        long long timestamp_ms,
    ) except -1
    @cython.locals(end=Py_ssize_t)
    cdef Py_ssize_t append_run(
        self, long long timestamp_ms, list values, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t room
    ) except -1
    @cython.locals(index=Py_ssize_t)
    cdef Py_ssize_t _appended(self, long long timestamp_ms, Py_ssize_t size) except -1
    cdef object _begin_timestamp(self, Py_ssize_t index, long long timestamp_ms)
    @cython.locals(slab=Slab)
    cpdef Py_ssize_t used_size(self) except -1
    cpdef bint has_room_for(self, Py_ssize_t record_size) except -1
    cpdef Py_ssize_t next_slab_size(self, Py_ssize_t record_size) except -1
    cpdef object add_slab(self, Slab slab)
    @cython.locals(slab=Slab)
    cpdef object limit_room(self)
    @cython.locals(slab=Slab, used=Py_ssize_t, begin=cython.p_char)
    cdef object _close_slab(self)
    cpdef object close(self)
    cpdef object set_state(self, int state)
    cpdef object end_lingering(self)
    cpdef bint is_full(self) except -1
    cpdef Py_ssize_t size(self) except -1
    cpdef Py_ssize_t uncompressed_size(self) except -1
    cpdef bint is_finished(self) except -1
    cpdef bint succeed(self, long long base_offset, long long log_append_time, bint acknowledged=*) except -1
    @cython.locals(attributes=cython.int)
    cpdef list buffers(self)
    cpdef object set_sequence(self, long long producer_id, int producer_epoch, int base_sequence)
    cpdef object release_memory(self, BufferPool pool)
    cpdef object abandon(self, BufferPool pool)
    @cython.locals(slab=Slab, slabs=list, charged=Py_ssize_t)
    cdef object _release_memory(self, BufferPool pool)
    cpdef bint is_done(self, Py_ssize_t index) except -1
    cpdef object error(self, Py_ssize_t index)
    cpdef object where(self)
    cpdef object add_waiter(self, Py_ssize_t index, object callback, object argument, object context=*)
    cpdef list pop_waiters(self, Py_ssize_t index, object only=*)
    @cython.locals(run=Py_ssize_t, starts=list, values=list)
    cdef object _find_run(self, Py_ssize_t index)
    @cython.locals(offset=cython.longlong, timestamp_ms=cython.longlong)
    cpdef object metadata(self, Py_ssize_t index)


@cython.locals(batch=ProducerBatch)
cpdef ProducerBatch new_batch(
    object loop, PartitionQueue queue, object topic_partition, Py_ssize_t number, double created_at, Py_ssize_t size_limit
)
