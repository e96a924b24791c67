cimport cython

cdef Py_ssize_t MAX_PIECES

@cython.final
cdef class Write:
    cdef public long long work_request_id
    cdef public unsigned long long remote_address
    cdef public object remote_key
    cdef public unsigned int immediate
    cdef public bint signaled
    cdef readonly Py_ssize_t count
    # As many as MAX_PIECES says.
    cdef unsigned long long[32] _addresses
    cdef unsigned long long[32] _lengths
    cdef unsigned int[32] _local_keys

    cpdef object clear(self)
    @cython.locals(count=Py_ssize_t)
    cpdef object add(self, unsigned long long address, unsigned long long length, unsigned int local_key)


@cython.final
cdef class Completion:
    cdef readonly long long work_request_id
    cdef readonly long status
    cdef readonly bint received
    cdef readonly Py_ssize_t length
    cdef readonly long long immediate
