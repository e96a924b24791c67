"""What coordinators share that keep their state in partitions of an internal topic.

* ``shards`` finds the partition of a key, and follows which partitions this node leads;
* ``stored_records`` reads the log of such a partition, ``replicated_writes`` appends to it;
* ``codes`` has the error codes for clients when a log fails, and ``answers`` the futures that requests await;
* ``periodic`` runs periodic work.
"""
