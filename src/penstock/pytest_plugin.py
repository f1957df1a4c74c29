"""Fixtures for the tests of programs that use Penstock: a broker of the test's own, inside the test process.

pytest finds this by itself where Penstock is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.embedded import LocalBroker


@pytest.fixture
def penstock_broker() -> Iterator[LocalBroker]:
    """A broker without any messages, for one test: `penstock_broker.url` is its address."""
    # Imported here: every run of pytest loads this file, and most need no broker.
    from penstock.embedded import LocalBroker

    broker = LocalBroker()
    yield broker
    broker.close()


@pytest.fixture
def penstock_client(penstock_broker: LocalBroker) -> Iterator[Client]:
    """A client of the test's broker."""
    from penstock.client import Client

    with Client(penstock_broker.url) as client:
        yield client


@pytest.fixture
def penstock(penstock_broker: LocalBroker) -> LocalBroker:
    """The old name of `penstock_broker`."""
    from penstock.renamed import FIXTURES, deprecated

    deprecated(FIXTURES, "penstock")
    return penstock_broker
