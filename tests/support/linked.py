"""Two workers with a link, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from penstock.cluster.links.calls import Asking
from penstock.cluster.links.link import Link
from tests.support.live_loop import until


@asynccontextmanager
async def linked_to(far: Link, path: Path, asking: Asking | None = None) -> AsyncIterator[Link]:
    """The end of worker 0. `far` is that of worker 1."""
    running = asyncio.get_running_loop()
    server = await running.create_unix_server(lambda: far, path / "link")
    _, near = await running.create_unix_connection(lambda: Link(0, {}, asking=asking), str(path / "link"))
    try:
        await until(lambda: near.peer == 1 and far.peer == 0)
        yield near
    finally:
        near.close()
        far.close()
        server.close()
        await asyncio.sleep(0)


def told_in(run: Callable[[Path], Coroutine[Any, Any, None]], story: Callable[..., Any]) -> Callable[[Path], None]:
    """The test of this story: it has the name of the story, and runs it in an event loop."""

    def test(tmp_path: Path) -> None:
        uvloop.run(run(tmp_path))

    test.__name__ = story.__name__
    return test
