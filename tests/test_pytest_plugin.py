"""The fixtures that are shipped: pytest finds them by itself, and each test has a broker of its own."""

from __future__ import annotations

import pytest

from penstock import Client
from penstock.embedded import LocalBroker
from penstock.renamed import DeprecatedName


@pytest.mark.parametrize("_", range(2))
def test_each_test_has_an_empty_broker(_: int, penstock_broker: LocalBroker, penstock_client: Client) -> None:
    assert penstock_client.url == penstock_broker.url
    assert penstock_client.queues.list() == []
    penstock_client.queues.create("orders")


def test_the_old_name_of_the_broker_is_the_same_broker(
    request: pytest.FixtureRequest, penstock_broker: LocalBroker
) -> None:
    with pytest.warns(DeprecatedName, match="pytest fixture penstock is deprecated .*: use penstock_broker"):
        assert request.getfixturevalue("penstock") is penstock_broker
