cimport cython

from aioproducer.transport.rdma.answers cimport Answers
from aioproducer.transport.rdma.counters cimport Counters
from aioproducer.transport.rdma.gathering cimport Unsent
from aioproducer.transport.rdma.ring cimport PeerRing, ReceiveRing, SendQueue, decode_immediate, encode_immediate
from aioproducer.transport.rdma.work_requests cimport Completion, Write
from aioproducer._common.views cimport part_of

cdef int _OPEN, _FLUSHING, _LINGERING, _ACKNOWLEDGED, _FAILED, _STOPPED, _CLOSING, _RELEASED
cdef int _PEER_SENDING, _GOODBYE_RECEIVED, _GOODBYE_DELIVERED
cdef long _SUCCESS
cdef long _DATA
cdef long _CREDITS
cdef long _GOODBYE
cdef Py_ssize_t _COMPLETIONS_PER_POLL, _BYTES_PER_CALLBACK, _MANY_LENT


cdef class RdmaTransport:
    cdef object _devices
    cdef readonly object _shared
    cdef object _loop
    cdef readonly object _link
    cdef readonly object _queue_pair
    cdef readonly object _control
    cdef bint _control_ended
    cdef public object _handler
    cdef object _peer
    cdef Counters _counters
    cdef Py_ssize_t _max_pieces
    cdef object _linger_timeout
    cdef object _linger_timer
    cdef public unsigned long long _remote_address
    cdef readonly Write _write
    cdef PeerRing _peer_ring
    cdef ReceiveRing _receive_ring
    cdef object _received
    cdef SendQueue _queue
    cdef Answers _answers
    cdef Py_ssize_t _max_message
    cdef readonly int _state
    cdef int _peer_state
    cdef readonly Unsent _unsent
    cdef Py_ssize_t _goodbye_id
    cdef bint _protocol_violated
    cdef Py_ssize_t _receives_to_post
    cdef bint _reading_paused
    cdef bint _watching
    cdef bint _all_requested
    cdef Py_ssize_t _blocked_to
    cdef bint _progress_scheduled
    cdef object _failure
    cdef object __weakref__

    @cython.locals(queue=SendQueue, unsent=Unsent, fits_now=bint, size=Py_ssize_t)
    cpdef bint write(self, object buffers) except -1
    cdef object _advance(self, object event)
    cdef bint _may_post(self) except -1
    cdef bint _has_failed(self) except -1
    cdef bint _has_ended(self) except -1
    cdef Py_ssize_t _room(self) except -1
    @cython.locals(room=Py_ssize_t, size=Py_ssize_t)
    cdef object _send(self)
    @cython.locals(
        unsent=Unsent,
        queue=SendQueue,
        offset=Py_ssize_t,
        work_request_id=Py_ssize_t,
        signaled=bint,
        wanted=bint,
        counters=Counters,
    )
    cdef object _post_data(self, Py_ssize_t size)
    @cython.locals(data_freed=Py_ssize_t, controls_freed=Py_ssize_t, write=Write, counters=Counters)
    cdef object _post(self, Py_ssize_t work_request_id, Py_ssize_t offset, long kind, bint signaled)
    @cython.locals(work_request_id=Py_ssize_t, signaled=bint)
    cdef object _post_control(self, long kind)
    cdef object _return_credits(self)
    cdef object _post_goodbye(self)
    cdef object _report_completed(self, Py_ssize_t count)
    cpdef object _take_completions(self)
    cdef bint _needs_send_completions(self) except -1
    cdef object _request_send_completions(self)
    @cython.locals(completions=list, completion=Completion, polls=Py_ssize_t)
    cdef object _poll(self, object most)
    cdef object _handle_completion(self, Completion completion)
    @cython.locals(kind=cython.longlong, data_freed=Py_ssize_t, controls_freed=Py_ssize_t)
    cdef object _handle_message(self, long long immediate, Py_ssize_t length)
    cdef object _schedule_progress(self)
    cdef object _make_progress(self)
    cdef bint _is_pending(self) except -1
    @cython.locals(ring=ReceiveRing, delivered=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, is_wanted=bint)
    cdef object _deliver_pending(self)
    cdef object _deliver(self, object data)
    cpdef object _stop_watching(self)
    cdef object _fail(self, object failure)
