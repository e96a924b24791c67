cdef object _refusing

cpdef bint may_nest(object loop) except -1
