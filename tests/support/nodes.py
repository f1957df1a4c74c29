"""Several real brokers on one store in PostgreSQL, which share its shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.nodes import Nodes, NodeTables
from tests.support.broker import Broker, Site, address
from tests.support.command_line import penstock
from tests.support.ports import free_port, free_ports
from tests.support.waiting import wait_until

_WAIT_SECONDS_MAX = 90.0
_PAUSE_SECONDS = 0.1  # A look is a connection to PostgreSQL, which has other work.


def node_on(url: str, data: Path, *settings: str, **options: Any) -> Broker:
    """At addresses that stay."""
    http, links = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_ports(2)}"  # With two workers it needs both.
    flags = ("--store", url, "--advertise", links, *options.pop("flags", ()))
    node = Broker(data, *settings, http=http, flags=flags, **options)
    node.http = address(http)
    return node


@contextmanager
def nodes_on(url: str, path: Path, count: int, *settings: str) -> Iterator[list[Broker]]:
    """Started one after the other; each has its share."""
    nodes = [node_on(url, path / f"node-{number}", *settings) for number in range(count)]
    try:
        for node in nodes:
            node.start()
        until(lambda: is_balanced(url, count))
        tokens = next((each.partition("=")[2] for each in settings if each.startswith("auth.tokens=")), "")
        token = tokens.split(",")[0]
        until(lambda: all(serves_all(node, token) for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            print(node.log())
            if node.running:
                node.kill()


class Balanced(Site):
    """Several brokers as one, as a balancer shows them. Each gets two connections in turn, so that a client whose
    second or third connection is to continue the first has it to another broker."""

    trust = None

    def __init__(self, nodes: Sequence[Broker]) -> None:
        self._next = cycle([node for node in nodes for _ in range(2)])

    @property
    def http(self) -> tuple[str, int]:
        return next(self._next).http

    @property
    def lines(self) -> tuple[str, int]:
        return next(self._next).lines


def status(url: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(penstock("cluster", "status", url, "--json").stdout)
    return shown


def tables(url: str) -> Nodes:
    """What the tables of the store say now."""
    with closing(Connection(url)) as connection:
        return NodeTables(connection).read()


def is_balanced(url: str, count: int) -> bool:
    """Whether so many nodes serve, and none has two shards more than another."""
    found = tables(url)
    held = [found.held_by(node) for node in found.nodes if found.state_of(node) == "serves"]
    return len(held) == count and max(held) - min(held) <= 1


def serves_all(node: Broker, token: str = "") -> bool:
    """Whether it has answers of all shards: one that was acquired just now may not serve yet."""
    return node.request("GET", "/v1/log", {"Authorization": f"Bearer {token}"} if token else {}).status == 200


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, "what a test of nodes waits for", _WAIT_SECONDS_MAX, _PAUSE_SECONDS)


def move_all(store: str, source: Broker, target: Broker) -> None:
    """Have one node own everything."""
    assert penstock("cluster", "drain", store, "{}:{}".format(*target.http), "--undo").returncode == 0
    assert penstock("cluster", "drain", store, "{}:{}".format(*source.http)).returncode == 0
    there = "{}:{}".format(*target.http)
    until(lambda: all(shard.address == there and shard.is_leased for shard in tables(store).shards))
    until(lambda: serves_all(source) and serves_all(target))
