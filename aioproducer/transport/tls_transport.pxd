from aioproducer.transport.socket_transport cimport StreamTransport


cdef class TlsTransport(StreamTransport):
    cdef readonly object _session
    cdef object _plaintext
    cdef bint _must_read_first
    cdef bint _notified

    cdef object _encrypt(self)
    cdef object _collect(self)
    cdef object _end_session(self, object failure)
