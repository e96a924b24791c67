cimport cython

from aioproducer.core.batching.accumulator cimport RecordAccumulator
from aioproducer.core.batching.batch cimport ProducerBatch
from aioproducer.core.columns.binary_column cimport BinaryColumn
from aioproducer.core.outcomes.delivery cimport Delivery
from aioproducer.core.batching.partition_queue cimport PartitionQueue, TopicQueues
from aioproducer.core.columns.record_columns cimport HeaderColumn, TimestampColumn
from aioproducer.wire.murmur2 cimport partition_for_key, partition_for_key_at


@cython.locals(sticky=Py_ssize_t)
cdef Py_ssize_t _keyless_partition(TopicQueues topic, object partition) except -1


@cython.locals(
    stop=Py_ssize_t,
    topic=TopicQueues,
    partitions=list,
    by_key=cython.bint,
    run_end=Py_ssize_t,
    number=Py_ssize_t,
    room=Py_ssize_t,
    row=Py_ssize_t,
    queue=PartitionQueue,
    batch=ProducerBatch,
    before=Py_ssize_t,
    index=Py_ssize_t,
    delivery=Delivery,
)
cpdef Py_ssize_t append_rows(
    RecordAccumulator accumulator,
    object topic_name,
    object partition,
    object keys,
    object values,
    Py_ssize_t first,
    long long timestamp_ms,
    double now,
    list touched,
    TimestampColumn timestamps=*,
    HeaderColumn headers=*,
) except -1
@cython.locals(
    stop=Py_ssize_t,
    partitions=list,
    by_key=cython.bint,
    number=Py_ssize_t,
    sticky=Py_ssize_t,
    room=Py_ssize_t,
    row=Py_ssize_t,
    key="const unsigned char *",
    key_size=Py_ssize_t,
    value="const unsigned char *",
    value_size=Py_ssize_t,
    value_data="const unsigned char *",
    timestamp_ms=cython.longlong,
    headers_size=Py_ssize_t,
    begin=Py_ssize_t,
    queue=PartitionQueue,
    batch=ProducerBatch,
    before=Py_ssize_t,
    index=Py_ssize_t,
    delivery=Delivery,
)
cdef Py_ssize_t append_arrow_rows(
    RecordAccumulator accumulator,
    TopicQueues topic,
    object partition,
    BinaryColumn keys,
    BinaryColumn values,
    TimestampColumn timestamps,
    HeaderColumn headers,
    Py_ssize_t first,
    long long default_ms,
    double now,
    list touched,
) except -1
