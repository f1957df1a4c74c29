"""What a node does that needs no store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.server.node import Node
from penstock.server.settings import load

SETTINGS = {"store": "postgresql://nobody/nothing", "cluster.advertise": "127.0.0.1:1"}


@pytest.mark.parametrize("turns", range(6))
def test_a_node_that_stops_looks_no_more_though_it_is_woken_at_that_moment(tmp_path: Path, turns: int) -> None:
    """However many turns of the event loop are between both. Otherwise it would acquire again what it hands over."""

    async def stop_while_it_is_woken() -> bool:
        node = Node(load(None, {}, [], SETTINGS | {"data": str(tmp_path / "data")}))
        looking = asyncio.create_task(_look_twice(node))
        await asyncio.sleep(0)
        node._woken.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        looking.cancel()
        await asyncio.wait([looking], timeout=10)
        return looking.cancelled()

    assert asyncio.run(stop_while_it_is_woken())


async def _look_twice(node: Node) -> None:
    for _ in range(2):
        await node._look_soon(60)
