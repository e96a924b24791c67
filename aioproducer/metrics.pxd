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
    cdef list _samples
    cdef _Sample _current
    cdef double _window_end

    @cython.locals(sample=_Sample)
    cpdef object record(self, double value, double now)
    @cython.locals(sample=_Sample, total=double, largest=double)
    cpdef object record_all(self, object values, object times)


cdef class Metrics:
    cdef Py_ssize_t _num_samples
    cdef double _sample_window
    cdef dict _gauges
    cdef dict _topics
    cdef dict _nodes
    cdef readonly list _batches
    cdef readonly list _requests
    cdef readonly list _responses
    cdef readonly list _writes
    cdef readonly list _reads
    cdef readonly list _answers
    cdef readonly list _record_counts
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
    cdef readonly Sensor metadata_wait
    cdef readonly Sensor connection_creation
    cdef readonly Sensor connection_close
    cdef readonly Sensor authentication_success
    cdef readonly Sensor authentication_failure
    cdef readonly Sensor network_io
    cdef readonly Sensor outgoing_bytes
    cdef readonly Sensor incoming_bytes
    cdef readonly Sensor request
    cdef readonly Sensor response
    cdef readonly Sensor bytes_copied

    cpdef object batch_sent(
        self,
        object topic,
        object records,
        object size,
        object compression_ratio,
        object queue_time_ms,
        object max_record_size,
        object now,
    )
    cpdef object request_filled(self, object records, object now)
    cpdef object produce_response(self, object node_id, object latency_ms, object throttle_time_ms, object now)
    cpdef object request_sent(self, object node_id, object size, object now)
    cpdef object response_received(self, object node_id, object size, object now)
    cpdef object bytes_written(self, object node_id, object size, object now)
    cpdef object bytes_read(self, object node_id, object size, object now)
