"""Compiled. Which partitions may be drained: those with a due batch, by leader, in the order they became ready.

Work is proportional to what happens: batches that linger are in the order of their deadlines, partitions that back off
in a heap, and ready ones in their leader's queue. Nothing ever iterates over all partitions.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from aioproducer.core.batching.batch import CLOSED, DUE, ProducerBatch
from aioproducer.core.batching.partition_queue import (
    BACKING_OFF,
    HELD,
    IDLE,
    LEADERLESS,
    MUTED,
    READY,
    NodeQueue,
    PartitionQueue,
)
from aioproducer.core.batching.producer_state import ProducerState

# Names of this module alone are C integers in the compiled module.
_DUE, _CLOSED = DUE, CLOSED
_BACKING_OFF, _HELD, _IDLE, _LEADERLESS, _MUTED, _READY = BACKING_OFF, HELD, IDLE, LEADERLESS, MUTED, READY

# Batches in one request: as many as can be put into it, and taken out again, within a fraction of a millisecond. The
# others go with the next request.
BATCHES_PER_REQUEST = 64


class BatchFinisher:
    """Prepares a batch for sending: closes and compresses it."""

    __slots__ = ()

    def finish_batch(self, queue: PartitionQueue, batch: ProducerBatch, now: float) -> bool:
        """Close the batch and compress it; return False if a thread has to do that first."""
        raise NotImplementedError


class ReadyPartitions:
    """Keeps the state of each partition, and the collection that belongs to the state (see ``PartitionQueue``).

    A partition is ready when it has a leader and is neither muted nor backing off. Its oldest batch is also closed, or
    need not linger any more. ``drain`` asks ``ProducerState`` whether the batch's sequence may be sent; if not, the
    partition is held until that changes.
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
        "ready_nodes",
        "wake",
    )

    def __init__(self, producer_state: ProducerState, linger: float, wake: Callable[[], None]) -> None:
        self.producer_state = producer_state
        self.linger = linger
        self.wake = wake
        self.nodes: dict[int, NodeQueue] = {}
        # Nodes that lead a ready partition, by id.
        self.ready_nodes: dict[int, NodeQueue] = {}
        # LEADERLESS partitions by topic.
        self.leaderless: dict[str, dict[PartitionQueue, None]] = {}
        # Open batches that linger, in the order of their deadlines.
        self._lingering: OrderedDict[ProducerBatch, None] = OrderedDict()
        # BACKING_OFF partitions by the end of their backoff. An entry stays when its partition changes its state.
        self._backoffs: list[tuple[float, int, PartitionQueue]] = []
        self._held: dict[PartitionQueue, None] = {}
        self._tie = count()

    # Batches

    def batch_opened(self, queue: PartitionQueue, batch: ProducerBatch, now: float, is_due: bool) -> None:
        """Let the new batch linger, unless it ``is_due`` at once."""
        if is_due or self.linger <= 0:
            batch.end_lingering()
            self.update(queue, now)
        else:
            self._lingering[batch] = None
            if len(self._lingering) == 1:
                self.wake()

    def batch_closed(self, batch: ProducerBatch) -> None:
        """A closed batch need not linger."""
        if self._lingering:
            self._lingering.pop(batch, None)

    def process_deadlines(self, now: float) -> None:
        """Make the partitions ready that have lingered or backed off long enough."""
        while self._lingering:
            batch = next(iter(self._lingering))
            if batch.created_at + self.linger > now:
                break
            self._end_lingering(batch, now)
        while self._backoffs and self._backoffs[0][0] <= now:
            queue = heapq.heappop(self._backoffs)[2]
            if queue.state == _BACKING_OFF and queue.backoff_until <= now:
                queue.set_state(_IDLE)
                self.update(queue, now)

    def end_lingering(self, now: float) -> None:
        """Let no batch linger any longer."""
        while self._lingering:
            self._end_lingering(next(iter(self._lingering)), now)

    def _end_lingering(self, batch: ProducerBatch, now: float) -> None:
        del self._lingering[batch]
        batch.end_lingering()
        if batch.queue is not None:
            self.update(batch.queue, now)

    def next_deadline(self) -> float:
        """Return when ``process_deadlines`` next has work; infinity for never."""
        deadline = float("inf")
        if self._lingering:
            batch = next(iter(self._lingering))
            deadline = batch.created_at + self.linger
        if self._backoffs:
            deadline = min(deadline, self._backoffs[0][0])
        return deadline

    # Partitions

    def back_off(self, queue: PartitionQueue, until: float) -> None:
        """Let the partition send nothing until then, or longer if it backs off already."""
        if until > queue.backoff_until:
            queue.backoff_until = until
            heapq.heappush(self._backoffs, (until, next(self._tie), queue))
            if queue.state != _BACKING_OFF:
                self._leave(queue, _BACKING_OFF)

    def leader(self, node_id: int) -> NodeQueue | None:
        """Return the queue of a node, ``None`` for a negative id."""
        if node_id < 0:
            return None
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = NodeQueue(node_id)
        return node

    def set_leader(self, queue: PartitionQueue, node: NodeQueue | None, now: float) -> None:
        """Set the partition's leader to another one, ``None`` for none."""
        if queue.state != _MUTED:
            self._leave(queue, _IDLE)
        queue.node = node
        # A retry need not wait for a broker that is not asked again (KIP-951).
        queue.backoff_until = 0.0
        self.update(queue, now)

    def forget(self, queue: PartitionQueue) -> None:
        """Remove the partition of a topic that metadata no longer follows."""
        self._leave(queue, _IDLE)
        queue.node = None

    def _leave(self, queue: PartitionQueue, state: int) -> None:
        """Set the partition's state, and remove it from the collection that belongs to the old state."""
        old = queue.state
        if old == _READY:
            node = queue.node
            assert node is not None
            del node.ready[queue]
            if not node.ready:
                self._nothing_ready(node)
        elif old == _HELD:
            del self._held[queue]
        elif old == _LEADERLESS:
            queues = self.leaderless[queue.topic]
            del queues[queue]
            if not queues:
                del self.leaderless[queue.topic]
        queue.set_state(state)

    def _nothing_ready(self, node: NodeQueue) -> None:
        self.ready_nodes.pop(node.node_id, None)
        node.waiting_since = None

    def update(self, queue: PartitionQueue, now: float) -> None:
        """Make the partition ready if its oldest batch may be sent; to be called when that may have changed."""
        state = queue.state
        if state in (_READY, _MUTED, _BACKING_OFF) or not queue.batches:
            return
        first = queue.batches[0]
        head = first.state
        if head != _DUE and head != _CLOSED:
            return
        node = queue.node
        if node is None:
            if state != _LEADERLESS:
                self._leave(queue, _LEADERLESS)
                self.leaderless.setdefault(queue.topic, {})[queue] = None
        else:
            if state != _IDLE:
                self._leave(queue, _IDLE)
            queue.set_state(_READY)
            node.ready[queue] = None
            if node.waiting_since is None:
                node.waiting_since = now
            self.ready_nodes[node.node_id] = node
        self.wake()

    def batch_withdrawn(self, queue: PartitionQueue) -> None:
        """Let a partition be idle after the removal of its oldest batch, if it has no other one to send."""
        if queue.state in (_READY, _LEADERLESS):
            head = queue.batches[0].state if queue.batches else None
            if head != _DUE and head != _CLOSED:
                self._leave(queue, _IDLE)

    def unmute(self, queue: PartitionQueue) -> None:
        """Let the partition send again: the request that carried its batch has ended."""
        if queue.state == _MUTED:
            queue.set_state(_IDLE)

    def unblock(self, queue: PartitionQueue, now: float) -> None:
        """Make the partition ready if it is: something that may have blocked it has ended."""
        self.producer_state.resolve(queue.sequences)
        if queue.state == _HELD:
            # ``drain`` asks again, if there is still a batch.
            self._leave(queue, _IDLE)
        self.update(queue, now)

    def unblock_held(self, now: float) -> None:
        """Unblock all partitions that ``ProducerState`` held: it has another producer id."""
        for queue in list(self._held):
            self.unblock(queue, now)

    def unknown_leader_topics(self) -> set[str]:
        """Return the topics with a batch to send and no leader to send it to."""
        for queues in list(self.leaderless.values()):
            # One partition of a topic is enough. Those without a batch are no longer leaderless.
            while queues and not (queue := next(iter(queues))).batches:
                self._leave(queue, _IDLE)
        return set(self.leaderless)

    def drain(
        self,
        node_id: int,
        now: float,
        max_request_size: int,
        one_in_flight: bool,
        finisher: BatchFinisher,
    ) -> list[ProducerBatch]:
        """Return the batches for one request; see ``RecordAccumulator.drain``."""
        drained: list[ProducerBatch] = []
        node = self.nodes.get(node_id)
        if node is None:
            return drained
        room = max_request_size
        # Partitions with more to send, which is for the next request.
        again: list[PartitionQueue] | None = None
        partitions = node.ready
        while partitions and len(drained) < BATCHES_PER_REQUEST:
            queue, _ = partitions.popitem(False)
            queue.set_state(_IDLE)
            head = queue.batches[0] if queue.batches else None
            if head is None or (head.state != _DUE and head.state != _CLOSED):
                continue
            if queue.sequences.bump_wanted:
                # It waited for a producer id, which has come without anything else happening to the partition.
                self.producer_state.resolve(queue.sequences)
            if not self.producer_state.may_send(head, queue.sequences):
                queue.set_state(_HELD)
                self._held[queue] = None
                continue
            if not finisher.finish_batch(queue, head, now):
                continue
            size = head.size()
            if size > room and drained:
                queue.set_state(_READY)
                partitions[queue] = None
                partitions.move_to_end(queue, False)
                break
            room -= size
            queue.take()
            self.producer_state.assign(head, queue.sequences)
            head.on_wire = True
            queue.on_wire += 1
            head.sent_to = node_id
            drained.append(head)
            if one_in_flight:
                queue.set_state(_MUTED)
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
            self._nothing_ready(node)
        return drained
