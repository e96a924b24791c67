cimport cython

from aioproducer.transport.rdma.registration cimport RegisteredMemory
from aioproducer.transport.rdma.ring cimport SendQueue
from aioproducer.transport.rdma.work_requests cimport Write
from aioproducer._common.views cimport is_of_bytes, view_of

cdef Py_ssize_t _MIN_LENT
cdef Py_ssize_t _MAX_COPIED
cdef Py_ssize_t _SMALL
cdef object _MMAP

cdef Py_ssize_t _address_of(object view) except 0


cdef class Unsent:
    cdef SendQueue _queue
    cdef Write _write
    cdef object _ring
    cdef Py_ssize_t _ring_size
    cdef Py_ssize_t _address
    cdef unsigned int _local_key
    cdef dict _memories
    cdef list _contents
    cdef Py_ssize_t _first
    cdef readonly bint waiting
    cdef readonly object lent
    cdef readonly Py_ssize_t copied

    @cython.locals(added=list, size=Py_ssize_t)
    cpdef Py_ssize_t add(self, object buffers) except -1
    @cython.locals(
        queue=SendQueue,
        write=Write,
        room=Py_ssize_t,
        start=Py_ssize_t,
        size=Py_ssize_t,
        copied=Py_ssize_t,
        run=Py_ssize_t,
        lends=cython.bint,
        length=Py_ssize_t,
        address=Py_ssize_t,
        end=Py_ssize_t,
        local_key=cython.uint,
        registered=RegisteredMemory,
    )
    cpdef Py_ssize_t take(self, object buffers, Py_ssize_t limit, Py_ssize_t max_pieces) except -1
    cpdef object clear(self)
    cpdef object close(self)
    @cython.locals(
        contents=list,
        queue=SendQueue,
        write=Write,
        lent=list,
        size=Py_ssize_t,
        copied=Py_ssize_t,
        start=Py_ssize_t,
        run=Py_ssize_t,
        length=Py_ssize_t,
        address=Py_ssize_t,
        end=Py_ssize_t,
        offset=Py_ssize_t,
        first=Py_ssize_t,
        local_key=cython.uint,
        registered=RegisteredMemory,
    )
    cpdef Py_ssize_t gather(self, Py_ssize_t limit, Py_ssize_t max_pieces) except -1
    @cython.locals(address=Py_ssize_t, registered=RegisteredMemory)
    cdef RegisteredMemory _registered_memory(self, object content)
    @cython.locals(to=cython.p_char)
    cdef object _copy(self, object content, Py_ssize_t begin, Py_ssize_t offset, Py_ssize_t length)
