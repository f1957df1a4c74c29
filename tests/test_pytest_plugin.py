"""The fixtures that are shipped: pytest finds them by itself, and each test has a broker of its own."""

from __future__ import annotations

import pytest

from penstock import Client
from penstock.embedded import LocalBroker


@pytest.mark.parametrize("_", range(2))
def test_each_test_has_an_empty_broker(_: int, penstock: LocalBroker, penstock_client: Client) -> None:
    assert penstock_client.url == penstock.url
    assert penstock_client.queues.list() == []
    penstock_client.queues.create("orders")
