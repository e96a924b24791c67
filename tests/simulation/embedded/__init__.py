"""Whole clusters of the embedded broker, with producers and readers, in one thread and on virtual time.

``tests.simulation`` plays producers against a hand-written, hostile model of a broker. This package plays them against
the real one: the brokers' own connections, logs, replication, elections and coordinators run in it on a simulated disk,
and one seed draws all of it. The loop, the network, the disk and the faults are those that users have:
``aioproducer.testing.simulation``.

==============  ======================================================================================================
module          task
==============  ======================================================================================================
``world``       the world of ``aioproducer.testing.simulation`` with the rules that were broken, and bounds of waits
``story``       what a seed draws: the cluster, the clients' configurations, their tasks, and what goes wrong
``history``     what the clients did and were told, with times
``senders``     closed-loop and open-loop senders, plain and idempotent
``transactions`` the same with transactions, by one producer or by a pool
``readers``     readers of committed and of all records
``groups``      members of consumer groups, which come and go; they process records, or transform them exactly once
``checkers``    compare the history with the logs; each check is one rule, and has a name
``group_checkers`` the rules of consumer groups
``elle``        the transactions as Elle's JSON lines, and their cycles; ``judge`` has them checked by another project
``play``        plays a seed: story, trouble, clients, healing, checks
``planted``     the planted bugs that prove the checkers: each replaces one method of the producer or the broker
``sweep``       many seeds on all processors; how many seeds a planted bug needs
``__main__``    ``make simulate`` and ``make planted-bugs``: many seeds on all processors
==============  ======================================================================================================

Who calls whom: ``play`` makes a ``World`` and calls all others; clients write to ``History`` and report a wait beyond
its bound to the world; ``checkers`` read the history and the final logs.

The states of a play: **starting** (cluster and topics), **troubled** (faults come; clients work), **healing** (no new
fault; nodes are restarted; every topic must take a record within a bound), **closing** (clients are closed within their
bounds, groups process the rest), **checked** (readers have read everything, transactions have ended, logs are compared
with the history).

Determinism: ``aioproducer.testing.simulation.determinism`` replaces clocks and randomness; the loop has no threads and
no sockets; nothing here or in the project may depend on the order of a set. ``test_replay`` compares digests of fresh
processes with different hash seeds.
"""
