"""Which partitions may be drained: those whose head is due, by leader, in the order in which they became ready.

Work here is in proportion to what happens: batches that linger stand in order of their deadline, partitions that back
off in a heap, and what is ready in its leader's queue. Nothing ever looks at all partitions.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.partition_queue import NodeQueue, PartitionQueue
from aioproducer.core.batching.producer_state import ProducerState

# Batches in one request: as many as can be put into it, and taken out again, within a fraction of a millisecond. What
# is left goes with the next request.
BATCHES_PER_REQUEST = 64


class BatchFinisher:
    """Prepares a batch for sending: closes and compresses it."""

    __slots__ = ()

    def finish_batch(self, queue: PartitionQueue, batch: ProducerBatch, now: float) -> bool:
        """Close the batch and compress it; False where a thread has to do that first."""
        raise AssertionError("the accumulator says")


class ReadyPartitions:
    """The ready side of the accumulator.

    A partition is ready when it has a leader, is neither muted nor backing off, and its oldest batch is closed or need
    not linger any more. Whether its sequence may go is asked at drain; a partition that may not is held until its state
    changes.
    """

    __slots__ = (
        "_backoffs",
        "_held",
        "_lingering",
        "_tie",
        "leaderless",
        "linger",
        "nodes",
        "producer_state",
        "ready",
        "wake",
    )

    def __init__(self, producer_state: ProducerState, linger: float, wake: Callable[[], None]) -> None:
        self.producer_state = producer_state
        self.linger = linger
        self.wake = wake
        self.nodes: dict[int, NodeQueue] = {}
        # Nodes with something to drain; by topic, partitions that had something to send and no leader.
        self.ready: dict[int, NodeQueue] = {}
        self.leaderless: dict[str, dict[PartitionQueue, None]] = {}
        # Open batches whose linger runs, by its end; partitions that back off; partitions held by the producer state.
        self._lingering: OrderedDict[ProducerBatch, None] = OrderedDict()
        self._backoffs: list[tuple[float, int, PartitionQueue]] = []
        self._held: dict[PartitionQueue, None] = {}
        self._tie = count()

    def opened(self, queue: PartitionQueue, batch: ProducerBatch, now: float, hurry: bool) -> None:
        """A batch was opened: its linger begins, unless there is a ``hurry``."""
        if hurry or self.linger <= 0:
            batch.due = True
            self.update(queue, now)
        else:
            self._lingering[batch] = None
            if len(self._lingering) == 1:
                self.wake()

    def closed(self, batch: ProducerBatch) -> None:
        """A batch takes no more records, so that it need not linger."""
        if self._lingering:
            self._lingering.pop(batch, None)

    def poll(self, now: float) -> None:
        """Make ready what has lingered or backed off long enough."""
        while self._lingering:
            batch = next(iter(self._lingering))
            if batch.created_at + self.linger > now:
                break
            self._make_due(batch, now)
        while self._backoffs and self._backoffs[0][0] <= now:
            self.update(heapq.heappop(self._backoffs)[2], now)

    def hurry(self, now: float) -> None:
        """Let nothing linger."""
        while self._lingering:
            self._make_due(next(iter(self._lingering)), now)

    def _make_due(self, batch: ProducerBatch, now: float) -> None:
        del self._lingering[batch]
        batch.due = True
        if batch.queue is not None:
            self.update(batch.queue, now)

    def next_deadline(self) -> float:
        """When ``poll`` will next have something to do; infinity for never."""
        deadline = float("inf")
        if self._lingering:
            batch = next(iter(self._lingering))
            deadline = batch.created_at + self.linger
        if self._backoffs:
            deadline = min(deadline, self._backoffs[0][0])
        return deadline

    def back_off(self, queue: PartitionQueue, until: float) -> None:
        """Let the partition rest until then, or longer where it does already."""
        if until > queue.backoff_until:
            queue.backoff_until = until
            heapq.heappush(self._backoffs, (until, next(self._tie), queue))

    def set_leader(self, queue: PartitionQueue, node_id: int, now: float) -> bool:
        """The partition's leader is ``node_id``, or none (-1); return False if that is not new."""
        node = None if node_id < 0 else self._node(node_id)
        if queue.node is node:
            return False
        # It may still stand in the old leader's queue, which passes over it.
        queue.in_ready = False
        queue.node = node
        self._discard_leaderless(queue)
        # A retry need not wait for a broker that is not asked again (KIP-951).
        queue.backoff_until = 0.0
        self.update(queue, now)
        return True

    def forget(self, queue: PartitionQueue) -> None:
        queue.in_ready = False
        queue.node = None
        self._discard_leaderless(queue)
        self._held.pop(queue, None)

    def _node(self, node_id: int) -> NodeQueue:
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = NodeQueue(node_id)
        return node

    def update(self, queue: PartitionQueue, now: float) -> None:
        """Put the partition into its leader's queue if its head may go; to be called when that may have changed."""
        if queue.in_ready or queue.muted or not queue.batches or queue.backoff_until > now:
            return
        head = queue.batches[0]
        if head.compressing or not (head.closed or head.due):
            return
        node = queue.node
        if node is None:
            self.leaderless.setdefault(queue.topic, {})[queue] = None
        else:
            queue.in_ready = True
            node.ready.append(queue)
            if node.waiting_since is None:
                node.waiting_since = now
            self.ready[node.node_id] = node
        self.wake()

    def settle(self, queue: PartitionQueue, now: float) -> None:
        """Something that may have held the partition back has ended."""
        self.producer_state.settle(queue.sequences)
        if self._held:
            self._held.pop(queue, None)
        self.update(queue, now)

    def settle_held(self, now: float) -> None:
        """The producer id has come, or changed: look again at all that it held back."""
        held, self._held = self._held, {}
        for queue in held:
            self.settle(queue, now)

    def unknown_leader_topics(self) -> set[str]:
        """The topics with something to send and no leader to send it to."""
        for queues in list(self.leaderless.values()):
            # One partition of a topic is enough, and those whose batches are gone need not be looked at again.
            while queues and not (queue := next(iter(queues))).batches:
                self._discard_leaderless(queue)
        return set(self.leaderless)

    def _discard_leaderless(self, queue: PartitionQueue) -> None:
        topic = queue.topic
        queues = self.leaderless.get(topic)
        if queues is not None:
            queues.pop(queue, None)
            if not queues:
                del self.leaderless[topic]

    def drain(
        self,
        node_id: int,
        now: float,
        max_request_size: int,
        one_in_flight: bool,
        finisher: BatchFinisher,
    ) -> list[ProducerBatch]:
        """The batches for one request, as ``RecordAccumulator.drain`` says."""
        drained: list[ProducerBatch] = []
        node = self.nodes.get(node_id)
        if node is None:
            return drained
        room = max_request_size
        # Those with more to send, which is for the next request.
        again: list[PartitionQueue] | None = None
        partitions = node.ready
        while partitions and len(drained) < BATCHES_PER_REQUEST:
            queue = partitions.popleft()
            if queue.node is not node or not queue.in_ready:
                continue
            queue.in_ready = False
            head = queue.batches[0] if queue.batches else None
            if head is None or queue.muted or queue.backoff_until > now or head.compressing:
                continue
            if queue.sequences.bump_wanted:
                # It waited for a producer id, which has come without anything else happening to the partition.
                self.producer_state.settle(queue.sequences)
            if not self.producer_state.may_send(head, queue.sequences):
                self._held[queue] = None
                continue
            if not finisher.finish_batch(queue, head, now):
                continue
            size = head.size()
            if size > room and drained:
                partitions.appendleft(queue)
                queue.in_ready = True
                break
            room -= size
            queue.take()
            self.producer_state.assign(head, queue.sequences)
            head.on_wire = True
            queue.on_wire += 1
            head.sent_to = node_id
            drained.append(head)
            if one_in_flight:
                queue.muted = True
            elif queue.batches:
                if again is None:
                    again = []
                again.append(queue)
        if again is not None:
            for queue in again:
                self.update(queue, now)
        if partitions:
            if drained:
                node.waiting_since = now
        else:
            self.ready.pop(node_id, None)
            node.waiting_since = None
        return drained
