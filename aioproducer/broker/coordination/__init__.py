"""What coordinators share that keep their state in partitions of an internal topic.

* ``shards`` finds the partition that a key belongs to, and follows the partitions that this node leads;
* ``stored_records`` reads what such a partition's log has, ``replicated_writes`` adds to it;
* ``codes`` has the answers to clients where a log fails, and ``answers`` what a request awaits;
* ``periodic`` is for work that comes round.
"""
