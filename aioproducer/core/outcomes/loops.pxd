cdef object _not_nesting

cpdef bint may_nest(object loop) except -1
