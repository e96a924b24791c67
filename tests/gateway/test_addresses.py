"""The addresses that clients receive."""

from __future__ import annotations

import logging

import pytest

from aioproducer.gateway import AddressMap
from aioproducer.gateway.addresses import REFUSED_SUFFIX


def test_exact_addresses_precede_the_rule():
    address_map = AddressMap({("b1", 9092): ("g1", 1), ("b2", 9092): ("g2", 2)}, port_offset=100)
    assert address_map.translate("b1", 9092) == ("g1", 1)
    assert address_map.translate("B2", 9092) == ("g2", 2)
    assert address_map.translate("b1", 9093) == ("b1", 9193)
    address_map.add(("b1", 9093), ("g3", 3))
    assert address_map.translate("b1", 9093) == ("g3", 3)
    assert address_map.unmapped == 0


def test_the_address_of_a_gateway_stays():
    """The broker's listener for gateways may advertise their addresses itself."""
    address_map = AddressMap({("b1", 9092): ("g1", 1)}, port=5)
    assert address_map.translate("g1", 1) == ("g1", 1)
    assert address_map.translate("g1", 2) == ("g1", 5)


def test_an_empty_address_stays_empty():
    address_map = AddressMap({}, port=5)
    assert address_map.translate("", -1) == ("", -1)
    assert address_map.translate("", 0) == ("", 0)
    assert address_map.translate("b", -1) == ("b", -1)


def test_two_rules_are_rejected():
    with pytest.raises(ValueError, match="port and port_offset exclude each other"):
        AddressMap({}, port=5, port_offset=0)


@pytest.mark.parametrize("passes", [False, True])
def test_an_address_without_a_gateway_is_logged_once(passes, caplog):
    address_map = AddressMap({}, port_offset=60_000, pass_unmapped=passes)
    caplog.set_level(logging.WARNING)
    translated = ("2001-db8--1" + REFUSED_SUFFIX, 9092) if not passes else ("2001:db8::1", 9092)
    for _ in range(3):
        assert address_map.translate("2001:db8::1", 9092) == translated
    assert address_map.unmapped == 3
    (record,) = caplog.records
    assert record.getMessage() == (
        f"No gateway is known for the broker at 2001:db8::1:9092: clients receive {translated[0]}:9092. "
        "Add it to the address map."
    )


def test_the_number_of_logged_addresses_is_limited(caplog):
    address_map = AddressMap({})
    caplog.set_level(logging.WARNING)
    for number in range(1100):
        address_map.translate(f"b{number}", 9092)
    assert address_map.unmapped == 1100
    assert len(caplog.records) == 1000
