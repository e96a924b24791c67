"""Deserializers read what the serializers of the same name write, and reject everything else."""

from __future__ import annotations

from uuid import UUID

import pytest

from aioproducer import deserializers, serializers
from aioproducer.deserializers import ResolvedDeserializer
from aioproducer.errors import SerializationError

CASES = [
    ("Bytes", b"\x00\xff"),
    ("String", "grüße"),
    ("Short", -2),
    ("Integer", 2**31 - 1),
    ("Long", -(2**63)),
    ("Float", 0.5),
    ("Double", 0.1),
    ("Boolean", True),
    ("Boolean", False),
    ("UUID", UUID(int=7)),
    ("Json", {"a": [1, None]}),
    ("Void", None),
]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_each_reads_what_its_serializer_writes(name, value):
    data = getattr(serializers, f"{name}Serializer")().serialize("t", value, [])
    deserializer = getattr(deserializers, f"{name}Deserializer")()
    assert deserializer.deserialize("t", data, ()) == value
    assert deserializer.deserialize("t", None, ()) is None


@pytest.mark.parametrize(
    ("name", "data"),
    [("Short", b"1"), ("Integer", b"12345"), ("Long", b""), ("Float", b"1"), ("Boolean", b"\x02"), ("Void", b"")],
)
def test_data_of_another_type_are_rejected(name, data):
    with pytest.raises(SerializationError, match=f"{name}Deserializer reads"):
        getattr(deserializers, f"{name}Deserializer")().deserialize("t", data, ())


def test_java_class_names_have_the_same_names_here():
    for name, kind in deserializers.JAVA_CLASS_NAMES.items():
        assert name.rpartition(".")[2] in (kind.__name__, "ByteArrayDeserializer", "ByteBufferDeserializer")
    writers = {name.replace("Serializer", "Deserializer") for name in serializers.JAVA_CLASS_NAMES}
    assert deserializers.JAVA_CLASS_NAMES.keys() == writers


def test_an_object_a_class_and_a_function_are_deserializers():
    class Own:
        def deserialize(self, topic, data, headers):
            return topic, data, headers

    assert ResolvedDeserializer(Own, "key")("t", None, (("h", b""),)) == ("t", None, (("h", b""),))
    assert ResolvedDeserializer(Own(), "key")("t", b"1", ()) == ("t", b"1", ())
    assert ResolvedDeserializer(int, "value")("t", b"12", ()) == 12
    assert ResolvedDeserializer(int, "value")("t", None, ()) is None
    with pytest.raises(TypeError, match="value_deserializer must be"):
        ResolvedDeserializer(7, "value")
