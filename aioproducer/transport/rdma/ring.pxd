cimport cython

cdef long _KIND_SHIFT
cdef long _DATA_SHIFT
cdef long _COUNT_MASK

cpdef long encode_immediate(long kind, long data_freed, long controls_freed) except -1
@cython.locals(kind=cython.longlong)
cpdef (long long, long long, long long) decode_immediate(long long value) except *


@cython.final
cdef class Fifo:
    cdef object _memory
    # The address of its items.
    cdef long long* _numbers
    cdef Py_ssize_t _size
    cdef Py_ssize_t _first
    cdef readonly Py_ssize_t count

    @cython.locals(size=Py_ssize_t, index=Py_ssize_t)
    cdef object _grow(self)
    @cython.locals(index=Py_ssize_t)
    cpdef object append(self, Py_ssize_t number)
    @cython.locals(number=Py_ssize_t)
    cpdef Py_ssize_t first(self) except? -1
    @cython.locals(number=Py_ssize_t)
    cpdef Py_ssize_t take(self) except? -1
    cpdef object clear(self)


@cython.final
cdef class PeerRing:
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t free_bytes
    cdef readonly Py_ssize_t free_slots
    cdef readonly Py_ssize_t free_controls
    cdef Py_ssize_t _controls
    cdef Py_ssize_t _position
    cdef Fifo _lengths

    cpdef Py_ssize_t room(self) except -1
    @cython.locals(offset=Py_ssize_t)
    cpdef Py_ssize_t take(self, Py_ssize_t length) except -1
    cpdef object take_control(self)
    @cython.locals(length=Py_ssize_t)
    cpdef object freed(self, Py_ssize_t data, Py_ssize_t controls)


@cython.final
cdef class ReceiveRing:
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t _slots
    cdef readonly Py_ssize_t _controls
    cdef Py_ssize_t _position
    cdef Py_ssize_t _held_bytes
    cdef Fifo _held
    cdef readonly Py_ssize_t waiting
    cdef Py_ssize_t _oldest
    cdef Py_ssize_t _freed_bytes
    cdef readonly Py_ssize_t data_freed
    cdef readonly Py_ssize_t controls_freed

    @cython.locals(offset=Py_ssize_t)
    cpdef object arrived(self, Py_ssize_t length)
    cpdef (Py_ssize_t, Py_ssize_t) oldest(self) except *
    cpdef object control_arrived(self)
    @cython.locals(length=Py_ssize_t)
    cpdef object consumed(self)
    cpdef bint owes_credits(self) except -1
    cpdef bint attaches_credits(self) except -1
    @cython.locals(data=Py_ssize_t, controls=Py_ssize_t)
    cpdef (Py_ssize_t, Py_ssize_t) take_credits(self) except *


@cython.final
cdef class SendQueue:
    cdef Py_ssize_t _depth
    cdef Py_ssize_t _data_depth
    cdef Py_ssize_t _interval
    cdef Py_ssize_t _ring_size
    cdef readonly Py_ssize_t room
    cdef readonly Py_ssize_t position
    cdef Py_ssize_t _unsignaled
    cdef Py_ssize_t _unsignaled_bytes
    cdef Py_ssize_t _next_id
    cdef Fifo _signaled
    cdef Fifo _copied
    cdef Fifo _lending
    cdef Py_ssize_t _unsignaled_lending
    cdef list _held
    cdef Py_ssize_t _first_held
    cdef Py_ssize_t _done
    cdef readonly Py_ssize_t lent
    cdef Fifo _lent_from
    cdef readonly Py_ssize_t written_to
    cdef readonly Py_ssize_t posted_to
    cdef Fifo _owed
    cdef readonly Py_ssize_t owed

    cpdef bint may_post(self) except -1
    cpdef bint may_post_control(self) except -1
    cpdef bint may_post_goodbye(self) except -1
    cpdef Py_ssize_t run(self) except -1
    @cython.locals(offset=Py_ssize_t)
    cpdef (Py_ssize_t, Py_ssize_t) take(self, Py_ssize_t length) except *
    cpdef object written(self, Py_ssize_t length)
    cpdef Py_ssize_t done_to(self) except -1
    cpdef object owe(self)
    @cython.locals(owed=Fifo, done_to=Py_ssize_t, count=Py_ssize_t)
    cpdef Py_ssize_t take_done(self) except -1
    cpdef Py_ssize_t take_owed(self) except -1
    @cython.locals(signaled=cython.bint, work_request_id=Py_ssize_t)
    cpdef (Py_ssize_t, bint) posted(self, Py_ssize_t length, Py_ssize_t copied, object lent, bint wanted) except *
    @cython.locals(returned=Py_ssize_t)
    cpdef object completed(self, Py_ssize_t work_request_id)
