cimport cython


cdef class _Sample:
    cdef public double start
    cdef public double last
    cdef public Py_ssize_t events
    cdef public double sum
    cdef public double maximum


cdef class Sensor:
    cdef readonly double total
    cdef readonly Py_ssize_t total_events
    cdef Py_ssize_t _windows
    cdef double _sample_window
    cdef tuple _samples
    cdef _Sample _current
    cdef double _window_end

    @cython.locals(sample=_Sample)
    cpdef object record(self, double value, double now)


cdef class Totals:
    cdef readonly Py_ssize_t batches
    cdef readonly Py_ssize_t records
    cdef readonly Py_ssize_t acked_batches
    cdef readonly Py_ssize_t acked_records
    cdef readonly double latency_sum_ms
    cdef public double latency_max_ms


cdef class TopicMetrics:
    cdef readonly Sensor records
    cdef readonly Sensor bytes
    cdef readonly Sensor compression
    cdef readonly Sensor retries
    cdef readonly Sensor errors


cdef class NodeMetrics:
    cdef readonly Sensor request
    cdef readonly Sensor outgoing_bytes
    cdef readonly Sensor response
    cdef readonly Sensor incoming_bytes
    cdef readonly Sensor latency


cdef class ConnectionMetrics:
    cdef readonly Py_ssize_t _num_samples
    cdef readonly double _sample_window
    cdef dict _nodes
    cdef dict _node_users
    cdef readonly Sensor connection_creation
    cdef readonly Sensor connection_close
    cdef readonly Sensor authentication_success
    cdef readonly Sensor authentication_failure
    cdef readonly Sensor reauthentication_success
    cdef readonly Sensor reauthentication_failure
    cdef readonly Sensor reauthentication_latency
    cdef readonly Sensor network_io
    cdef readonly Sensor outgoing_bytes
    cdef readonly Sensor incoming_bytes
    cdef readonly Sensor request
    cdef readonly Sensor response
    cdef readonly Sensor bytes_copied

    cpdef NodeMetrics node(self, object node_id)
    cpdef object request_sent(self, NodeMetrics node, Py_ssize_t size, double now)
    cpdef object response_received(self, NodeMetrics node, Py_ssize_t size, double now)
    cpdef object bytes_written(self, NodeMetrics node, Py_ssize_t size, double now)
    cpdef object bytes_read(self, NodeMetrics node, Py_ssize_t size, double now)


cdef class ProducerMetrics(ConnectionMetrics):
    cdef dict _gauges
    cdef dict _topics
    cdef readonly Totals totals
    cdef readonly Sensor records_per_request
    cdef readonly Sensor record_retry
    cdef readonly Sensor record_error
    cdef readonly Sensor record_size
    cdef readonly Sensor queue_time
    cdef readonly Sensor batch_size
    cdef readonly Sensor batch_split
    cdef readonly Sensor compression
    cdef readonly Sensor request_latency
    cdef readonly Sensor throttle
    cdef readonly Sensor buffer_exhausted
    cdef readonly Sensor buffer_wait
    cdef readonly Sensor flush
    cdef readonly Sensor txn_init
    cdef readonly Sensor txn_begin
    cdef readonly Sensor txn_send_offsets
    cdef readonly Sensor txn_commit
    cdef readonly Sensor txn_abort

    cpdef TopicMetrics topic(self, object name)
    @cython.locals(of_topic=TopicMetrics)
    cpdef object batch_sent(
        self,
        object topic,
        Py_ssize_t records,
        Py_ssize_t size,
        double compression_ratio,
        double queue_time_ms,
        Py_ssize_t max_record_size,
        Py_ssize_t attempt,
        double now,
    )
    @cython.locals(totals=Totals)
    cpdef object batch_acked(self, Py_ssize_t records, double latency_ms)
    cpdef object request_filled(self, Py_ssize_t records, double now)
    cpdef object produce_response(self, NodeMetrics node, double latency_ms, double throttle_time_ms, double now)
