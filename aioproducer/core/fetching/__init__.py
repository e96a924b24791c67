"""The fetcher of a consumer, without I/O: positions, fetch sessions, prefetched batches.

The design. ``Fetcher`` owns one ``AssignedPartition`` for each assigned partition, one ``FetchSession`` for each node,
and the ``FetchBuffer``. The driver sends the requests that it builds, and passes in responses, failures and the time.

**One state a partition** (``partition.py``; Kafka's ``SubscriptionState.FetchStates``):

=============  =====================================================================================================
state          meaning, and what ends it
=============  =====================================================================================================
INITIALIZING   No position. The group's committed offset or the reset policy gives one.
RESETTING      ListOffsets looks up the position: the beginning, the end, or the first record not older than a time.
VALIDATING     The leader epoch has changed. OffsetForLeaderEpoch tells whether the log was truncated before the
               position, which is that of the caller; what was prefetched behind it is dropped (KIP-320).
FETCHING       The position is valid, and Fetch requests may include the partition.
FAILED         An error waits for the caller. A seek, or for errors that may pass the next request, ends the state.
UNASSIGNED     The end: the partition was taken away.
=============  =====================================================================================================

Each change of the position from outside increases the partition's ``revision``. A response to a request of an older
revision is ignored.

**Two positions.** ``position`` is the offset of the next record for the caller; only returning a record moves it.
``fetch_position`` is the offset of the next record to request; the arrival of data moves it. The batches between both
are in the buffer.

**Memory.** ``fetch_buffer_bytes`` bounds what is in memory, over all partitions and nodes. A quarter is for
decompressed bodies and for records that are decoded and not returned; a call returns what fits there. The rest is for
responses. A request reserves its ``max_bytes``; its response replaces the reservation. A response counts in full until
all its batches are returned or dropped, because each of them keeps the response's memory. One batch that is larger than
the limits still arrives (KIP-74). Data of paused partitions are dropped, and fetched again later, if others need the
room.

**Columns.** For Arrow, rows are copied from the body of a batch into columns without an object for each record
(``columns.py``). The position moves with each row, so nothing is awaited between the first row and the return.

**The end.** A partition may have a ``stop``, the offset before which reading ends. It is reached when a batch behind it
was fetched, or by a response without any batch from a node that has the offset: compaction may have left none.

**Fairness.** The share of a partition is the smaller of ``max_partition_fetch_bytes`` and the buffer divided by the
number of partitions. A node gets no request while one of its partitions has more than half of its share in the buffer:
otherwise that partition, once read, would wait behind a long poll for the others (KIP-74, ``AbstractFetch``). Records
are returned batch by batch, partitions in turn. A partition with data goes to the end of the next request.

**Which node.** The leader, or for ``metadata_max_age_ms`` the replica that it named (KIP-392). An error from that
replica returns to the leader.

**Re-created topics.** If metadata has another topic id, offsets of the old topic mean nothing in the new one.
Prefetched records of the old topic are dropped; reading goes on at the beginning of the new topic, since none of its
records was read. With ``auto_offset_reset=none`` it is an error. Java keeps the old offset.

**Errors** that a retry may cure cause a backoff, and a metadata update if they say that metadata is old. Other errors
are raised to the caller, after the records before them.
"""
