"""Certificates are read as those who write them mean them."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from penstock.shells.certificate import from_der, from_pem
from tests.support.certificates import Pair

NAMES = (
    x509.DNSName("queue.example.org"),
    x509.IPAddress(ip_address("::1")),
    x509.UniformResourceIdentifier("spiffe://example.org/worker"),
    x509.RFC822Name("ops@example.org"),
)


def test_names_and_times_are_read(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "zürich", alternatives=NAMES)
    certificate = from_pem(b"a line before\n" + pair.certificate.read_bytes())
    assert certificate.common_name == "zürich"
    assert certificate.names == ("queue.example.org", "::1", "spiffe://example.org/worker")
    assert certificate.begins == pair.x509.not_valid_before_utc
    assert certificate.ends == pair.x509.not_valid_after_utc
    assert certificate.days_left(certificate.ends.timestamp() - 86_400) == 1


@pytest.mark.parametrize("years", [-60, -30, 20, 60])
def test_years_of_two_and_four_digits_are_read(tmp_path: Path, years: int) -> None:
    begins = timedelta(days=365 * years)
    pair = Pair(tmp_path, "old", alternatives=(), begins=begins, ends=begins + timedelta(days=1))
    certificate = from_der(pair.x509.public_bytes(Encoding.DER))
    assert (certificate.begins, certificate.names) == (pair.x509.not_valid_before_utc, ())


def test_the_first_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    authority = Pair(tmp_path, "authority")
    pair = Pair(tmp_path, "leaf", issuer=authority)
    chain = pair.certificate.read_bytes() + authority.certificate.read_bytes()
    assert from_pem(chain).common_name == "leaf"


def test_what_is_no_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        from_pem(Pair(tmp_path, "x").key.read_bytes())
    whole = Pair(tmp_path, "whole").x509.public_bytes(Encoding.DER)
    for size in range(0, len(whole), 7):
        with pytest.raises(ValueError, match=r".*"):
            from_der(whole[:size])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        from_der(data)
