"""What a broker may be made of. Clients should not notice which it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.broker import Broker, Site
from tests.support.nodes import Balanced, nodes_on

if TYPE_CHECKING:
    from tests.support.postgres import Postgres

SHARDS = 4
TWO_WORKERS = ("--workers", "2", "--shards", str(SHARDS))
SITES = ("one worker", "two workers", "two nodes")


@contextmanager
def started(kind: str, folder: Path, request: pytest.FixtureRequest, *settings: str) -> Iterator[Site]:
    if kind == "two nodes":
        postgres: Postgres = request.getfixturevalue("postgres")
        with nodes_on(postgres.new_store(SHARDS), folder, 2, *settings) as nodes:
            yield Balanced(nodes)
        return
    broker = Broker(folder / "data", *settings, flags=TWO_WORKERS if kind == "two workers" else ()).start()
    yield broker
    broker.stop()
