cimport cython

from aioproducer.core.requests.connection cimport Completed, Connection
from aioproducer.core.requests.slots cimport RequestSlots
from aioproducer.metrics cimport ConnectionMetrics, NodeMetrics
from aioproducer.protocol.frames cimport frame_size

cdef object _READY
cdef double _NEVER
cdef long long _TRANSITIONS
cdef int _CONNECTED, _DRAINING


cdef class RequestContext:
    cpdef object reading(self)
    cpdef object released(self)
    cpdef object answered(self, NodeConnection node, Completed completed)
    cpdef object failed(self, NodeConnection node, object error)


cdef RequestContext _OWN_REQUEST


cdef class NodeOwner:
    cdef public dict reconnect_histories

    cpdef object node_ready(self, NodeConnection node)
    cpdef object node_changed(self, NodeConnection node, double now)
    cpdef object authentication_failed(self, NodeConnection node, object error, double now)
    cpdef object login_failed(self, NodeConnection node)
    cpdef object expected_cluster_id(self)


cdef class NodeConnection:
    cdef readonly object node
    cdef readonly int id
    cdef readonly double last_attempt
    cdef readonly object last_error
    cdef readonly double login_began
    cdef readonly RequestSlots slots
    cdef readonly object task
    cdef object _loop
    cdef NodeOwner _owner
    cdef object _settings
    cdef object _log
    cdef double _request_timeout
    cdef bint _uses_tls
    cdef object _login
    cdef object _random
    cdef object _session
    cdef bint _asks_for_sasl
    cdef ConnectionMetrics _metrics
    cdef readonly NodeMetrics sensors
    cdef object _hooks
    cdef tuple _on_request_written
    cdef tuple _on_response_read
    cdef tuple _on_throttle
    cdef object _attempts
    cdef object _dialer
    cdef Connection _connection
    cdef object _transport
    cdef double _connected_at
    cdef double _last_used
    cdef list _unwritten
    cdef dict _write_deadlines
    cdef double _write_deadline
    cdef bint _awaits_write
    cdef list _overdue
    cdef readonly int state
    cdef object _timer
    cdef double _timer_due
    cdef object _connection_requested
    cdef object _ended
    cdef object _moved
    cdef bint _was_ready
    cdef object _logged

    cpdef object set_state(self, int state)
    cpdef bint can_send(self, double now) except -1
    cdef bint _is_writable(self) except -1
    cpdef object negotiate(self, long long api_key, long long highest=*, long long lowest=*)
    @cython.locals(deadline=double)
    cpdef bint send(
        self,
        object request,
        RequestContext context,
        double now,
        object version=*,
        bint expect_response=*,
        object timeout=*,
        object read_response=*,
    ) except -1
    @cython.locals(deadline=double)
    cdef bint _write(self, object transport, list buffers, RequestContext context, bint expect_response, double now) except -1
    cdef object _count_written(self, Py_ssize_t size, double now)
    @cython.locals(was_ready=cython.bint, completed=list, each=Completed)
    cpdef object data_received(self, object data)
    @cython.locals(context=RequestContext)
    cdef object _answered(self, Completed completed, double now)
    @cython.locals(changed=cython.bint)
    cpdef object write_completed(self, Py_ssize_t count)
    @cython.locals(context=RequestContext, ended=cython.bint)
    cdef bint _release_unwritten(self, Py_ssize_t count, object error) except -1
