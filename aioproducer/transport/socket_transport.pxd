cimport cython

from aioproducer.transport.buffers cimport bytes_of
from aioproducer._common.views cimport part_of

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/socket.h>

    /* SO_ERROR, without the objects that the method of Python's socket takes and makes. */
    static inline int pending_error(int descriptor) {
        int error = 0;
        socklen_t size = sizeof(error);
        return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
    }
    """
    int pending_error(int descriptor) noexcept

cdef bint _HAS_SENDMSG
cdef object _SOL_SOCKET, _SO_ERROR
cdef object _OPEN, _FAILED, _ENDED
cdef Py_ssize_t _SEND_LIMIT, _IOV_MAX


cdef class StreamTransport:
    cdef object __weakref__
    cdef object _loop
    cdef public object _socket
    cdef int _descriptor
    cdef public object _handler
    cdef object _peer
    cdef object _linger_timeout
    cdef object _linger_timer
    cdef object _state
    cdef object _failure
    cdef public object _unsent
    cdef Py_ssize_t _writes_owed
    cdef bint _watching_writable
    cdef bint _error_is_reported_once
    cdef bint _sent_since_receive
    cdef bint _reading_paused
    cdef object _receive_buffer

    cpdef object start(self)
    @cython.locals(idle=cython.bint, size=Py_ssize_t, sent=Py_ssize_t)
    cpdef bint write(self, object buffers) except -1
    cdef bint _write_later(self) except -1
    cpdef object resume_reading(self)
    cdef bint _has_unsent(self) except -1
    cdef bint _may_send(self) except -1
    cdef object _watch_writable(self)
    @cython.locals(sent=Py_ssize_t)
    cdef Py_ssize_t _send_buffers(self, object buffers) except -1
    cdef object _send(self)
    cdef object _report_completed(self)
    cdef object _write_failed(self, object error)
    cdef object _flushing_failed(self, object error)
    cdef object _drop_unsent(self)
    @cython.locals(number=cython.int)
    cdef object _check_for_reset(self)
    cdef object _received(self, object data)
    cdef object _end_of_stream(self)
    cdef object _deliver(self, object data)
    cdef object _receiving_ended(self, object error)
    cdef object _shut_down(self)
    cdef object _handler_failed(self, object error, object callback)
    cpdef object _end(self, object exception)
