cimport cython

from aioproducer.protocol.produce_frames cimport (
    Acknowledged,
    PlainProduceRequest,
    decode_acknowledged,
    encode_plain_request,
)
from aioproducer.wire.record_batch cimport read_integer


cdef tuple _produced

@cython.locals(last_version=cython.int)
cdef bytes _produce_head(int version, object client_id)

cpdef list encode_request(object request, object version, object correlation_id, object client_id)

cpdef long long frame_size(object start) except -1

@cython.locals(acknowledged=Acknowledged)
cpdef object decode_produced(object version, object frame)

cpdef tuple decode_response(object response_class, object version, object frame)

cdef list _frame(bytearray head, object message, object codec)

cpdef object _view(object buffer)
