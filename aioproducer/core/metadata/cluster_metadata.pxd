cimport cython

from aioproducer.core.requests.retry cimport Attempts


cdef class ClusterMetadata:
    cdef dict _bootstrap
    cdef double _max_age
    cdef double _max_idle
    cdef bint _may_rebootstrap
    cdef double _rebootstrap_trigger
    cdef bint _allow_auto_topic_creation
    cdef readonly Py_ssize_t version
    cdef readonly object cluster_id
    cdef readonly object controller_id
    cdef readonly object last_error
    cdef readonly object last_update
    cdef readonly object update_reason
    cdef readonly object update_requested_at
    cdef public dict _nodes
    cdef dict _topics
    cdef dict _new_topics
    cdef object _in_flight
    cdef bint _full_update_requested
    cdef Py_ssize_t _topics_left
    cdef Py_ssize_t _new_topics_left
    cdef object _request_order
    cdef bint _full_update_changed
    cdef double _last_full_update
    cdef double _latest_reason_at
    cdef object _attempt_started
    cdef set _failed_nodes
    cdef bint _rebootstrap_required
    cdef Attempts _failed
    cdef Attempts _fruitless
    cdef Attempts _rebootstraps

    cpdef object topic(self, object name)
    cpdef object add_topic(self, object name, double now)
    @cython.locals(due=double)
    cpdef double next_update_delay(self, double now) except? -1
