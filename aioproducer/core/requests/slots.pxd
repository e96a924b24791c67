cdef class RequestSlots:
    cdef readonly bint data_next

    cpdef bint is_for_internal(self, bint data_waits) except -1
    cpdef object internal_sent(self)
    cpdef object data_sent(self)


cdef class InternalQueue:
    cdef dict _due

    cpdef list in_order(self, object due)
    cpdef object sent(self, object kind)
