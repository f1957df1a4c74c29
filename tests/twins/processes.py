"""Twins that are real processes."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.broker import Broker, Site
from tests.support.http_client import Connection
from tests.support.line_client import LineClient
from tests.support.nodes import Balanced, nodes_on
from tests.support.ws_client import WsClient
from tests.twins.player import MARKS
from tests.twins.programs import ADMIN, SCOPES, Hang

_BOSS = "boss"
_PATIENCE_SECONDS = 30.0  # Only a difference takes so long.
_PAUSE_SECONDS = 0.005
NewStore = Callable[[int], str]
SETTINGS = (f"auth.tokens={_BOSS}", "http.connections_max=500")


class ProcessTwin:
    def __init__(self, site: Site) -> None:
        self._site = site
        headers = {"Authorization": f"Bearer {_BOSS}"}
        assert site.request("PUT", f"/v1/queues/{MARKS}", headers).status == 201
        self.tokens = {ADMIN: _BOSS} | {who: self._token(who, scopes) for who, scopes in SCOPES.items()}

    def _token(self, who: str, scopes: list[str]) -> str:
        headers = {"Authorization": f"Bearer {_BOSS}"}
        answer = self._site.request("PUT", f"/v1/tokens/{who}", headers, json.dumps({"scopes": scopes}).encode())
        assert answer.status == 201, answer
        return str(answer.json()["token"])

    def connect(self) -> Connection:
        return self._site.connect()

    def connect_lines(self) -> LineClient:
        return LineClient(self._site.lines)

    def connect_websocket(self, path: str, token: str) -> WsClient:
        return WsClient(self._site.http, path, Authorization=f"Bearer {token}")

    def pass_time(self, seconds: float) -> None:
        raise AssertionError("programs for real processes wait for nothing")

    def hang(self, step: Hang) -> None:
        raise AssertionError("programs for real processes let none stand still")

    def is_away(self, _: str) -> bool:
        return False

    def back(self) -> None:
        """None stands still."""

    def has_come(self, socket: Any) -> bool:
        return bool(select.select([socket], [], [], 0)[0])

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition() and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)


AGAINST: dict[str, tuple[str, ...]] = {
    "one": (),
    "worker1": ("--workers", "1", "--shards", "4"),
    "workers2": ("--workers", "2"),
    "workers3": ("--workers", "3"),
}
NODES = {"nodes3": 3}
"""How many, on one store in PostgreSQL."""
SHARDS = {"workers2": 4, "workers3": 6, "nodes3": 6}


@contextmanager
def processes(data: Path, name: str = "one") -> Iterator[ProcessTwin]:
    broker = Broker(data, *SETTINGS, flags=AGAINST[name]).start()
    try:
        yield ProcessTwin(broker)
    finally:
        broker.stop()


@contextmanager
def nodes(data: Path, name: str, new_store: NewStore) -> Iterator[ProcessTwin]:
    with nodes_on(new_store(SHARDS[name]), data, NODES[name], *SETTINGS) as several:
        yield ProcessTwin(Balanced(several))


@contextmanager
def pair(folder: Path, against: str, new_store: NewStore) -> Iterator[tuple[ProcessTwin, ProcessTwin]]:
    """One process, and what is compared with it. `new_store`: for nodes, with so many shards."""
    others = nodes(folder, against, new_store) if against in NODES else processes(folder / "several", against)
    with processes(folder / "one") as one, others as several:
        yield one, several
