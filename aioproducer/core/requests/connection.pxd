cimport cython

from aioproducer.protocol.frames cimport encode_request
from aioproducer._common.views cimport is_of_bytes
from aioproducer.wire.record_batch cimport read_integer

cdef object _READY


cdef class InFlight:
    cdef readonly object correlation_id
    cdef readonly object api_key
    cdef readonly object version
    cdef readonly object context
    cdef readonly double sent_at
    cdef readonly double deadline
    cdef readonly object response_class
    cdef readonly object read_response


cdef class Completed:
    cdef readonly object context
    cdef readonly object response
    cdef readonly object api_key
    cdef readonly object version
    cdef readonly object correlation_id
    cdef readonly double latency
    cdef readonly double received_at
    cdef readonly Py_ssize_t size


@cython.locals(completed=Completed)
cdef Completed _completed(InFlight request, object response, double received_at, Py_ssize_t size)


cdef class Connection:
    cdef readonly object peer
    cdef readonly object state
    cdef readonly object error
    cdef readonly double throttled_until
    cdef readonly object versions
    cdef readonly bint has_served
    cdef object _client_id
    cdef object _expected
    cdef object _authenticator
    cdef bint _asks_for_sasl
    cdef object _exchange
    cdef double _session_end
    cdef double _own_sent_at
    cdef Py_ssize_t _max_in_flight
    cdef double _request_timeout
    cdef Py_ssize_t _max_frame_bytes
    cdef bint _uses_tls
    cdef object _next_correlation_id
    cdef long long _last_answered
    cdef list _in_flight
    cdef dict _negotiated
    cdef bint _answered
    cdef list _output
    cdef bytearray _frame_start
    cdef bytearray _frame
    cdef Py_ssize_t _frame_size
    cdef Py_ssize_t _frame_end

    cpdef bint can_send(self, double now) except -1
    @cython.locals(asked=cython.longlong)
    cpdef object negotiate(self, long long api_key, long long lowest=*, long long highest=*)
    cpdef list send(
        self,
        object request,
        double now,
        object context=*,
        object timeout=*,
        object version=*,
        bint expect_response=*,
        object read_response=*,
    )
    @cython.locals(sent=InFlight)
    cdef list _send(
        self,
        object request,
        object version,
        double now,
        object context,
        object timeout,
        bint expect_response,
        object read_response=*,
    )
    @cython.locals(
        end=Py_ssize_t,
        position=Py_ssize_t,
        size=Py_ssize_t,
        start=Py_ssize_t,
        address="const unsigned char *",
    )
    cpdef list receive_data(self, object data, double now)
    cdef Py_ssize_t _receive_part(self, object view, Py_ssize_t position, double now, list completed) except -1
    @cython.locals(request=InFlight, correlation_id=cython.longlong)
    cdef object _receive_frame(self, object frame, double now, list completed)


@cython.locals(request=InFlight)
cdef object _decode(InFlight request, object frame)
