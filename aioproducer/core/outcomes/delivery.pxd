cimport cython
from cpython.object cimport PyObject

from aioproducer.core.outcomes.future_type cimport FutureOfMetadata
from aioproducer.core.outcomes.loops cimport may_nest


cdef extern from *:
    """
    /* Sets the type's am_send, which PyIter_Send calls: it returns 0 and a result at the end, 1 and a result for a
       yield, -1 for an error. The end then needs no StopIteration. */
    static inline int set_send_slot(PyObject *type, void *send) {
        PyAsyncMethods *methods = (PyAsyncMethods *) PyMem_RawCalloc(1, sizeof(PyAsyncMethods));
        if (methods == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        if (((PyTypeObject *) type)->tp_as_async != NULL) {
            *methods = *((PyTypeObject *) type)->tp_as_async;
        }
        methods->am_send = (sendfunc) send;
        ((PyTypeObject *) type)->tp_as_async = methods;
        PyType_Modified((PyTypeObject *) type);
        return 0;
    }

    /* Returns whether a callback is the one that asyncio's Task in C adds to a future that it waits for. */
    static inline int is_task_wakeup(PyObject *callback) {
        return PyCFunction_Check(callback)
            && strcmp(((PyCFunctionObject *) callback)->m_ml->ml_name, "task_wakeup") == 0;
    }
    """
    int set_send_slot(object type, void *send) except -1
    bint is_task_wakeup(object callback) noexcept


cdef class Awaiting


cdef class DeliveryGroup:
    cdef public object loop
    cdef public list awaiting
    cdef public dict waiters

    cpdef bint is_done(self, Py_ssize_t index) except -1
    cpdef object error(self, Py_ssize_t index)
    cpdef object metadata(self, Py_ssize_t index)
    cpdef object where(self)
    cpdef object withdraw(self)
    @cython.locals(awaiting=Awaiting, last=Awaiting)
    cpdef object add_waiter(self, Py_ssize_t index, object callback, object argument, object context=*)
    cpdef list pop_waiters(self, Py_ssize_t index, object only=*)
    @cython.locals(awaiting=Awaiting)
    cpdef dict by_index(self)
    cpdef Py_ssize_t observed_count(self) except -1
    @cython.locals(index=Py_ssize_t, awaiters=list)
    cpdef object notify(self)


cdef class Delivery(FutureOfMetadata):
    cdef public DeliveryGroup _group
    cdef public int _index


@cython.locals(delivery=Delivery)
cpdef Delivery new_delivery(DeliveryGroup group, Py_ssize_t index)


@cython.locals(group=DeliveryGroup, index=Py_ssize_t)
cdef object _result_of(Delivery delivery)


cdef int IDLE, PENDING, FINISHED, CANCELLED


cdef class Awaiting:
    cdef public bint _asyncio_future_blocking
    cdef Delivery _delivery
    cdef Py_ssize_t _index
    cdef int _state
    cdef object _callback
    cdef object _context
    cdef list _others
    cdef object _message

    @cython.locals(delivery=Delivery, group=DeliveryGroup)
    cdef object _step(self)
    cpdef bint wake(self) except -1
    @cython.locals(others=list)
    cpdef object call_back(self)


cdef object _done

cdef object _done_future(object loop)

@cython.locals(first=Py_ssize_t)
cdef object _call_back(object loop, list awaiters)


@cython.locals(awaiters=list, each=Awaiting)
cdef list _wake_all(list awaiting)


cpdef object resume(object loop, list awaiting)


@cython.locals(position=Py_ssize_t, awaiting=Awaiting)
cdef object _call_each(object loop, list awaiters)


cdef class _AwaiterCallback:
    cdef object loop
    cdef list awaiters


cdef class Finished:
    cdef Delivery _delivery


cdef int _send_awaiting(Awaiting awaiting, object value, PyObject **result) except -1


cdef int _send_finished(Finished finished, object value, PyObject **result) except -1


@cython.locals(awaiting=Awaiting, finished=Finished)
cdef object _await(Delivery delivery)


cdef class Withdrawable(DeliveryGroup):
    cdef public bint withdrawn
