cdef class Counters:
    cdef readonly Py_ssize_t bytes_sent
    cdef readonly Py_ssize_t bytes_copied
    cdef readonly Py_ssize_t writes_posted
    cdef readonly Py_ssize_t completions
    cdef readonly Py_ssize_t signals
