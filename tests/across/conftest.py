"""A broker of each kind for tests that need nothing but a queue of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import Site
from tests.support.sites import SITES, started


@pytest.fixture(scope="session", params=SITES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(request.param, tmp_path_factory.mktemp("site"), request) as found:
        yield found
