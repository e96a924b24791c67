"""Compiled. A connection over a queue pair.

Written data goes into the peer's ring by RDMA WRITE with immediate. Received data is delivered where the card has put
it, in the receive ring.

Usually only received data wakes the loop, which then finds that earlier writes have completed: one wake-up for a
request and its answer instead of two. If something needs a write to complete, every completion wakes the loop
(``_request_send_completions``).

The TCP connection of the handshake stays open. Nothing is sent on it; its end shows at once that the peer has gone,
also while this side sends nothing. Everything runs on the loop, called when the completion channel is readable. Only
calls that may block, above all destroying, run in the device's thread.

``channel_state`` lists the states of a connection.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from aioproducer._common.views import part_of
from aioproducer.transport.base import Buffer, TransportHandler
from aioproducer.transport.rdma.answers import Answers
from aioproducer.transport.rdma.channel_state import ChannelEvent, ChannelState, PeerState, next_state
from aioproducer.transport.rdma.counters import Counters
from aioproducer.transport.rdma.executor import RECEIVE_ID, DevicePool, Link, SharedDevice
from aioproducer.transport.rdma.failures import reset, status_error, with_peer_name
from aioproducer.transport.rdma.gathering import Unsent
from aioproducer.transport.rdma.handshake import RingFacts
from aioproducer.transport.rdma.ring import (
    MessageKind,
    PeerRing,
    ReceiveRing,
    RingError,
    SendQueue,
    decode_immediate,
    encode_immediate,
)
from aioproducer.transport.rdma.verbs import CompletionStatus
from aioproducer.transport.rdma.work_requests import Completion, Write

_logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""Bytes of one write, and so of one ``data_received``. Requests of several batches are seldom larger."""
_BYTES_PER_CALLBACK: Final = 256 * 1024
_COMPLETIONS_PER_POLL: Final = 32
_POLLS_PER_CALLBACK: Final = 8
_MANY_LENT: Final = 16
"""Most writes that may wait for received data to give their memory back; with more, every completion is requested."""


class Control(Protocol):
    """The TCP connection beside the queue pair."""

    def close(self) -> None: ...

    def abort(self) -> None: ...


# Plain integers, compared with every message: an Enum's member costs a call in Python 3.11.
_OPEN = int(ChannelState.OPEN)
_FLUSHING = int(ChannelState.FLUSHING)
_LINGERING = int(ChannelState.LINGERING)
_ACKNOWLEDGED = int(ChannelState.ACKNOWLEDGED)
_FAILED = int(ChannelState.FAILED)
_STOPPED = int(ChannelState.STOPPED)
_CLOSING = int(ChannelState.CLOSING)
_RELEASED = int(ChannelState.RELEASED)
_PEER_SENDING = int(PeerState.SENDING)
_GOODBYE_RECEIVED = int(PeerState.GOODBYE_RECEIVED)
_GOODBYE_DELIVERED = int(PeerState.GOODBYE_DELIVERED)
_SUCCESS = int(CompletionStatus.SUCCESS)
_DATA = int(MessageKind.DATA)
_CREDITS = int(MessageKind.CREDITS)
_GOODBYE = int(MessageKind.GOODBYE)


