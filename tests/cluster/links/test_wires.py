"""Links over TCP, with and without TLS: the same mesh as over sockets of one machine."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from penstock.broker.shard_map import ShardMap
from penstock.cluster.links import guarded
from penstock.cluster.links.guarded import RELAY
from penstock.cluster.links.mesh import Mesh, owner_of
from penstock.cluster.links.wires import Security, TcpWires
from penstock.cluster.routing.router import Router
from penstock.config.config import Address
from penstock.model.answers import Receipt
from penstock.model.commands import NewMessage, Publish
from penstock.model.settings import QueueSettings
from tests.support.certificates import Pair
from tests.support.live_loop import shard_loop, until
from tests.support.ports import free_port

WORKERS = 3
TOKEN = b"a token that all of them know"
PIECE = b"x" * (64 << 10)
SENT_BYTES_MAX = 64 << 20  # Far more than the system keeps for a reader that does not read.


def secured(folder: Path) -> Security:
    pair = Pair(folder, "node")
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(pair.certificate, pair.key)
    return Security(TOKEN, accepting, ssl.create_default_context(cafile=str(pair.certificate)))


@pytest.mark.parametrize("with_tls", [False, True])
def test_every_node_serves_every_shard_over_tcp(tmp_path: Path, with_tls: bool) -> None:
    async def run() -> None:
        security = secured(tmp_path) if with_tls else Security(TOKEN)
        addresses = {number: Address("127.0.0.1", free_port()) for number in range(WORKERS)}
        names = {f"queue-{shard}": shard for shard in range(WORKERS)}
        loops = {shard: shard_loop(shard, WORKERS) for shard in range(WORKERS)}
        own = [{s: loop for s, loop in loops.items() if owner_of(s, WORKERS) == w} for w in range(WORKERS)]
        meshes = [Mesh(w, WORKERS, WORKERS, TcpWires(addresses, security), own[w]) for w in range(WORKERS)]
        for mesh in meshes:
            await mesh.start()
        await until(lambda: all(mesh.is_complete for mesh in meshes))
        router = Router(ShardMap(WORKERS, names), meshes[0].ports)
        for shard in range(WORKERS):
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            command = Publish(f"queue-{shard}", [NewMessage(b"x" * 100_000)], QueueSettings())
            router.submit(command, answered.set_result)
            (receipt,) = await answered
            assert isinstance(receipt, Receipt)
            assert receipt.queue == shard + 1
        for mesh in meshes:
            mesh.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_node_with_another_token_gets_no_link(tmp_path: Path) -> None:
    async def run() -> None:
        addresses = {number: Address("127.0.0.1", free_port()) for number in range(3)}
        tokens = [TOKEN, TOKEN, b"another token"]
        meshes = [Mesh(w, WORKERS, WORKERS, TcpWires(addresses, Security(tokens[w])), {}) for w in range(WORKERS)]
        for mesh in reversed(meshes):
            await mesh.start()
        await until(lambda: 1 in meshes[0].links and 0 in meshes[1].links)
        assert [set(mesh.links) for mesh in meshes] == [{1}, {0}, set()]
        for mesh in meshes:
            mesh.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


class Kept(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.received = b""
        self.transport: asyncio.Transport | None = None
        self.is_paused = self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_client_that_is_passed_on_has_only_its_own_bytes_and_waits_for_its_reader(
    tmp_path: Path, with_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "_BEAT", b"a beat")
    monkeypatch.setattr(guarded, "LINK_BEAT_SECONDS", 0.001)

    async def run() -> None:
        wires = TcpWires({0: Address("127.0.0.1", free_port())}, secured(tmp_path) if with_tls else Security(TOKEN))
        near, far = Kept(), Kept()
        wires.accept[RELAY] = lambda: far
        server = await wires.listen(0, Kept)
        await wires.connect(0, lambda: near, RELAY)
        await until(lambda: bool(near.transport and far.transport))
        sends, answers = cast("asyncio.Transport", near.transport), cast("asyncio.Transport", far.transport)
        answers.pause_reading()
        sent = 0
        while not near.is_paused:
            assert sent < SENT_BYTES_MAX
            sends.write(PIECE)
            sent += len(PIECE)
            await asyncio.sleep(0)
        answers.resume_reading()
        await until(lambda: len(far.received) == sent and not near.is_paused)
        answers.write(b"answer")
        await until(lambda: near.received == b"answer")
        sends.close()
        await until(lambda: far.is_lost)
        assert far.received == b"x" * sent
        server.close()

    uvloop.run(asyncio.wait_for(run(), 60))


def test_whoever_wants_something_unknown_is_refused() -> None:
    async def run() -> None:
        wires = TcpWires({0: Address("127.0.0.1", free_port())}, Security(TOKEN))
        server = await wires.listen(0, Kept)
        refused = Kept()
        await wires.connect(0, lambda: refused, RELAY)
        await until(lambda: refused.is_lost)
        server.close()

    uvloop.run(asyncio.wait_for(run(), 60))
