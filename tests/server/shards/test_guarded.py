"""Links to other machines: only those who know the token get one, and silence ends it."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable

import pytest

from penstock.server.config import Address
from penstock.server.shards import guarded
from penstock.server.shards.codec import FORM, Greet, encode, frame
from penstock.server.shards.guarded import LINK, Guarded
from penstock.server.shards.link import Link

TOKEN = b"a token that all of them know"
OPENING = b"penstock" + b"link    " + b"c" * 32
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_stranger(talk: Talk) -> list[Link]:
    """Let somebody talk to a process that listens. Returns the links that it had."""
    links: list[Link] = []

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Guarded({LINK: lambda: Link(0, {}, links.append)}, TOKEN), "127.0.0.1", 0
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


def test_whoever_knows_the_token_has_a_link() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove(reader, writer)
        for byte in frame([encode(Greet(FORM, 7, b"process1", {}))]):
            writer.write(bytes([byte]))
            await writer.drain()
        assert await reader.readexactly(4)  # It greets too.
        writer.write_eof()
        await is_closed(reader)

    (link,) = with_stranger(talk)
    assert link.peer == 7


def test_what_comes_with_the_proof_is_not_lost() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPENING)
        opening = await reader.readexactly(48)
        writer.write(proof(TOKEN, b"caller", opening) + frame([encode(Greet(FORM, 7, b"process1", {}))]))
        writer.write_eof()
        await is_closed(reader)

    (link,) = with_stranger(talk)
    assert link.peer == 7


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 60, OPENING + b"x" * 32])
def test_nobody_else_has_one(said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        assert await is_closed(reader)

    assert not with_stranger(talk)


def test_another_token_is_refused() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove(reader, writer, b"another token")
        assert await is_closed(reader)

    assert not with_stranger(talk)


def test_the_proof_of_one_purpose_is_none_of_another() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPENING.replace(b"link ", b"relay"))
        writer.write(proof(TOKEN, b"caller", await reader.readexactly(48)))
        assert await is_closed(reader)

    assert not with_stranger(talk)


def test_the_proof_of_the_other_end_is_no_proof_of_ours() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPENING)
        await reader.readexactly(48)
        writer.write(await reader.readexactly(32))
        assert await is_closed(reader)

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


def test_something_is_sent_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "LINK_BEAT_SECONDS", 0.01)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove(reader, writer)
        greeting = frame([encode(Greet(FORM, 0, b"process1", {}))])
        received = await reader.readexactly(len(greeting) + 3 * len(frame([])))
        assert received.count(frame([])) == 3

    with_stranger(talk)
