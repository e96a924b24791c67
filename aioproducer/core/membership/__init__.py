"""Membership of one consumer in a group, by the classic protocol (Kafka's ``ConsumerCoordinator``), without IO.

``GroupMembership`` decides; it reads no clock and no socket. Its owner does three things, in any order:

- It passes the application's wishes: ``subscribe``, ``unsubscribe``, ``polled`` (the application asked for records),
  ``commit``, ``fetch_offsets``, ``leave``, and the metadata of ``watched_topics`` through ``update_metadata``.
- It sends the requests that ``poll(now)`` returns until that returns None, and passes each response to ``answered``, or
  the end of the connection to ``disconnected``. It calls ``poll`` again at ``wake_at``, and after each other call.
- It runs the application's listener for each ``RebalanceEvent`` in ``event``, and then calls ``confirm``.

What the owner reads: ``assignment`` (the partitions that may be read), ``event`` (partitions to revoke, lost or
assigned, which awaits its confirmation), ``state``, ``error``, ``group_metadata()``.

States (``states.NEXT_STATES`` is the table; any other transition raises):

========================  =============================================================================================
unjoined                  no member of a group: nothing is subscribed, or the application stopped asking for records
finding the coordinator   the member wants to join, and waits for the lookup, or for the backoff before it
joining                   JoinGroup waits to be sent, is in flight, or waits for its backoff
awaiting its assignment   in a generation; the leader computes the assignment, and SyncGroup returns it
stable                    in a generation, with its assignment
revoking                  in a generation; revoked partitions await their confirmation before the member joins again,
                          leaves, or takes over the rest of a cooperative assignment
leaving                   LeaveGroup waits for its response
fenced                    another member with the same ``group.instance.id`` has replaced this one: final
failed                    an error that no retry cures; ``restart`` returns to unjoined, as Java's ``poll`` does
========================  =============================================================================================

The coordinator is known or not in each of these states: a stable member that loses its coordinator stays in its
generation, looks the coordinator up, and goes on with its heartbeats.

Rebalances. Kafka's consumer joins only inside of ``poll``, with the application's thread. Here the application goes on,
so the join waits in "revoking" for the confirmation, which the owner gives when the application has asked for its next
record and the listener has returned. Until then the member stays in its generation, sends heartbeats and may commit.
With an eager assignor the event has all partitions; with a cooperative one (KIP-429) the partitions whose topics are no
longer subscribed before the join, and those that the assignment lacks after it. A member that has lost its generation
lets go of everything as lost, and may not commit. If the confirmation, or ``polled``, takes longer than
``max_poll_interval``, the member leaves the group (a static one only stops its heartbeats), and joins again at the next
``polled``.

Requests have four lanes with one request in flight in each: the lookup; JoinGroup, SyncGroup and LeaveGroup; the
heartbeat; offsets. A broker answers the requests of a connection in order, so a heartbeat waits behind a SyncGroup
there: Kafka counts a member that awaits its join or its assignment as alive. LeaveGroup cannot wait so:
``GroupRequest.needs_new_connection`` is then True.

Modules: ``states``; ``requests`` (lanes, messages); ``answers`` (the effect of each error code on each request);
``events`` and settings; ``deadlines`` (heartbeat, session, poll interval); ``subscription`` (the bytes that members
exchange); ``leading`` (the leader's part); ``offsets`` (commits and fetches in their queues); ``member`` (states, and
what changes them besides responses); ``membership`` (the machine); and ``assignors``, whose results equal Kafka's.
"""
