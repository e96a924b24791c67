cimport cython

from aioproducer.core.fetching.records cimport BatchReader

cdef long long _MOST_GUESSED


@cython.locals(size=Py_ssize_t)
cdef object _grow(bytearray buffer, Py_ssize_t needed)


@cython.final
cdef class BinaryRows:
    cdef readonly bytearray ends
    cdef readonly bytearray data
    cdef readonly bytearray validity
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t nulls
    cdef readonly Py_ssize_t used

    cpdef object reserve(self, Py_ssize_t rows, Py_ssize_t size)
    @cython.locals(size=Py_ssize_t)
    cpdef object append(self, bytes value)
    @cython.locals(ends="int *")
    cdef int put(self, const unsigned char* source, Py_ssize_t size) except -1


@cython.final
cdef class RecordColumns:
    cdef readonly Py_ssize_t count
    cdef readonly BinaryRows keys
    cdef readonly BinaryRows values
    cdef readonly bytearray offsets
    cdef readonly bytearray timestamps
    cdef readonly list headers
    cdef readonly list runs
    cdef readonly long long last_offset

    cdef object _reserve(self, Py_ssize_t rows)
    cdef object _read_one_by_one(self, BatchReader reader, Py_ssize_t limit, Py_ssize_t end)
    cdef bint _read_next(self, BatchReader reader, Py_ssize_t before) except -1
    @cython.locals(before=Py_ssize_t)
    cpdef Py_ssize_t read(self, object name, BatchReader reader, Py_ssize_t limit, Py_ssize_t most_bytes) except -1
    @cython.locals(
        begin="const unsigned char *",
        end="const unsigned char *",
        rows=Py_ssize_t,
        first_place=Py_ssize_t,
        before=Py_ssize_t,
        last=Py_ssize_t,
        size=Py_ssize_t,
        has_append_time=cython.bint,
        append_time="long long",
        offset="long long",
        offsets="long long *",
    )
    cdef int _read_by_address(self, BatchReader reader, Py_ssize_t limit, Py_ssize_t most_bytes) except -1
