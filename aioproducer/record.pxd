cimport cython


cdef extern from *:
    """
    #include <structmember.h>

    /* An attribute that is an object in the struct, never NULL, to be read only: bytecode for it reads it in place. */
    static inline int set_member(PyObject *type, const char *name, Py_ssize_t offset, const char *documentation) {
        PyMemberDef *member = (PyMemberDef *) PyMem_RawCalloc(1, sizeof(PyMemberDef));
        PyObject *descriptor;
        int result;
        if (member == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        member->name = name;
        member->type = T_OBJECT_EX;
        member->offset = offset;
        member->flags = READONLY;
        member->doc = documentation;
        descriptor = PyDescr_NewMember((PyTypeObject *) type, member);
        if (descriptor == NULL) {
            return -1;
        }
        result = PyDict_SetItemString(((PyTypeObject *) type)->tp_dict, name, descriptor);
        Py_DECREF(descriptor);
        PyType_Modified((PyTypeObject *) type);
        return result;
    }

    #define OFFSET_IN_RECORD_METADATA offsetof(struct __pyx_obj_11aioproducer_6record_RecordMetadata, _offset)
    """
    const Py_ssize_t OFFSET_IN_RECORD_METADATA
    int set_member(object type, const char *name, Py_ssize_t offset, const char *documentation) except -1


cdef class RecordMetadata:
    cdef object _topic_partition
    cdef object _offset
    cdef long long _timestamp_ms

    cpdef tuple _as_tuple(self)


@cython.locals(metadata=RecordMetadata)
cpdef RecordMetadata new_record_metadata(object topic_partition, long long offset, long long timestamp_ms)


cdef tuple _NO_PAIRS


cdef bint _is_plain(object header) except -1
@cython.locals(found=list)
cpdef list header_list(object headers)
@cython.locals(index=Py_ssize_t)
cpdef object normalise_in_place(list headers)
cpdef tuple normalise_headers(object headers)


cdef class Record:
    cdef readonly object topic
    cdef readonly object value
    cdef readonly object key
    cdef readonly object partition
    cdef readonly object timestamp_ms
    cdef readonly tuple headers

    cdef object _fill(
        self, object topic, object value, object key, object partition, object timestamp_ms, object headers
    )
    cpdef tuple _as_tuple(self)


@cython.locals(record=Record)
cpdef Record new_record(
    object topic, object value, object key, object partition, object timestamp_ms, object headers
)
