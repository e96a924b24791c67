cimport cython

from aioproducer.transport.rdma.ring cimport PeerRing, ReceiveRing, SendQueue, decode_immediate, encode_immediate

cdef object _ENDED
cdef object _FAILED
cdef object _FLUSHING
cdef object _LINGERING
cdef object _OPEN
cdef object _DATA
cdef object _CREDITS
cdef object _GOODBYE

cdef Py_ssize_t _address_of(object view) except 0
cdef list _contents_of(object buffers)


cdef class RdmaTransport:
    cdef object _devices
    cdef readonly object _shared
    cdef object _loop
    cdef readonly object _link
    cdef readonly object _queue_pair
    cdef readonly object _control
    cdef bint _control_ended
    cdef bint _card_ended
    cdef public object _handler
    cdef object _peer
    cdef object _counters
    cdef bint _zero_copy
    cdef object _linger_timeout
    cdef object _linger_timer
    cdef public object _remote
    cdef PeerRing _peer_ring
    cdef ReceiveRing _receive_ring
    cdef object _received
    cdef object _copies
    cdef Py_ssize_t _copies_address
    cdef object _copies_key
    cdef SendQueue _queue
    cdef Py_ssize_t _largest
    cdef object _state
    cdef object _unsent
    cdef object _pending
    cdef Py_ssize_t _unposted
    cdef bint _peer_shut
    cdef bint _reading_paused
    cdef bint _watching
    cdef bint _all_wanted
    cdef Py_ssize_t _held_up_to
    cdef bint _one_way
    cdef bint _data_came
    cdef bint _was_late
    cdef object _memory_timer
    cdef bint _turn_scheduled
    cdef object _failure
    cdef bint _stopped
    cdef object __weakref__

    @cython.locals(queue=SendQueue, contents=list, size=Py_ssize_t)
    cpdef bint write(self, object buffers) except -1
    cdef bint _may_post(self) except -1
    @cython.locals(room=Py_ssize_t)
    cdef object _send(self)
    @cython.locals(
        queue=SendQueue,
        pieces=list,
        lent=list,
        size=Py_ssize_t,
        copied=Py_ssize_t,
        most=Py_ssize_t,
        length=Py_ssize_t,
        address=Py_ssize_t,
        end=Py_ssize_t,
        offset=Py_ssize_t,
    )
    cdef bint _post_data(self, Py_ssize_t limit) except -1
    cdef object _memory_of(self, object view)
    @cython.locals(length=Py_ssize_t, offset=Py_ssize_t, first=Py_ssize_t)
    cpdef object _copy(self, object view, list pieces)
    @cython.locals(length=Py_ssize_t, address=Py_ssize_t, start=Py_ssize_t, before=Py_ssize_t, to=cython.p_char)
    cdef object _copy_to(self, Py_ssize_t offset, object view, list pieces)
    cdef object _post(self, object work_request_id, list pieces, Py_ssize_t offset, object kind, bint signaled)
    cdef object _post_control(self, object kind)
    cdef object _return_credits(self)
    cdef object _say_goodbye(self)
    cdef object _complete(self, Py_ssize_t count)
    cpdef object _on_readable(self)
    cpdef object _take_completions(self)
    cdef bint _needs_all(self) except -1
    cdef object _watch_sends(self)
    cpdef object _memory_is_late(self)
    cdef object _poll(self, object most)
    cdef object _completed(self, object completion)
    cdef object _arrived(self, object immediate, Py_ssize_t length)
    cdef object _schedule_turn(self)
    cdef object _turn(self)
    @cython.locals(delivered=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, is_wanted=bint)
    cdef object _deliver_pending(self)
    cdef object _deliver(self, object data)
    cpdef object _stop_watching(self)
    cdef object _fail(self, object failure)
