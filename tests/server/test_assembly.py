"""The list of services: nothing that keeps the contract is forgotten in it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_type_hints

from penstock import broker
from penstock.broker.services.contract import Service
from penstock.broker.services.history_writes import HistoryWrites
from penstock.broker.services.jobs import Jobs
from penstock.broker.services.snapshots import Snapshots
from penstock.server.assembly import Services

OF_THE_SHARD = {HistoryWrites, Snapshots}  # They stop after the writer has stopped.
BASES = {Jobs}


def kinds(base: type[Service]) -> Iterator[type[Service]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_service_is_started() -> None:
    for module in pkgutil.walk_packages(broker.__path__, f"{broker.__name__}."):
        importlib.import_module(module.name)
    ours = {kind for kind in kinds(Service) if kind.__module__.startswith(broker.__name__)}
    assert ours - OF_THE_SHARD - BASES == {*get_type_hints(Services).values()}
