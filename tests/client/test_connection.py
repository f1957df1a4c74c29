"""One HTTP connection: answers in the order of the requests, however the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.connection import Connection, LostError

ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: a\r\n\r\nhello"
    b"HTTP/1.1 204 No Content\r\n\r\n"
    b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
)


class Wire(asyncio.Transport):
    """The other end of a connection, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.reading: list[str] = []

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading.append("paused")

    def resume_reading(self) -> None:
        self.reading.append("resumed")


def connected() -> tuple[Connection, Wire]:
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    return connection, wire


@given(st.lists(st.integers(0, len(ANSWERS)), max_size=6))
def test_any_split_of_the_bytes_gives_the_same_answers(cuts: list[int]) -> None:
    async def run() -> None:
        connection, wire = connected()
        waiting = [connection.send(request) for request in (b"1", b"2", b"3")]
        assert wire.written == b"123"
        edges = [0, *sorted(cuts), len(ANSWERS)]
        for start, end in itertools.pairwise(edges):
            connection.data_received(ANSWERS[start:end])
        answers = [await each for each in waiting]
        assert [(each.status, each.body) for each in answers] == [(200, b"hello"), (204, b""), (404, b"abcde")]
        assert answers[0].headers[b"x-name"] == b"a"
        assert connection.idle

    asyncio.run(run())


def test_what_waits_is_told_that_the_connection_is_lost() -> None:
    async def run() -> None:
        connection, _ = connected()
        first, second = connection.send(b"1"), connection.send(b"2")
        connection.data_received(ANSWERS[:60])
        connection.connection_lost(None)
        assert (await first).status == 200
        for lost in (second, connection.send(b"3")):
            with pytest.raises(LostError):
                await lost

    asyncio.run(run())


def test_bytes_that_are_not_http_close_the_connection() -> None:
    async def run() -> None:
        connection, wire = connected()
        waiting = connection.send(b"1")
        connection.data_received(b"SSH-2.0-OpenSSH\r\n")
        assert wire.aborted
        connection.connection_lost(None)
        with pytest.raises(LostError, match="not HTTP"):
            await waiting

    asyncio.run(run())


def test_an_answer_that_nobody_reads_makes_the_broker_wait() -> None:
    async def run() -> None:
        connection, wire = connected()
        stream = connection.stream(b"1")
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 2_000_000)
        assert wire.reading == ["paused"]
        assert len(await stream.read()) == 2_000_000
        assert wire.reading == ["paused", "resumed"]
        connection.connection_lost(None)
        with pytest.raises(LostError):
            await stream.read()

    asyncio.run(run())


def test_a_connection_that_the_broker_ends_is_not_used_again() -> None:
    async def run() -> None:
        connection, _ = connected()
        waiting = connection.send(b"1")
        connection.data_received(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        assert (await waiting).status == 200
        assert connection.closed

    asyncio.run(run())
