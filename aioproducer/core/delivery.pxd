cimport cython

from aioproducer.core.future_type cimport FutureOfMetadata


cdef class DeliveryGroup:
    cdef public object loop
    cdef public dict waiters

    cpdef bint is_done(self, Py_ssize_t index) except -1
    cpdef object error(self, Py_ssize_t index)
    cpdef object metadata(self, Py_ssize_t index)
    cpdef object where(self)
    cpdef object withdraw(self)
    cpdef object add_waiter(self, Py_ssize_t index, object callback, object argument, object context=*)
    cpdef list pop_waiters(self, Py_ssize_t index, object only=*)
    cpdef object notify(self)


cdef class Delivery(FutureOfMetadata):
    cdef public DeliveryGroup _group
    cdef public int _index


@cython.locals(delivery=Delivery)
cpdef Delivery new_delivery(DeliveryGroup group, Py_ssize_t index)


@cython.locals(group=DeliveryGroup, index=Py_ssize_t)
cdef object _result_of(Delivery delivery)


cdef class Awaiting:
    cdef Delivery _delivery
    cdef object _future


@cython.locals(awaiting=Awaiting)
cdef Awaiting _new_awaiting(Delivery delivery)


cdef class Withdrawable(DeliveryGroup):
    cdef public bint withdrawn
