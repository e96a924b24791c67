"""The transaction coordinator: transactional ids, which it keeps in ``__transaction_state``.

* ``transaction`` decides what a request changes of one transactional id, and never waits; ``ending`` has EndTxn, and
  ``states`` the states and what is kept;
* ``records`` has what is written, ``shard`` keeps it in one partition's log;
* ``markers`` sends the outcome of transactions to the leaders of their partitions, and ``partition_adder`` asks other
  coordinators for this node's leaders;
* ``coordinator`` is the part that a node calls, with ``describing`` for questions that change nothing.
"""

from __future__ import annotations

from aioproducer.broker.transactions.coordinator import TransactionCoordinator, transactions_topic_spec

__all__ = ["TransactionCoordinator", "transactions_topic_spec"]
