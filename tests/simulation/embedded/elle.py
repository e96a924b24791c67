"""The transactions of a play as a list-append history: as Elle's JSON, and its cycles.

A partition is a list to which a transaction appends; a transaction that reads to the end of a partition has its list.
Kafka does not isolate writes of concurrent transactions, so that cycles of writes are allowed. A cycle of reads is not:
each transaction of it would have read what another one had not committed yet (Adya's G1c).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.embedded.history import History

_TYPES = {"committed": "ok", "aborted": "fail", "unknown": "info", "open": "info"}


def elle_lines(history: History) -> Iterator[str]:
    """One JSON object for each transaction, in the format that Elle and its ports read."""
    numbers = {sent.value: number for number, sent in enumerate(history.sent)}
    processes: dict[str, int] = {}
    for index, transaction in enumerate(history.transactions):
        operations: list[list[object]] = [
            ["r", f"{topic}-{partition}", [numbers[value] for value in values]]
            for (topic, partition), values in transaction.reads
        ]
        operations += [
            ["append", _list_of(sent.topic, sent.delivery.result().partition), numbers[sent.value]]
            for sent in transaction.sent
            if sent.is_acknowledged
        ]
        yield json.dumps(
            {
                "index": index,
                "type": _TYPES[transaction.outcome],
                "process": processes.setdefault(transaction.sender, len(processes)),
                "f": "txn",
                "value": operations,
            }
        )


def _list_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def read_cycles(history: History) -> Iterator[list[int]]:
    """Cycles of committed transactions that have read each other's records, as numbers of transactions."""
    writers = {sent.value: transaction for transaction in history.transactions for sent in transaction.sent}
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for transaction in history.transactions:
        if transaction.outcome != "committed":
            continue
        for _, values in transaction.reads:
            for value in values:
                writer = writers.get(value)
                if writer is not None and writer is not transaction:
                    readers[writer.number].add(transaction.number)
    for group in _strongly_connected({number: sorted(others) for number, others in readers.items()}):
        if len(group) > 1:
            yield sorted(group)


def _strongly_connected(graph: dict[int, list[int]]) -> Iterator[list[int]]:
    """The strongly connected components of a graph (Tarjan), without recursion."""
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = lowest[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = lowest[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(graph.get(other, []))))
                    break
                if other in on_stack:
                    lowest[node] = min(lowest[node], index[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == index[node]:
                    group = []
                    while True:
                        member = stack.pop()
                        on_stack.remove(member)
                        group.append(member)
                        if member == node:
                            break
                    yield group
