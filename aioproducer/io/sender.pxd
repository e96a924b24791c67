cimport cython

from aioproducer.core.batching.accumulator cimport RecordAccumulator
from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.batching.completion cimport Completion
from aioproducer.core.requests.connection cimport Completed
from aioproducer.core.outcomes.delivery cimport resume
from aioproducer.core.metadata.cluster_metadata cimport ClusterMetadata
from aioproducer.core.batching.partition_queue cimport PartitionQueue
from aioproducer.core.batching.producer_state cimport ProducerState
from aioproducer.io.cluster cimport Cluster
from aioproducer.io.node cimport NodeConnection
from aioproducer.io.produce cimport ProduceInFlight, ProduceOwner, choose_version, produce_in_flight, produce_request
from aioproducer.metrics cimport ProducerMetrics
from aioproducer.protocol.produce_frames cimport PlainProduceRequest


cdef class SenderPasses:
    cdef object _loop
    cdef object _run_pass
    cdef object _context
    cdef bint _held
    cdef bint _requested
    cdef public object next

    cpdef object wake(self)
    cpdef object hold(self)
    cpdef bint release(self) except -1


cdef class Sender(ProduceOwner):
    cdef readonly Cluster cluster
    cdef object _loop
    cdef object _settings
    cdef object _log
    cdef RecordAccumulator _accumulator
    cdef ClusterMetadata _metadata
    cdef ProducerState _producer_state
    cdef Completion _completion
    cdef ProducerMetrics _metrics
    cdef int _acks
    cdef object _request_timeout_ms
    cdef object _hooks
    cdef tuple _on_batch_sent
    cdef tuple _on_batch_acked
    cdef object _failures
    cdef object _transactions
    cdef object _outcomes
    cdef object _failed_records
    cdef object _unreported
    cdef readonly object _compressor
    cdef list _rejections
    cdef readonly SenderPasses _sender_passes
    cdef readonly object _timer
    cdef readonly double _timer_due
    cdef double _expiry_postponed_at
    cdef list _resumed
    cdef Py_ssize_t _resumable
    cdef Py_ssize_t _resumed_at_once
    cdef bint _awaiters_scheduled
    cdef bint _sends_at_once

    @cython.locals(deadline=double)
    cdef object _run_pass_at(self, double now)
    @cython.locals(is_due=cython.bint, served=cython.bint, more_fail=cython.bint, drops_unsent=cython.bint, deadline=double, ready=dict, node=NodeConnection)
    cpdef double _run_once(self, double now) except? -1
    @cython.locals(sent=Py_ssize_t, batches=list, ready=dict, cluster=Cluster, internal=cython.bint, data_waits=cython.bint)
    cpdef object _drain(self, NodeConnection node, double now)
    cdef object _wake_after_awaiters(self)
    cpdef object node_ready(self, NodeConnection node)
    cpdef object node_changed(self, NodeConnection node, double now)
    cpdef object authentication_failed(self, NodeConnection node, object error, double now)
    cpdef object login_failed(self, NodeConnection node)
    cpdef object expected_cluster_id(self)
    @cython.locals(resumed=list, sender_passes=SenderPasses, requested=cython.bint)
    cpdef bint _resume_awaiters(self, NodeConnection node, double now) except -1
    @cython.locals(batch=ProducerBatch, request=PlainProduceRequest, context=ProduceInFlight, written=cython.bint)
    cdef object _send_batches(self, NodeConnection node, list batches, double now)
    @cython.locals(
        batch=ProducerBatch,
        queue=PartitionQueue,
        records=Py_ssize_t,
        record_count=Py_ssize_t,
        size=Py_ssize_t,
        uncompressed_size=Py_ssize_t,
    )
    cdef object _record_sent(self, list batches, double now)
    cpdef object release(self, ProducerBatch batch)
    cpdef object request_answered(self, NodeConnection node, Completed completed, object throttle_time_ms)
    cpdef object batch_written(self, ProducerBatch batch)
    @cython.locals(awaiting=list)
    cpdef object batch_acknowledged(
        self, ProducerBatch batch, long long base_offset, long long log_append_time, double now
    )
    cpdef object batch_refused(self, ProducerBatch batch, object answer, list endpoints, double now)
    cpdef object batch_failed(self, ProducerBatch batch, object error)
    @cython.locals(latency_ms=double)
    cdef object _report_verdict(self, ProducerBatch batch, object verdict, double now)
