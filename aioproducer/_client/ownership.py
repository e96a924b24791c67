"""The life of a producer, and the errors for calls from a loop, thread or process that does not own it."""

from __future__ import annotations

from enum import Enum

from aioproducer.errors import KafkaError, ProducerClosedError, WrongCallerError

# No thread has this identity.
NO_THREAD = 0


class Life(Enum):
    """The states of a producer's life; only RUNNING accepts records."""

    NOT_STARTED = "not started"
    RUNNING = "running"
    CLOSED = "closed"
    # The event loop was closed before the producer.
    LOOP_CLOSED = "loop closed"
    # This process was forked from the one that started the producer.
    FORKED = "forked"


# The states that may follow each state. A fork of a fork is FORKED again.
NEXT_LIFE = {
    Life.NOT_STARTED: frozenset({Life.RUNNING, Life.CLOSED}),
    Life.RUNNING: frozenset({Life.CLOSED, Life.LOOP_CLOSED, Life.FORKED}),
    Life.CLOSED: frozenset({Life.CLOSED, Life.FORKED}),
    Life.LOOP_CLOSED: frozenset({Life.FORKED}),
    Life.FORKED: frozenset({Life.FORKED}),
}

_WHY_NOT_RUNNING: dict[Life, tuple[type[KafkaError], str]] = {
    Life.NOT_STARTED: (
        WrongCallerError,
        "this producer is not started: use `async with Producer(...)`, or await start() first",
    ),
    Life.CLOSED: (ProducerClosedError, "this producer is closed: create a new one"),
    Life.LOOP_CLOSED: (
        ProducerClosedError,
        "this producer's event loop is closed, so it can no longer send records: create a new producer on a running "
        "loop, and close it before its loop (`async with Producer(...)`)",
    ),
    Life.FORKED: (
        WrongCallerError,
        "this producer belongs to the parent process: create one in this process, after the fork",
    ),
}


def not_running(life: Life) -> KafkaError:
    """Return the error of a call in any state but RUNNING."""
    kind, text = _WHY_NOT_RUNNING[life]
    return kind(text)


def wrong_thread(life: Life) -> KafkaError:
    """Return the error of a call from a thread that does not own the producer; only a running producer has an owner."""
    if life is not Life.RUNNING:
        return not_running(life)
    return WrongCallerError(
        "this producer belongs to another thread: call producer.threadsafe() in that thread, once, and use the result "
        "here"
    )


def wrong_loop() -> WrongCallerError:
    """Return the error of a call on another event loop than the producer's."""
    return WrongCallerError("this producer belongs to another event loop: create one on this loop")
