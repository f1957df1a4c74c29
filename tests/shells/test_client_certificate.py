"""A client with a certificate has a name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.shells.secure import certificate_name

SUBJECT = ((("countryName", "DE"),), (("organizationName", "Example"),), (("commonName", "reports"),))
OTHERS = (("email", "ops@example.org"), ("DNS", "reports.example.org"), ("URI", "spiffe://example.org/reports"))


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": SUBJECT, "subjectAltName": OTHERS}, "reports"),
        ({"subject": SUBJECT[:2], "subjectAltName": OTHERS}, "reports.example.org"),
        ({"subject": (), "subjectAltName": OTHERS[2:]}, "spiffe://example.org/reports"),
        ({"subject": SUBJECT[:1], "subjectAltName": OTHERS[:1]}, ""),
    ],
    ids=["without TLS", "none shown", "common name", "host name", "URI", "nothing of these"],
)
def test_the_name_is_the_common_name_or_the_first_host_or_uri(certificate: Any, name: str) -> None:
    assert certificate_name(asyncio.Transport({"peercert": certificate})) == name
