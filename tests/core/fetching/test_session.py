"""Incremental fetch sessions: what a request contains, and when a session begins again."""

from __future__ import annotations

import pytest

from aioproducer.core.fetching.session import NO_TOPIC_ID, FetchSession, SessionPartition
from aioproducer.protocol.messages.fetch import FetchableTopicResponse, FetchResponse
from aioproducer.record import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": b"a" * 16, "b": b"b" * 16}


def at(offset, topic="a", **options):
    return SessionPartition(options.get("topic_id", IDS[topic]), offset, 1000, options.get("leader_epoch", 3))


def sent(request):
    return [(topic.topic, each.partition, each.fetch_offset) for topic in request.topics for each in topic.partitions]


def forgotten(request):
    return [(topic.topic, topic.topic_id, list(topic.partitions)) for topic in request.forgotten]


def begun():
    session = FetchSession()
    request = session.build({A0: at(5), A1: at(6), B0: at(7, "b")})
    assert (request.session_id, request.epoch) == (0, 0)
    assert sent(request) == [("a", 0, 5), ("a", 1, 6), ("b", 0, 7)]
    session.answered(FetchResponse(session_id=42))
    return session


def test_a_request_in_a_session_contains_only_changes():
    session = begun()
    request = session.build({A0: at(5), A1: at(9), B0: at(7, "b")})
    assert (request.session_id, request.epoch, sent(request), request.forgotten) == (42, 1, [("a", 1, 9)], [])
    session.answered(FetchResponse(session_id=42))
    request = session.build({A0: at(5), A1: at(9)})
    assert (request.epoch, sent(request), forgotten(request)) == (2, [], [("b", IDS["b"], [0])])


def test_the_order_of_partitions_is_that_of_the_caller():
    assert sent(FetchSession().build({A1: at(1), B0: at(2, "b"), A0: at(3)})) == [("a", 1, 1), ("b", 0, 2), ("a", 0, 3)]


def test_a_recreated_topic_replaces_the_old_one():
    session = begun()
    request = session.build({A0: at(0, topic_id=b"n" * 16), A1: at(6), B0: at(7, "b")})
    assert sent(request) == [("a", 0, 0)]
    assert forgotten(request) == [("a", IDS["a"], [0])]


@pytest.mark.parametrize(("code", "id_after"), [(70, 0), (71, 42), (106, 42)])
def test_after_an_error_the_next_request_is_full(code, id_after):
    session = begun()
    session.build({A0: at(5)})
    session.answered(FetchResponse(error_code=code))
    request = session.build({A0: at(5)})
    assert (request.session_id, request.epoch, sent(request)) == (id_after, 0, [("a", 0, 5)])


def test_after_a_failure_the_next_request_replaces_the_session():
    session = begun()
    session.build({A0: at(5)})
    session.failed()
    request = session.build({A0: at(5)})
    assert (request.session_id, request.epoch, sent(request)) == (42, 0, [("a", 0, 5)])


def test_without_a_session_every_request_is_full():
    session = FetchSession()
    for _ in range(2):
        request = session.build({A0: at(5)})
        assert (request.session_id, request.epoch, sent(request)) == (0, 0, [("a", 0, 5)])
        session.answered(FetchResponse(session_id=0))
    assert session.end() is None


def test_a_session_uses_either_ids_or_names():
    session = begun()
    request = session.build({A0: at(5, topic_id=NO_TOPIC_ID)})
    assert (request.session_id, request.epoch, sent(request)) == (42, 0, [("a", 0, 5)])


def test_the_epoch_after_the_largest_is_1():
    session = begun()
    session._epoch = 2**31 - 1
    session.build({A0: at(5)})
    session.answered(FetchResponse(session_id=42))
    assert session.build({A0: at(5)}).epoch == 1


def test_the_end_is_told_once():
    session = begun()
    ended = session.end()
    assert (ended.session_id, ended.epoch) == (42, -1)
    assert session.end() is None


def test_topics_of_a_response_are_found_by_name_or_id():
    session = begun()
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(topic="x"),
            FetchableTopicResponse(topic_id=IDS["b"]),
            FetchableTopicResponse(topic_id=b"?" * 16),
        ]
    )
    assert session.names(response) == ["x", "b", None]
