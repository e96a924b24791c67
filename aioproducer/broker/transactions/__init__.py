"""The transaction coordinator: transactional ids, with their state in ``__transaction_state``.

* ``transaction`` decides how a request changes one transactional id, and never waits; ``ending`` has EndTxn, and
  ``states`` the states and the stored fields;
* ``records`` defines the records, ``shard`` keeps them in the log of one partition;
* ``markers`` sends the outcome of transactions to the leaders of their partitions, and ``partition_adder`` sends
  requests of this node's leaders to other coordinators;
* ``coordinator`` is the part that a node calls, with ``describing`` for requests that change nothing.
"""

from __future__ import annotations

from aioproducer.broker.transactions.coordinator import TransactionCoordinator, transactions_topic_spec

__all__ = ["TransactionCoordinator", "transactions_topic_spec"]
