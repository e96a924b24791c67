"""The hierarchy of errors: facts of Kafka's codes, copies, pickles, texts."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from typing import NamedTuple

import pytest

from aioproducer import error_codes, errors
from aioproducer._common.error_texts import HINTS, SUMMARIES
from aioproducer.error_codes import ABORTABLE, CODES, FATAL
from aioproducer.errors import BrokerError, KafkaError, broker_error, error_class


class Result(NamedTuple):
    count: int
    acked: int


def every_error() -> list[KafkaError]:
    """Return an error of each class of the module, including those created on demand."""
    made: list[KafkaError] = [broker_error(code, "as the broker said") for code in (*CODES, 999)]
    client_side = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, KafkaError) and "code" not in vars(value)
    ]
    made += [error_class("told") for error_class in client_side if error_class is not errors.SendManyError]
    made.append(errors.SendManyError(Result(3, 1), {("t", 0): broker_error(19)}))
    return made


@pytest.mark.parametrize(
    "error", every_error(), ids=lambda error: f"{type(error).__name__}-{getattr(error, 'code', '')}"
)
def test_copies_are_equal_and_independent(error: KafkaError) -> None:
    for twin in (
        error.fresh(),
        copy.copy(error),
        *(pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    ):
        assert twin is not error
        assert type(twin) is type(error)
        assert str(twin) == str(error) != ""
        assert twin.args == error.args
        assert vars(twin).keys() == vars(error).keys()
        assert getattr(twin, "code", None) == getattr(error, "code", None)


def test_deepcopy_keeps_the_contents_of_a_send_many_error() -> None:
    error = errors.SendManyError(Result(3, 1), {("t", 0): broker_error(19)})
    twin = copy.deepcopy(error)
    assert twin.result == Result(3, 1)
    assert twin.errors.keys() == {("t", 0)}
    assert twin.errors["t", 0] is not error.errors["t", 0]
    assert isinstance(twin.errors["t", 0], errors.NotEnoughReplicasError)


def test_every_code_of_the_table_is_a_class() -> None:
    for code, (name, class_name, _) in CODES.items():
        made = error_class(code)
        assert made is getattr(errors, class_name)
        assert (made.code, made.error_name, made.__name__) == (code, name, class_name)
        assert made.__module__ == "aioproducer.errors"
        assert made.__doc__
        assert issubclass(made, BrokerError)
    assert len(CODES) == 137
    assert CODES.keys() == SUMMARIES.keys()
    assert HINTS.keys() <= CODES.keys()


def test_named_codes_are_those_of_the_table() -> None:
    named = {name: code for name, code in vars(error_codes).items() if isinstance(code, int)}
    assert named.pop("NONE") == 0
    assert named
    assert {name: CODES[code][0] for name, code in named.items()} == {name: name for name in named}


def test_dir_lists_classes_not_created_yet() -> None:
    assert {class_name for _, class_name, _ in CODES.values()} <= set(dir(errors))


def test_an_unknown_error_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchError'"):
        errors.__getattr__("NoSuchError")


def test_a_retriable_error_that_refreshes_metadata_has_its_flags() -> None:
    error = broker_error(6)
    assert isinstance(error, errors.NotLeaderOrFollowerError)
    assert (error.retriable, error.refresh_metadata, error.abortable, error.fatal) == (True, True, False, False)
    assert broker_error(19).retriable
    assert not broker_error(19).refresh_metadata


def test_fatal_abortable_and_retriable_errors_are_distinguished() -> None:
    assert not ABORTABLE & FATAL
    for code in CODES:
        error = broker_error(code)
        assert error.fatal == (code in FATAL)
        assert error.abortable == (code in ABORTABLE)
        assert not (error.fatal and error.retriable)
    assert errors.ProducerFencedError.fatal
    assert errors.ClusterAuthorizationError.fatal
    assert errors.UnsupportedVersionError.fatal
    assert errors.TransactionAbortableError.abortable
    assert errors.OutOfOrderSequenceError.abortable


def test_errors_belong_to_their_families() -> None:
    assert issubclass(errors.UnknownProducerIdError, errors.OutOfOrderSequenceError)
    assert issubclass(error_class(30), errors.AuthorizationError)
    assert issubclass(error_class(33), errors.AuthenticationError)
    assert issubclass(errors.RequestTimedOutError, TimeoutError)
    assert issubclass(errors.BufferExhaustedError, TimeoutError)
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.WrongCallerError, RuntimeError)


def test_an_unknown_code_is_kept() -> None:
    error = broker_error(4242, "later")
    assert type(error) is errors.UnknownServerError
    assert error.code == 4242
    assert "does not know" in str(error)
    assert "4242" in str(error)
    assert errors.UnknownServerError.code == -1


def test_code_zero_is_no_error() -> None:
    with pytest.raises(ValueError, match="no error"):
        broker_error(0)


def test_text_states_what_happened_the_brokers_message_the_advice_and_the_code() -> None:
    assert str(broker_error(19, "ISR is [1]")) == (
        "The partition has fewer in-sync replicas than min.insync.replicas requires; nothing was written. "
        'The broker\'s message: "ISR is [1]". Restart the missing brokers, or lower min.insync.replicas of the topic. '
        "[NOT_ENOUGH_REPLICAS, 19]"
    )


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (3, "auto.create.topics.enable"),
        (10, "max_request_size"),
        (29, "WRITE"),
        (31, "IDEMPOTENT_WRITE"),
        (19, "min.insync.replicas"),
        (90, "its own transactional.id"),
        (70, "may be temporary: retry"),
        (112, "broker's log"),
    ],
)
def test_text_gives_advice(code: int, advice: str) -> None:
    assert advice in str(error_class(code)())
    assert str(error_class(code)()) == str(broker_error(code))


def test_a_custom_message_replaces_the_text() -> None:
    assert str(errors.RecordTooLargeError("12 bytes are too many.")) == "12 bytes are too many."


def test_fresh_drops_traceback_and_context() -> None:
    class Held:
        pass

    def fail() -> None:
        held = Held()
        references.append(weakref.ref(held))
        try:
            raise OSError("refused")
        except OSError as error:
            raise errors.ConnectionFailedError("nobody there") from error

    references: list[weakref.ref[Held]] = []
    with pytest.raises(errors.ConnectionFailedError) as caught:
        fail()
    twin = caught.value.fresh()
    assert twin.__traceback__ is twin.__context__ is twin.__cause__ is None
    del caught
    gc.collect()
    assert references[0]() is None


def test_fresh_keeps_a_kafka_cause_without_its_frames() -> None:
    try:
        try:
            raise broker_error(6)
        except KafkaError as cause:
            raise errors.DeliveryTimeoutError("late") from cause
    except KafkaError as error:
        twin = error.fresh()
    assert isinstance(twin.__cause__, errors.NotLeaderOrFollowerError)
    assert twin.__cause__.__traceback__ is None


def test_fresh_keeps_notes_and_attributes() -> None:
    error = errors.ProtocolError("bad")
    error.add_note("seen on broker 3")
    assert error.fresh().__notes__ == ["seen on broker 3"]
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen on broker 3"]


def test_send_many_error_counts_and_shows_the_first_partition() -> None:
    error = errors.SendManyError(Result(10, 7), {("t", 4): broker_error(19), ("t", 5): broker_error(6)})
    assert str(error).startswith("3 of 10 records were not acknowledged. The first of 2 failed partitions is")
    assert "NOT_ENOUGH_REPLICAS" in str(error)
    assert str(errors.SendManyError(Result(1, 0), {})) == "1 of 1 record was not acknowledged."


def test_a_pickled_on_demand_class_is_found_in_a_new_process() -> None:
    pickled = pickle.dumps(broker_error(106, "there"))
    program = (
        f"import pickle; error = pickle.loads({pickled!r}); print(type(error).__name__, error.code, error.retriable)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["FetchSessionTopicIdError", "106", "True"]


def test_importing_creates_no_on_demand_classes_and_reads_no_texts() -> None:
    program = (
        "import sys, aioproducer.errors as errors; "
        "print('FetchSessionTopicIdError' in vars(errors), 'aioproducer._common.error_texts' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == "False False\n"
