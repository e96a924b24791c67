"""Subject and end of validity of certificates, compared with the values of cryptography."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.security.certificates import Certificate, certificate_of, certificates_in
from tests.security.authority import Authority, named

AUTHORITY = Authority()
DER = AUTHORITY.issue("orders").certificate.public_bytes(Encoding.DER)
ATTRIBUTES = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
    NameOID.USER_ID,
)
NAMES = {
    NameOID.COMMON_NAME: "CN",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.USER_ID: "UID",
}


def read(subject: x509.Name, not_after: datetime) -> Certificate:
    certificate = AUTHORITY.issue(subject, not_after).certificate
    made = certificate_of(certificate.public_bytes(Encoding.DER))
    assert made.fingerprint == certificate.fingerprint(hashes.SHA256())
    return made


@given(
    st.lists(
        st.tuples(st.sampled_from(ATTRIBUTES), st.text("aü,=漢 ", min_size=1, max_size=10)), min_size=1, max_size=5
    ),
    st.datetimes(datetime(1971, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),
)
def test_subject_and_end_are_those_of_the_certificate(
    parts: list[tuple[x509.ObjectIdentifier, str]], not_after: datetime
) -> None:
    subject = x509.Name([x509.NameAttribute(name, value) for name, value in parts])
    made = read(subject, not_after)
    assert made.not_after == not_after.replace(microsecond=0).timestamp()
    assert made.subject == ",".join(f"{NAMES[name]}={value}" for name, value in reversed(parts))


@pytest.mark.parametrize(
    "type_", [_ASN1Type.BMPString, _ASN1Type.UniversalString, _ASN1Type.PrintableString, _ASN1Type.T61String]
)
def test_names_have_any_of_the_string_types(type_: _ASN1Type) -> None:
    made = read(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "orders", type_)]), datetime(2030, 1, 1, tzinfo=UTC))
    assert made.subject == "CN=orders"


def test_a_certificate_without_known_names_is_shown_by_its_serial_number() -> None:
    not_after = datetime(2030, 1, 1, tzinfo=UTC)
    for subject in (x509.Name([]), x509.Name([x509.NameAttribute(NameOID.POSTAL_CODE, "12345")])):
        certificate = AUTHORITY.issue(subject, not_after).certificate
        made = certificate_of(certificate.public_bytes(Encoding.DER))
        assert int(made.subject.removeprefix("serial number "), 16) == certificate.serial_number


def test_a_subject_is_safe_to_print() -> None:
    assert read(named("a\n\x1b[31mb"), datetime(2030, 1, 1, tzinfo=UTC)).subject == r"CN=a\n\x1b[31mb"


def test_the_end_is_shown_in_utc() -> None:
    made = read(named("a"), datetime(2030, 3, 1, 12, 30, tzinfo=UTC) + timedelta(seconds=5))
    assert made.end == "2030-03-01 12:30:05 UTC"


def test_all_certificates_of_a_pem_text_are_found_and_nothing_else() -> None:
    pairs = [AUTHORITY.issue(name) for name in "abc"]
    pem = b"# \xff comments\r\n".join([pair.key + pair.pem for pair in pairs])
    assert [made.subject for made in certificates_in(pem)] == ["CN=a", "CN=b", "CN=c"]
    assert list(certificates_in(pairs[0].key)) == []
    (made,) = certificates_in(pairs[0].pem.replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE").replace(b"\n", b"\r\n"))
    assert made.subject == "CN=a"


@given(st.data())
def test_malformed_certificates_raise_value_error_only(data: st.DataObject) -> None:
    damaged = bytearray(DER[: data.draw(st.integers(0, len(DER)))])
    for position in data.draw(st.lists(st.integers(0, 120), max_size=4)):
        if position < len(damaged):
            damaged[position] = data.draw(st.integers(0, 255))
    try:
        certificate_of(bytes(damaged))
    except ValueError:
        assert damaged != DER


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"20900101000000Z", b"2090010100000Z0"),
        (b"20900101000000Z", b"20900101000000z"),
        (b"20900101000000Z", b"20901301000000Z"),
        (b"\x18\x0f20900101000000Z", b"\x17\x0f20900101000000Z"),
        (b"\x18\x0f20900101000000Z", b"\x04\x0f20900101000000Z"),
    ],
    ids=["Z inside", "no zone", "month 13", "UTCTime with century", "no time"],
)
def test_a_malformed_end_of_validity_raises_value_error(old: bytes, new: bytes) -> None:
    assert DER.count(old) == 1
    with pytest.raises(ValueError, match=r"malformed certificate|month must be in"):
        certificate_of(DER.replace(old, new))


@pytest.mark.parametrize("length", range(0, 200, 7))
def test_a_cut_certificate_raises_value_error(length: int) -> None:
    with pytest.raises(ValueError, match="malformed certificate"):
        certificate_of(DER[:length])
