"""The chain of interceptors: order, error handling, and which methods are called."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from aioproducer.interceptors import InterceptorChain, ProducerInterceptor
from aioproducer.record import HeaderPair, Record, RecordHeader, RecordMetadata

RECORD = Record("clicks", "v", headers=[("h", b"1")])
METADATA = RecordMetadata("clicks", 0, 5, 1)


class Appending(ProducerInterceptor):
    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.closed = 0

    def on_send(self, record: Record) -> Record:
        return record.replace(value=f"{record.value}{self.mark}")

    def close(self) -> None:
        self.closed += 1


class Failing:
    def on_send(self, record: Record) -> Record:
        raise ValueError("broken")

    def on_acknowledgement(self, metadata: RecordMetadata, exception: BaseException | None) -> None:
        raise ValueError("broken")

    def close(self) -> None:
        raise ValueError("broken")


class Witness:
    def __init__(self) -> None:
        self.seen: list[tuple[RecordMetadata, BaseException | None]] = []

    def on_acknowledgement(self, metadata: RecordMetadata, exception: BaseException | None) -> None:
        self.seen.append((metadata, exception))


class HeaderWitness:
    def __init__(self) -> None:
        self.seen: list[Sequence[HeaderPair]] = []

    def on_acknowledgement(
        self, metadata: RecordMetadata, exception: BaseException | None, headers: Sequence[HeaderPair]
    ) -> None:
        self.seen.append(headers)


class HeaderAppending:
    def __init__(self, *added: Any) -> None:
        self.added = added
        self.seen: list[tuple[str, list[HeaderPair]]] = []

    def on_headers(self, topic: str, headers: list[HeaderPair]) -> None:
        self.seen.append((topic, list(headers)))
        headers.extend(self.added)


def test_headers_are_appended_in_order() -> None:
    first, second = HeaderAppending(("a", b"1")), HeaderAppending(("b", None), RecordHeader("c", bytearray(b"3")))
    chain = InterceptorChain([first, second])
    assert (chain.wants_records, chain.wants_headers, chain.wants_acknowledgements) == (False, True, False)
    headers: list[HeaderPair] = [("h", b"0")]
    chain.on_headers("clicks", headers)
    assert first.seen == [("clicks", [("h", b"0")])]
    assert second.seen == [("clicks", [("h", b"0"), ("a", b"1")])]
    assert headers == [("h", b"0"), ("a", b"1"), ("b", None), ("c", b"3")]
    assert {type(value) for _, value in headers} == {bytes, type(None)}


@pytest.mark.parametrize("wrong", [("traceparent", "a str"), (b"name", b"1"), ("one",), "ab", 5, None])
def test_the_changes_of_an_interceptor_that_leaves_a_malformed_header_are_undone(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    headers: list[HeaderPair] = [("h", b"0")]
    InterceptorChain([HeaderAppending(("a", b"1"), wrong), HeaderAppending(("b", b"2"))]).on_headers("t", headers)
    assert headers == [("h", b"0"), ("b", b"2")]
    [line] = caplog.messages
    assert "interceptor HeaderAppending failed in on_headers of a record for topic t; it is skipped" in line
    assert "header" in caplog.text


def test_the_changes_of_an_interceptor_that_raises_are_undone(caplog: pytest.LogCaptureFixture) -> None:
    class Clearing:
        def on_headers(self, topic: str, headers: list[HeaderPair]) -> None:
            headers.clear()
            headers.append(("x", b"1"))
            raise ValueError("broken")

    headers: list[HeaderPair] = [("h", b"0"), ("i", None)]
    InterceptorChain([Clearing()]).on_headers("t", headers)
    assert headers == [("h", b"0"), ("i", None)]
    assert "broken" in caplog.text


def test_an_empty_chain_changes_nothing() -> None:
    chain = InterceptorChain()
    assert (chain.wants_records, chain.wants_headers, chain.wants_acknowledgements) == (False, False, False)
    assert chain.on_send(RECORD) is RECORD
    chain.on_acknowledgement(METADATA, None)
    chain.close()


def test_records_pass_through_in_order() -> None:
    chain = InterceptorChain([Appending("1"), Appending("2")])
    assert (chain.wants_records, chain.wants_acknowledgements) == (True, False)
    assert chain.on_send(RECORD).value == "v12"


def test_a_raising_interceptor_is_skipped_and_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    chain = InterceptorChain([Appending("1"), Failing(), Appending("2")])
    with caplog.at_level(logging.WARNING, "aioproducer"):
        assert chain.on_send(RECORD).value == "v12"
    (entry,) = caplog.records
    assert "interceptor Failing failed in on_send of a record for topic clicks, partition None" in entry.getMessage()
    assert entry.exc_info is not None
    assert str(entry.exc_info[1]) == "broken"


def test_a_return_value_that_is_not_a_record_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful:
        def on_send(self, record: Record) -> None:
            return None

    assert InterceptorChain([Forgetful(), Appending("2")]).on_send(RECORD).value == "v2"
    assert "Forgetful.on_send must return a Record, not NoneType" in caplog.text


def test_every_interceptor_gets_the_outcome_though_others_raise(caplog: pytest.LogCaptureFixture) -> None:
    first, last = Witness(), Witness()
    chain = InterceptorChain([first, Failing(), last])
    assert chain.wants_acknowledgements
    error = RuntimeError("lost")
    chain.on_acknowledgement(METADATA, None)
    chain.on_acknowledgement(METADATA, error)
    assert first.seen == last.seen == [(METADATA, None), (METADATA, error)]
    assert caplog.text.count("interceptor Failing failed in on_acknowledgement") == 2


def test_headers_are_passed_to_interceptors_that_accept_them() -> None:
    """KIP-512: interceptors written for two arguments still work."""
    with_headers, without = HeaderWitness(), Witness()
    chain = InterceptorChain([with_headers, without])
    chain.on_acknowledgement(METADATA, None, RECORD.headers)
    chain.on_acknowledgement(METADATA, None)
    assert with_headers.seen == [(("h", b"1"),), ()]
    assert without.seen == [(METADATA, None)] * 2


@pytest.mark.parametrize(("partition", "reported"), [(None, -1), (3, 3), ("3", -1)])
def test_a_rejected_record_is_reported_with_the_known_metadata(partition: Any, reported: int) -> None:
    witness, headers = Witness(), HeaderWitness()
    error = RuntimeError("no metadata")
    InterceptorChain([witness, headers]).on_send_error("clicks", partition, error, [("h", b"1")])
    assert witness.seen == [(RecordMetadata("clicks", reported, None, None), error)]
    assert headers.seen == [(("h", b"1"),)]


def test_all_interceptors_are_closed_though_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    first, last = Appending("1"), Appending("2")
    InterceptorChain([first, Failing(), last]).close()
    assert (first.closed, last.closed) == (1, 1)
    assert "interceptor Failing failed in close" in caplog.text


def test_methods_that_are_not_overridden_are_not_called() -> None:
    chain = InterceptorChain([ProducerInterceptor()])
    assert (chain.wants_records, chain.wants_headers, chain.wants_acknowledgements) == (False, False, False)
    assert ProducerInterceptor().on_send(RECORD) is RECORD


def test_a_class_is_instantiated() -> None:
    assert InterceptorChain([Failing]).wants_records


def test_an_object_with_none_of_the_methods_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"an interceptor must have on_send\(record\), .*, but list has none"):
        InterceptorChain([[]])


def test_a_coroutine_function_is_rejected() -> None:
    class Asynchronous:
        async def on_send(self, record: Record) -> Record:
            return record

    with pytest.raises(TypeError, match=r"Asynchronous.on_send must not be a coroutine function: .* not awaited"):
        InterceptorChain([Asynchronous()])


def test_cancellation_is_not_swallowed() -> None:
    class Interrupted:
        def on_send(self, record: Record) -> Record:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InterceptorChain([Interrupted()]).on_send(RECORD)
