"""The life of a producer: legal transitions, and the errors of calls in each state."""

from __future__ import annotations

import pytest

from aioproducer import Producer
from aioproducer._client import ownership
from aioproducer._client.ownership import NEXT_LIFE, NO_THREAD, Life
from aioproducer.errors import KafkaError, ProducerClosedError, WrongCallerError

LEGAL = [(life, following) for life in Life for following in Life if following in NEXT_LIFE[life]]
ILLEGAL = [(life, following) for life in Life for following in Life if following not in NEXT_LIFE[life]]


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (
            ownership.not_running(Life.NOT_STARTED),
            WrongCallerError,
            "use `async with Producer(...)`, or await start() first",
        ),
        (ownership.not_running(Life.CLOSED), ProducerClosedError, "create a new one"),
        (ownership.not_running(Life.LOOP_CLOSED), ProducerClosedError, "create a new producer on a running loop"),
        (ownership.not_running(Life.FORKED), WrongCallerError, "create one in this process, after the fork"),
        (ownership.wrong_loop(), WrongCallerError, "create one on this loop"),
        (
            ownership.wrong_thread(Life.RUNNING),
            WrongCallerError,
            "call producer.threadsafe() in that thread, once",
        ),
    ],
)
def test_each_error_says_what_to_do(error: KafkaError, kind: type[KafkaError], advice: str) -> None:
    assert type(error) is kind
    assert advice in str(error)


@pytest.mark.parametrize("life", [life for life in Life if life is not Life.RUNNING])
def test_a_call_from_another_thread_raises_not_running_unless_the_producer_runs(life: Life) -> None:
    assert str(ownership.wrong_thread(life)) == str(ownership.not_running(life))


@pytest.mark.parametrize(("life", "following"), LEGAL)
def test_only_a_running_producer_has_an_owner_thread(life: Life, following: Life) -> None:
    producer = Producer(bootstrap_servers="localhost:9092")
    producer._life = life
    producer._enter(following)
    assert producer._life is following
    assert (producer._owner_thread != NO_THREAD) == (following is Life.RUNNING)
    producer._life = Life.CLOSED


@pytest.mark.parametrize(("life", "following"), ILLEGAL)
def test_an_illegal_transition_raises_and_changes_nothing(life: Life, following: Life) -> None:
    producer = Producer(bootstrap_servers="localhost:9092")
    producer._life = life
    with pytest.raises(AssertionError, match=f"is {life.value} cannot become {following.value}"):
        producer._enter(following)
    assert producer._life is life
    producer._life = Life.CLOSED
