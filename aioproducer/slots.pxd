"""What the interpreter does without a call where a type has the slot for it, and Cython no word."""

from cpython.object cimport PyObject


cdef extern from *:
    """
    #include <structmember.h>

    /* The type's am_send, by which PyIter_Send asks: 0 and a result for what is over, 1 and a result for what was
       yielded, -1 for an error. What is over needs no StopIteration then. */
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
    """
    int set_send_slot(object type, void *send) except -1
    int set_member(object type, const char *name, Py_ssize_t offset, const char *documentation) except -1
