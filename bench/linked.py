"""Two brokers with a link: one has the queues, the other sends it every command that it gets over HTTP.

Run as `python -m bench.linked owner|front PORT DIRECTORY SOCKET`; the owner first.
"""

import asyncio
import gc
import sys
from pathlib import Path

import uvloop

from bench.driver import HOST
from penstock.broker.writer.port import Reply
from penstock.cluster.links.link import Link
from penstock.config.config import Address, Config, HttpConfig, LinesConfig
from penstock.model.client import Client, Pending
from penstock.model.commands import Command
from penstock.server.broker import Broker

SHARD = 0


class Front:
    """What the HTTP shell submits to, in place of the writer."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def submit(self, client: Client, command: Command, reply: Reply) -> Pending | None:
        return self._link.submit(SHARD, client, command, reply)


async def serve(role: str, port: int, directory: Path, socket: str) -> int:
    http, lines = HttpConfig(address=Address(HOST, port)), LinesConfig(address=Address(HOST, 0))
    broker = Broker(Config(data=directory, http=http, lines=lines))
    running = asyncio.get_running_loop()
    links: list[object] = []

    async def join() -> None:
        if role == "owner":
            links.append(await running.create_unix_server(lambda: Link(1, {SHARD: broker.shards[0].loop}), socket))
        else:
            _, link = await running.create_unix_connection(lambda: Link(0, {}), socket)
            broker.servers.http.submit = Front(link).submit

    return await broker.run(lambda _: links.append(running.create_task(join())))


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # As `penstock serve` does.
    gc.set_threshold(50_000, 20, 100)
    role, port, directory, socket = sys.argv[1:]
    sys.exit(uvloop.run(serve(role, int(port), Path(directory), socket)))
