"""Compiled. Allocation of a node's request slots to internal requests and data.

A node has ``max_in_flight_requests_per_connection`` slots; a response frees one. Two kinds of requests share them:
internal requests, which the producer makes for itself (metadata, producer id), and data, the drained batches. Always
serving one kind first would starve the other. Coroutines that await each send fill every slot that their response
frees. Metadata for a topic that does not exist can be due again with each of its responses. So the two alternate while
both wait. Authentication goes before both and takes no slot: a connection has none before it is authenticated. When it
authenticates again, it does so at once, behind the requests in flight, and has no free slots until that has ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class RequestSlots:
    """Alternates between internal requests and data on one node, while both wait.

    data_next
        Whether the last slot went to an internal request: the next goes to data, if any waits.
    """

    __slots__ = ("data_next",)

    def __init__(self) -> None:
        self.data_next = False

    def is_for_internal(self, data_waits: bool) -> bool:
        """Return whether an internal request may take the next slot; ``data_waits``: data could be sent instead."""
        return not (self.data_next and data_waits)

    def internal_sent(self) -> None:
        """Count a slot that an internal request has taken."""
        self.data_next = True

    def data_sent(self) -> None:
        """Count a slot that data has taken."""
        self.data_next = False


class InternalQueue:
    """The kinds of internal requests that are due, the one that has been due longest first.

    Time alone can make a kind due, so the caller passes all kinds that are due with each call.
    """

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[Hashable, None] = {}

    def in_order(self, due: Iterable[Hashable]) -> list[Hashable]:
        """Return the kinds in the order in which they became due; ``due`` are those due now, in any order."""
        now_due = dict.fromkeys(due)
        waiting = {kind: None for kind in self._due if kind in now_due}
        waiting.update(now_due)
        self._due = waiting
        return list(waiting)

    def sent(self, kind: Hashable) -> None:
        """Remove a kind that has been sent; if it is due again at once, it goes to the end."""
        self._due.pop(kind, None)