class RdmaTransport:
    """One side of a connection over a queue pair; a ``Transport``. Made by ``RdmaConnector`` and ``RdmaListener``."""

    def __init__(
        self,
        devices: DevicePool,
        shared: SharedDevice,
        link: Link,
        control: Control,
        peer: str,
        peer_ring: RingFacts,
        counters: Counters,
        *,
        zero_copy: bool,
        linger_timeout: float,
    ) -> None:
        self._devices = devices
        self._shared = shared
        self._loop = shared.loop
        self._link: Link | None = link
        self._queue_pair = link.queue_pair
        # A run that crosses the end of the send ring takes two pieces.
        self._max_pieces = link.queue_pair.max_pieces - 1
        self._control = control
        self._control_ended = False
        self._handler: TransportHandler | None = None
        self._peer = peer
        self._counters = counters
        self._linger_timeout = linger_timeout
        self._linger_timer: asyncio.TimerHandle | None = None

        sizes = link.sizes
        self._remote_address = peer_ring.address
        self._write = Write(remote_key=peer_ring.key)
        """The work request that is posted next."""
        self._peer_ring = PeerRing(peer_ring.size, peer_ring.slots, peer_ring.controls)
        self._receive_ring = ReceiveRing(sizes.ring_bytes, sizes.slots, sizes.controls)
        self._received = memoryview(link.receive_memory)
        self._queue = SendQueue(sizes.send_depth, sizes.send_reserve, sizes.ring_bytes)
        self._answers = Answers(self._loop, self._queue, self._take_completions)
        self._unsent = Unsent(
            self._queue,
            link.send_memory,
            link.send_region.address,
            link.send_region.local_key,
            shared.memories if zero_copy else {},
            self._write,
        )
        # At most half of the peer's ring, so that the peer reads one half while the other is written.
        self._max_message = min(MAX_MESSAGE_BYTES, max(peer_ring.size // 2, 1))

        self._state = _OPEN
        """A ``ChannelState``."""
        self._peer_state = _PEER_SENDING
        """A ``PeerState``."""
        self._receives_to_post = 0
        """Consumed receives that must be posted again before the peer learns of the credits."""
        self._protocol_violated = False
        """The peer violated the protocol: later messages cannot be located in the ring."""
        self._goodbye_id = -1
        """The work request of this side's goodbye; all data is posted before it."""
        self._reading_paused = False
        self._watching = False
        # The link has requested it.
        self._all_requested = True
        """Every completion causes an event; otherwise only those of receives do."""
        self._blocked_to = 0
        """End of the last write that had to wait: its caller may have stopped until it is done."""
        self._progress_scheduled = False
        self._failure: Exception | None = None

    def serve(self, handler: TransportHandler) -> None:
        """Call ``handler`` back from now on, and start receiving."""
        self._handler = handler
        if self._may_post():
            self._watching = True
            self._loop.add_reader(self._queue_pair.completion_fd, self._take_completions)

    @property
    def peer(self) -> str:
        """``host:port`` as connected to, or as accepted from."""
        return self._peer

    def write(self, buffers: Sequence[Buffer]) -> bool:
        """Send ``buffers`` one after the other; see ``Transport.write``.

        Raises:
            TypeError: something in ``buffers`` has no contiguous bytes; nothing of this call is sent.
        """
        if self._state != _OPEN:
            return True
        queue = self._queue
        unsent = self._unsent
        fits_now = not unsent.waiting and queue.may_post()
        size = unsent.take(buffers, self._room(), self._max_pieces) if fits_now else 0
        if size:
            queue.written(size)
            self._post_data(size)
        else:
            queue.written(unsent.add(buffers))
            self._send()
        if queue.written_to <= queue.done_to():
            return True
        queue.owe()
        if unsent.waiting:
            self._blocked_to = queue.written_to
        self._request_send_completions()
        return False

    @property
    def is_writable(self) -> bool:
        """Whether no data waits for credits or room; see ``Transport.is_writable``."""
        return self._state == _OPEN and not self._unsent.waiting

    def pause_reading(self) -> None:
        """Deliver nothing until ``resume_reading``; the peer gets no credits and must wait once it has none left."""
        self._reading_paused = True
        if self._has_failed():
            # To complete the writes that are still pending.
            self._schedule_progress()

    def resume_reading(self) -> None:
        """Resume delivery."""
        if self._reading_paused:
            self._reading_paused = False
            self._schedule_progress()

    def close(self) -> None:
        """Send the data written so far, then end the connection; see ``Transport.close``."""
        if self._has_failed():
            self._end(self._failure)
        elif self._state == _OPEN:
            self._advance(ChannelEvent.CLOSE_CALLED)
            self._schedule_progress()

    def abort(self) -> None:
        """End the connection at once; the peer sees a reset."""
        self._end(None, reset=True)

    def _advance(self, event: ChannelEvent) -> None:
        self._state = next_state(self._state, event)

    def _may_post(self) -> bool:
        return self._state <= _ACKNOWLEDGED

    def _has_failed(self) -> bool:
        return self._state == _FAILED or self._state == _STOPPED

    def _has_ended(self) -> bool:
        return self._state >= _CLOSING

    # Sending

    def _room(self) -> int:
        """Return how many bytes the next write may have, given the room that the peer has."""
        return min(self._peer_ring.room(), self._max_message)

    def _send(self) -> None:
        """Post as much unsent data as there are credits and room for."""
        try:
            while self._unsent.waiting and self._queue.may_post():
                room = self._room()
                size = self._unsent.gather(room, self._max_pieces) if room else 0
                if not size:
                    return
                self._post_data(size)
        except Exception as error:
            self._fail(with_peer_name(self._peer, error))

    def _post_data(self, size: int) -> None:
        """Post one write of ``size`` bytes that were just taken or gathered."""
        unsent = self._unsent
        queue = self._queue
        counters = self._counters
        try:
            offset = self._peer_ring.take(size)
            wanted = not unsent.waiting and (unsent.lent is not None or queue.lent > 0)
            work_request_id, signaled = queue.posted(size, unsent.copied, unsent.lent, wanted)
            self._post(work_request_id, offset, _DATA, signaled)
            counters.bytes_sent += size
            counters.bytes_copied += unsent.copied
        except Exception as error:
            self._fail(with_peer_name(self._peer, error))

    def _post(self, work_request_id: int, offset: int, kind: int, signaled: bool) -> None:
        data_freed = controls_freed = 0
        if kind != _DATA or self._receive_ring.attaches_credits():
            if self._receives_to_post:
                # Before the peer learns that it may use them.
                self._queue_pair.post_receives([RECEIVE_ID] * self._receives_to_post)
                self._receives_to_post = 0
            data_freed, controls_freed = self._receive_ring.take_credits()
        write = self._write
        write.work_request_id = work_request_id
        write.remote_address = self._remote_address + offset
        write.immediate = encode_immediate(kind, data_freed, controls_freed)
        write.signaled = signaled
        self._queue_pair.post_write(write)
        counters = self._counters
        counters.writes_posted += 1
        counters.signals += signaled

    def _post_control(self, kind: int) -> None:
        work_request_id, signaled = self._queue.posted(0, 0, None, kind == _GOODBYE)
        if kind == _GOODBYE:
            self._goodbye_id = work_request_id
        self._write.clear()
        try:
            self._post(work_request_id, 0, kind, signaled)
        except Exception as error:
            self._fail(with_peer_name(self._peer, error))

    def _return_credits(self) -> None:
        if self._peer_ring.free_controls and self._queue.may_post_control():
            self._peer_ring.take_control()
            self._post_control(_CREDITS)

    def _post_goodbye(self) -> None:
        """Post the goodbye once all data is sent and read."""
        if not self._unsent.waiting and not self._queue.lent and self._queue.may_post_goodbye():
            self._advance(ChannelEvent.GOODBYE_POSTED)
            self._linger_timer = self._loop.call_later(self._linger_timeout, self._linger_expired)
            self._post_control(_GOODBYE)

    def _report_completed(self, count: int) -> None:
        """Report ``count`` writes, if any, as completed: their buffers are no longer read."""
        if count:
            assert self._handler is not None
            try:
                self._handler.write_completed(count)
            except (Exception, asyncio.CancelledError) as error:
                self._handler_failed(error, "write_completed")

    # Receiving

    def _take_completions(self) -> None:
        """Handle completions, up to a limit per callback; the next completion makes the channel readable again."""
        if not self._watching:
            return
        failure = self._poll(_POLLS_PER_CALLBACK)
        if failure is not None:
            self._fail(failure)
        self._make_progress()

    def _needs_send_completions(self) -> bool:
        """Whether something needs the completion of sends.

        Otherwise only lent memory does, which ``Answers`` takes care of. A failure flushes the posted receives and so
        shows without it: receives are posted until the peer has said goodbye.
        """
        return (
            self._state != _OPEN
            or self._answers.missing
            or self._peer_state != _PEER_SENDING
            or self._unsent.waiting
            or self._queue.lent > _MANY_LENT
            or self._queue.done_to() < self._blocked_to
            or self._receive_ring.owes_credits()
        )

    def _request_send_completions(self) -> None:
        """Request an event for every completion if something needs the completion of sends."""
        if self._all_requested or not self._watching:
            return
        if self._needs_send_completions():
            self._all_requested = True
            # The poll requests the event, and finds completions that came before.
            self._loop.call_soon(self._take_completions)
        elif self._queue.lent:
            self._answers.start_timer()

    def _poll(self, most: int | None) -> Exception | None:
        """Handle completions until none is left, or ``most`` polls, then go on in a later callback; return a failure.

        Notification is requested first: later completions cause an event, earlier ones are found here.
        """
        failure: Exception | None = None
        polls = 0
        self._all_requested = self._needs_send_completions()
        try:
            completions = self._queue_pair.next_completions(_COMPLETIONS_PER_POLL, not self._all_requested)
            while True:
                self._counters.completions += len(completions)
                for completion in completions:
                    found = self._handle_completion(completion)
                    if failure is None:
                        # The first failure is the cause, later ones were flushed.
                        failure = found
                if len(completions) < _COMPLETIONS_PER_POLL:
                    return failure
                polls += 1
                # The peer's last messages may lie behind a failure.
                if failure is None and polls == most:
                    self._loop.call_soon(self._take_completions)
                    return None
                completions = self._queue_pair.poll(_COMPLETIONS_PER_POLL)
        except Exception as error:
            return failure or with_peer_name(self._peer, error)

    def _handle_completion(self, completion: Completion) -> Exception | None:
        if completion.status != _SUCCESS:
            return status_error(self._peer, completion.status)
        if not completion.received:
            self._queue.completed(completion.work_request_id)
            # Credits posted behind the goodbye complete after it.
            if self._state == _LINGERING and self._goodbye_id <= completion.work_request_id:
                self._advance(ChannelEvent.GOODBYE_COMPLETED)
            return None
        if self._protocol_violated:
            return None
        try:
            self._handle_message(completion.immediate, completion.length)
        except RingError as error:
            self._protocol_violated = True
            return RingError(errno.EPROTO, f"{self._peer} violated the RDMA protocol: {error}")
        return None

    def _handle_message(self, immediate: int, length: int) -> None:
        kind, data_freed, controls_freed = decode_immediate(immediate)
        self._peer_ring.freed(data_freed, controls_freed)
        if self._peer_state != _PEER_SENDING and kind != _CREDITS:
            raise RingError("it sent a message after its goodbye")
        if kind == _DATA:
            self._answers.received()
            self._receive_ring.arrived(length)
            return
        if length:
            raise RingError(f"{length} bytes in a message that has none")
        if kind == _CREDITS:
            self._receive_ring.control_arrived()
            self._receives_to_post += 1
        else:
            self._peer_state = _GOODBYE_RECEIVED

    def _schedule_progress(self) -> None:
        if not self._progress_scheduled and self._state < _CLOSING:
            self._progress_scheduled = True
            self._loop.call_soon(self._run_scheduled_progress)

    def _run_scheduled_progress(self) -> None:
        self._progress_scheduled = False
        self._make_progress()

    def _make_progress(self) -> None:
        """Give memory back, deliver received data, send what can be sent, and end a connection that is finished."""
        # First, so that a handler that sends more on delivery finds the memory free.
        if self._queue.owed and self._may_post():
            self._report_completed(self._queue.take_done())
        self._deliver_pending()
        # Each step may find that the connection has failed.
        if self._unsent.waiting and self._may_post():
            self._send()
        # A peer that has said goodbye needs no credits, and may be gone at any moment.
        if self._receive_ring.owes_credits() and self._peer_state == _PEER_SENDING and self._may_post():
            self._return_credits()
        if self._queue.owed and self._may_post():
            self._report_completed(self._queue.take_done())
        if self._state == _FLUSHING:
            self._post_goodbye()
        if self._state == _ACKNOWLEDGED:
            if self._peer_state != _PEER_SENDING or self._control_ended:
                self._end(None)
        elif self._state == _STOPPED:
            if self._reading_paused:
                self._report_completed(self._queue.take_owed())
            elif not self._is_pending():
                self._end(self._failure)
        self._request_send_completions()

    def _is_pending(self) -> bool:
        """Whether received data or the peer's goodbye is not delivered yet."""
        return self._receive_ring.waiting > 0 or self._peer_state == _GOODBYE_RECEIVED

    def _deliver_pending(self) -> None:
        ring = self._receive_ring
        delivered = 0
        while self._state < _CLOSING and self._is_pending():
            is_wanted = self._state == _OPEN or self._state == _FAILED or self._state == _STOPPED
            if is_wanted and self._reading_paused:
                return
            if delivered >= _BYTES_PER_CALLBACK:
                self._schedule_progress()
                return
            if not ring.waiting:
                self._peer_state = _GOODBYE_DELIVERED
                if is_wanted:
                    self._end(self._failure)
                return
            offset, length = ring.oldest()
            if is_wanted:
                self._deliver(part_of(self._received, offset, length))
            delivered += length
            ring.consumed()
            self._receives_to_post += 1

    def _deliver(self, data: memoryview) -> None:
        """Deliver ``data``; a handler that keeps it is left with a released memoryview, not with bytes that change."""
        assert self._handler is not None
        try:
            try:
                self._handler.data_received(data)
            finally:
                data.release()
        except (Exception, asyncio.CancelledError) as error:
            self._handler_failed(error, "data_received")

    # Ending

    def control_lost(self, exception: Exception | None) -> None:
        """Handle the end of the TCP connection, by the peer or by this side."""
        self._control_ended = True
        if self._has_ended():
            self._report_if_released()
            return
        if self._has_failed():
            return
        error = exception or reset(self._peer, "the peer has gone without a goodbye")
        # Messages that the peer sent before it went have arrived, but may not have been handled.
        failure = self._poll(None)
        if self._state == _OPEN:
            self._fail(None if self._peer_state != _PEER_SENDING else error)
            self._make_progress()
        elif self._state == _ACKNOWLEDGED or not self._queue.under_way:
            self._end(None if not self._unsent.waiting else error)
        elif failure is not None or exception is not None or self._state != _LINGERING:
            self._end(error if failure is None else failure)
        # Otherwise the peer was killed, or has ended its side after the goodbye, which has yet to complete here.

    def control_data_received(self) -> None:
        """Handle data on the TCP connection, on which nothing may follow the handshake."""
        self._fail(
            RingError(errno.EPROTO, f"{self._peer} violated the RDMA protocol: it sent data after the handshake")
        )

    def _linger_expired(self) -> None:
        lost = (
            None
            if self._state == _ACKNOWLEDGED
            else reset(self._peer, f"the peer did not receive all data within {self._linger_timeout} s")
        )
        self._end(lost, reset=True)

    def _fail(self, failure: Exception | None) -> None:
        """Stop sending; of several failures the first one counts."""
        if self._state != _OPEN:
            if self._may_post():
                self._end(None if self._state == _ACKNOWLEDGED else failure, reset=True)
            return
        self._advance(ChannelEvent.SENDING_FAILED)
        self._failure = failure
        self._unsent.clear()
        self._stop_watching()
        if not self._control_ended:
            self._control.abort()
        self._shared.run(self._queue_pair.close).add_done_callback(self._queue_pair_closed)

    def _queue_pair_closed(self, closing: asyncio.Future[None]) -> None:
        self._log_failure(closing)
        if self._state == _FAILED:
            self._advance(ChannelEvent.QUEUE_PAIR_DESTROYED)
            self._make_progress()

    def _handler_failed(self, error: Exception | asyncio.CancelledError, callback: str) -> None:
        self._loop.call_exception_handler(
            {
                "message": f"{callback} raised an exception; the connection to {self._peer} is given up",
                "exception": error,
                "transport": self,
            }
        )
        if isinstance(error, Exception):
            lost = error
        else:
            # It comes from a cancelled future; a task would take it as its own cancellation.
            lost = ConnectionAbortedError(errno.ECONNABORTED, f"{self._peer}: {callback} raised {error!r}")
            lost.__cause__ = error
        self._end(lost, reset=True)

    def _stop_watching(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._queue_pair.completion_fd)
        self._answers.stop()

    def _end(self, exception: Exception | None, *, reset: bool = False) -> None:
        """End the connection: the TCP connection first, to notify the peer, then the queue pair in the thread."""
        if self._has_ended():
            return
        self._advance(ChannelEvent.ENDED)
        self._failure = exception
        self._unsent.clear()
        self._stop_watching()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if not self._control_ended:
            if reset or exception is not None:
                self._control.abort()
            else:
                self._control.close()
        assert self._link is not None
        self._shared.run(self._link.close).add_done_callback(self._link_closed)

    def _link_closed(self, closing: asyncio.Future[None]) -> None:
        self._log_failure(closing)
        self._received.release()
        self._unsent.close()
        self._link = None
        self._devices.release(self._shared).add_done_callback(self._released)

    def _released(self, released: asyncio.Future[None]) -> None:
        self._advance(ChannelEvent.CARD_RELEASED)
        self._report_if_released()

    def _report_if_released(self) -> None:
        if self._state == _RELEASED and self._control_ended:
            self._advance(ChannelEvent.LOSS_REPORTED)
            handler, self._handler = self._handler, None
            assert handler is not None
            handler.connection_lost(self._failure)

    def _log_failure(self, closing: asyncio.Future[None]) -> None:
        error = closing.exception()
        if error is not None:
            _logger.error("Closing the RDMA connection to %s failed: %s", self._peer, error)
