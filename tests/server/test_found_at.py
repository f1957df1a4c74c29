"""Where others find a broker, as `penstock cluster status` shows it and `cluster move` takes it."""

from __future__ import annotations

import socket

import pytest

from penstock.broker.own_addresses import found_at
from penstock.config.config import Address, ClusterConfig, Config, HttpConfig
from penstock.config.types import AddressText


@pytest.mark.parametrize(
    ("listens", "advertised", "found"),
    [
        (Address("127.0.0.1", 7843), "", "127.0.0.1:7843"),
        (Address("b.example", 7843), "10.0.0.1:7845", "b.example:7843"),
        (Address("0.0.0.0", 7843), "b.example:7845", "b.example:7843"),
        (Address("::", 7843), "[2001:db8::7]:7845", "[2001:db8::7]:7843"),
        (Address("0.0.0.0", 7843), "", f"{socket.gethostname()}:7843"),
    ],
)
def test_a_broker_is_found_where_it_listens_or_at_the_host_that_others_know(
    listens: Address, advertised: str, found: str
) -> None:
    config = Config(http=HttpConfig(address=listens), cluster=ClusterConfig(advertise=AddressText(advertised)))
    assert str(found_at(config)) == found
