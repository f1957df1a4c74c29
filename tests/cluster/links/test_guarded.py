"""Links to other machines: only those who know the token get one, and silence ends it."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable
from math import ceil

import pytest

from penstock.broker.room import Room
from penstock.cluster.links import guarded
from penstock.cluster.links.calls import Asking
from penstock.cluster.links.codec import FORM, Greet, SendPart, encode, frame
from penstock.cluster.links.guarded import LINK, RELAY, Guarded
from penstock.cluster.links.link import Link
from penstock.config.config import Address
from penstock.limits import LINK_BEAT_SECONDS, LINK_SILENCE_SECONDS_MAX
from tests.support.live_loop import until

TOKEN = b"a token that all of them know"
OPENING = b"penstock" + b"link    " + b"c" * 32
GREETING = frame([encode(Greet(FORM, 7, b"process1", {}))])
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_stranger(talk: Talk, asking: Asking | None = None, links: list[Link] | None = None) -> list[Link]:
    """Let somebody talk to a process that listens. Returns the links that it had."""
    links = [] if links is None else links

    def link() -> Link:
        return Link(0, {}, links.append, asking=asking)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Guarded(dict.fromkeys((LINK, RELAY), link), TOKEN), "127.0.0.1", 0
        )
        reader, writer = await asyncio.open_connection(*Address(*server.sockets[0].getsockname()))
        await talk(reader, writer)
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    return links


def proof(token: bytes, role: bytes, opening: bytes) -> bytes:
    """`opening`: of the one that listens."""
    return hmac.digest(token, role + OPENING + opening, "sha256")


async def prove(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes = TOKEN) -> bytes:
    """Do what a caller does. Returns the proof of the other end."""
    writer.write(OPENING)
    opening = await reader.readexactly(48)
    writer.write(proof(token, b"caller", opening))
    answered = await reader.readexactly(32)
    assert answered == proof(TOKEN, b"listener", opening)
    return answered


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        await reader.read()
    except ConnectionResetError:
        pass
    return True


async def greets_in_vain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Go on as if the proof had been accepted. Whether nothing comes back before the connection ends."""
    received = b""
    try:
        writer.write(GREETING)
        writer.write_eof()
        while data := await reader.read(1 << 16):
            received += data
    except OSError:
        pass  # It was reset.
    return not received


def test_whoever_knows_the_token_has_a_link() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove(reader, writer)
        for byte in GREETING:
            writer.write(bytes([byte]))
            await writer.drain()
        assert await reader.readexactly(4)  # It greets too.
        writer.write_eof()
        await is_closed(reader)

    (link,) = with_stranger(talk)
    assert link.peer == 7


def test_what_the_other_machine_has_not_read_takes_room_until_it_has() -> None:
    asking, links = Asking(), list[Link]()
    asking.room = room = Room(64 << 20)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove(reader, writer)
        writer.write(GREETING)
        await reader.readexactly(4)
        await until(lambda: bool(links))
        links[0].send(SendPart(1, bytes(32 << 20)))
        await until(lambda: room.bytes > 16 << 20)
        while room.bytes:
            await reader.read(1 << 20)
        assert links[0].is_open, "not because it was lost"
        writer.write_eof()
        await is_closed(reader)

    with_stranger(talk, asking, links)


def test_what_comes_with_the_proof_is_not_lost() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPENING)
        opening = await reader.readexactly(48)
        writer.write(proof(TOKEN, b"caller", opening) + GREETING)
        writer.write_eof()
        await is_closed(reader)

    (link,) = with_stranger(talk)
    assert link.peer == 7


@pytest.mark.parametrize(
    ("said", "proof_bytes"), [(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 60, 0), (OPENING + b"x" * 32, 32)]
)
def test_nobody_else_has_one(said: bytes, proof_bytes: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(48)
        writer.write(said)
        await reader.readexactly(proof_bytes)
        assert await greets_in_vain(reader, writer)

    assert not with_stranger(talk)


def test_another_token_is_refused() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove(reader, writer, b"another token")
        assert await greets_in_vain(reader, writer)

    assert not with_stranger(talk)


def test_the_proof_of_one_purpose_is_none_of_another() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPENING.replace(b"link ", b"relay"))
        writer.write(proof(TOKEN, b"caller", await reader.readexactly(48)))
        await reader.readexactly(32)
        assert await greets_in_vain(reader, writer)

    assert not with_stranger(talk)


def test_the_proof_of_the_other_end_is_no_proof_of_ours() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPENING)
        await reader.readexactly(48)
        writer.write(await reader.readexactly(32))
        assert await greets_in_vain(reader, writer)

    assert not with_stranger(talk)


@pytest.mark.parametrize("knows_the_token", [True, False])
def test_a_peer_that_says_nothing_is_left(knows_the_token: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "LINK_SILENCE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(guarded, "LINK_BEAT_SECONDS", 0.01)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if knows_the_token:
            await prove(reader, writer)
        assert await is_closed(reader)

    with_stranger(talk)


def test_of_a_client_that_is_passed_on_the_system_notices_if_the_peer_is_cut_off() -> None:
    """Nothing of ours is sent over this connection."""
    found: list[int] = []

    class Passed(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            of = transport.get_extra_info("socket").getsockopt
            found.append(of(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            found.append(of(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
            found.append(of(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL))
            found.append(of(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    async def run() -> None:
        running = asyncio.get_running_loop()
        server = await running.create_server(lambda: Guarded({RELAY: Passed}, TOKEN), "127.0.0.1", 0)
        address = Address(*server.sockets[0].getsockname())
        transport, _ = await running.create_connection(lambda: Guarded({RELAY: Passed}, TOKEN, RELAY), *address)
        await until(lambda: len(found) == 8)
        transport.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    beat, silence_ms = ceil(LINK_BEAT_SECONDS), int(LINK_SILENCE_SECONDS_MAX * 1000)
    assert found == 2 * [1, beat, beat, silence_ms]


def test_something_is_sent_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "LINK_BEAT_SECONDS", 0.01)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove(reader, writer)
        greeting = frame([encode(Greet(FORM, 0, b"process1", {}))])
        received = await reader.readexactly(len(greeting) + 3 * len(frame([])))
        assert received.count(frame([])) == 3

    with_stranger(talk)
