"""The line shell: many lines leave room for others, and a defect ends one connection."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.config.config import LinesConfig
from penstock.dialects.etzel.codec import refusal
from penstock.dialects.wire.conversation import Peer
from penstock.limits import BODY_BYTES_MAX, LINES_REPLY_BYTES_MAX
from penstock.shells.lines import LineConnection, LineServer
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, until
from tests.support.shells import Echo, Wire

MANY = 5000


class Parrot:
    """Says what it hears, until it hears something that it cannot say."""

    under_way = 0
    asleep = False
    guest = False

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def opened(self) -> None:
        self._peer.send(b"hello")

    def received(self, frame: bytes, *, binary: bool = False) -> None:
        if frame == b"goodbye":
            self._peer.close("the client says so")
            return
        assert frame != b"nonsense"
        self._peer.send(frame)

    def refuse(self, error: str) -> None:
        self._peer.send(error.encode())

    def settle(self) -> None:
        """Nothing is left to be said."""

    def closed(self) -> None:
        self._peer.send(b"never heard")


def heard_after(said: bytes) -> list[bytes]:
    async def story() -> list[bytes]:
        server = LineServer(a_loop(MemoryLog()), LinesConfig(), Parrot, refusal)
        listener = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(said)
        heard = (await reader.read()).splitlines()
        writer.close()
        await writer.wait_closed()
        listener.close()
        server.close()
        return heard

    return asyncio.run(story())


def test_a_defect_is_told_logged_and_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        heard = heard_after(b"one\ntwo\nnonsense\nthree\n")
    assert heard == [b"hello", b"one", b"two", b'{"cmd":"nok","err":"INTERNAL"}']
    assert [record.message for record in caplog.records] == ["line_failed"]


def test_a_conversation_may_end_the_connection() -> None:
    assert heard_after(b"one\ngoodbye\ntwo\n") == [b"hello", b"one"]


# ── Many lines ────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_many_lines_a_part_is_taken_at_once_and_all_in_the_end() -> None:
    async def story() -> None:
        conversations: list[Echo] = []

        def converse(peer: Peer) -> Echo:
            conversations.append(Echo(peer))
            return conversations[-1]

        server = LineServer(a_loop(MemoryLog()), LinesConfig(), converse, refusal)
        greedy, wire = LineConnection(server), Wire()
        greedy.connection_made(wire)
        greedy.data_received(b"{bad\n" * MANY)
        assert conversations[0].heard < MANY / 10
        assert not wire.reading
        await until(lambda: conversations[0].heard == MANY)
        await until(lambda: wire.written.count(b"\n") == MANY)
        assert wire.reading

    asyncio.run(story())


def test_few_replies_of_a_connection_are_made_at_once_while_they_may_be_large() -> None:
    class Thinker(Echo):
        """Answers nothing."""

        def received(self, frame: bytes, *, binary: bool = False) -> None:
            self.heard += 1
            self.under_way += 1

    async def story() -> None:
        conversations: list[Thinker] = []

        def converse(peer: Peer) -> Thinker:
            conversations.append(Thinker(peer))
            return conversations[-1]

        server = LineServer(a_loop(MemoryLog()), LinesConfig(), converse, refusal)
        connection, wire = LineConnection(server), Wire()
        connection.connection_made(wire)
        connection.data_received(b'{"cmd":"FET","qname":"large"}\n' * 100)
        await asyncio.sleep(0)
        assert conversations[0].heard == LINES_REPLY_BYTES_MAX // BODY_BYTES_MAX
        assert not wire.reading

    asyncio.run(story())
