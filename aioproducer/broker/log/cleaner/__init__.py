"""The decisions of log compaction, without files and clocks (Kafka's ``Cleaner``, ``LogCleanerManager``).

A round of cleaning has two passes. The first reads the dirty part of a log and notes the last offset of each key
(``offset_map``). The second reads the log from its start and keeps what the rules of ``batch_filter`` keep.
``transactions`` decides which markers and aborted records may go. ``selection`` decides which part of a log is cleaned,
when, and which segments become one. ``aioproducer.broker.log.cleaning`` reads and writes the segments.
"""

from __future__ import annotations
