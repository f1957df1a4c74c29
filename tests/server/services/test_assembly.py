"""The list of services: nothing that keeps the contract is forgotten in it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_type_hints

from penstock.server import services
from penstock.server.services.assembly import Services
from penstock.server.services.contract import Service
from penstock.server.services.history_writes import HistoryWrites
from penstock.server.services.jobs import Jobs
from penstock.server.services.snapshots import Snapshots

OF_THE_SHARD = {HistoryWrites, Snapshots}  # They stop after the writer has stopped.
BASES = {Jobs}


def kinds(base: type[Service]) -> Iterator[type[Service]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_service_is_started() -> None:
    for module in pkgutil.walk_packages(services.__path__, f"{services.__name__}."):
        importlib.import_module(module.name)
    ours = {kind for kind in kinds(Service) if kind.__module__.startswith(services.__name__)}
    assert ours - OF_THE_SHARD - BASES == {*get_type_hints(Services).values()}
