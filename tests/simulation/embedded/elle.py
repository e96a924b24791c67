"""The transactions of a play as a list-append history: as the JSON lines of Elle and its ports, and its cycles.

A partition is a list to which a transaction appends; a transaction that reads to the end of a partition has its list.
Kafka does not isolate writes of concurrent transactions, so that cycles of writes are allowed. A cycle of reads is not:
each transaction of it would have read what another one had not committed yet (Adya's G1c).
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.embedded.history import History

_TYPES = {"committed": "ok", "aborted": "fail", "unknown": "info", "open": "info"}


def elle_lines(history: History, *, has_list_for_each_record: bool = False) -> Iterator[str]:
    """Two JSON objects for each transaction, its invocation and its completion.

    Each completion follows its invocation: the history has no real-time order of transactions, which Kafka does not
    promise either. A record of a transaction that was not acknowledged is left out.

    Args:
        has_list_for_each_record: A list for each record instead of each partition. Records that were read are then the
            only dependencies of transactions, not the order of writes, which Kafka does not isolate.
    """
    numbers = {sent.value: number for number, sent in enumerate(history.sent)}
    processes: dict[str, int] = {}
    numbers_of_processes = itertools.count()
    for transaction in history.transactions:
        reads: list[list[object]] = []
        appends: list[list[object]] = []
        for (topic, partition), values in transaction.reads:
            name, elements = f"{topic}-{partition}", [numbers[value] for value in values]
            if has_list_for_each_record:
                reads += [["r", f"{name}-{element}", [element]] for element in elements]
            else:
                reads.append(["r", name, elements])
        for sent in transaction.sent:
            if sent.is_acknowledged:
                name, element = f"{sent.topic}-{sent.delivery.result().partition}", numbers[sent.value]
                appends.append(["append", f"{name}-{element}" if has_list_for_each_record else name, element])
        if transaction.sender not in processes:
            processes[transaction.sender] = next(numbers_of_processes)
        process = processes[transaction.sender]
        invoked = [["r", name, None] for _, name, _ in reads]
        yield _line(2 * transaction.number, "invoke", process, invoked + appends)
        yield _line(2 * transaction.number + 1, _TYPES[transaction.outcome], process, reads + appends)
        if _TYPES[transaction.outcome] == "info":
            # Jepsen's processes end with an outcome that is not known.
            del processes[transaction.sender]


def _line(index: int, kind: str, process: int, operations: list[list[object]]) -> str:
    return json.dumps({"index": index, "type": kind, "process": process, "f": "txn", "value": operations})


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
