"""Which addresses are out in the internet."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.services.addresses import is_public


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
        *("192.0.0.192", "192.0.0.9", "168.63.129.16", "100.100.100.200", "192.88.99.1", "240.0.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "3fff::1", "100::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:168.63.129.16", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
        *("64:ff9b:1::1", "64:ff9b:1:ffff::1.1.1.1", "64:ff9b:2::1.1.1.1", "::ffff:0:1.1.1.1"),
        *("::1.1.1.1", "::8.8.8.8", "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::", "2002:a83f:8110::"),
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",  # Teredo, with 10.0.0.1 in it.
        "2606:4700::5efe:10.0.0.1",  # ISATAP.
        "2606:4700::200:5efe:10.0.0.1",
        "fd00:ec2::254",
        "5f00::1",
    ],
)
def test_what_is_ours_or_nobodys_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "1.1.1.1",
            "93.184.216.34",
            "168.63.129.17",
            "192.0.1.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860::1",
        ),
        *("::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::", "2606:4700::5efe:1.1.1.1"),
    ],
)
def test_what_is_out_there_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@given(st.integers(0, (1 << 32) - 1))
def test_an_ipv4_address_is_judged_alike_in_every_notation_that_leads_to_it(number: int) -> None:
    plain = IPv4Address(number)
    assert is_public(IPv6Address((0xFFFF << 32) | number)) == is_public(plain)
    assert is_public(IPv6Address((0x0064FF9B << 96) | number)) == is_public(plain)
    assert is_public(IPv6Address((0x2002 << 112) | number << 80)) == is_public(plain)
    assert not is_public(plain) or plain.is_global, "never more than Python calls global"
