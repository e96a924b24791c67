cimport cython

from aioproducer.protocol.produce_frames cimport decode_plain_response, encode_plain_request


cpdef list encode_request(object message, object version, object correlation_id, object client_id)

cpdef tuple decode_response(object response_class, object version, object frame)

cdef list _frame(bytearray head, object message, object codec)

cpdef object _view(object buffer)
