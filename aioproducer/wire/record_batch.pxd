cimport cython

from aioproducer.wire.crc32c cimport crc32c


cpdef bytes pack_header(
    object body,
    Py_ssize_t body_size,
    object record_count,
    object base_timestamp,
    object max_timestamp,
    object attributes,
    object producer_id,
    object producer_epoch,
    object base_sequence,
    object base_offset,
    object last_offset_delta,
    object partition_leader_epoch,
)
