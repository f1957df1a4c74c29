"""What the HTTP shell does with a response that comes in pieces: framing, turns, back-pressure, ends of all kinds."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.config.config import HttpConfig
from penstock.dialects.wire.http import Awaited, BodyRule, Headers, Request, Response, Stream
from penstock.model.answers import Answer
from penstock.model.client import Client
from penstock.model.commands import Command
from penstock.model.queries import Query
from penstock.model.streams import Sink
from penstock.shells.exchanges import Route
from penstock.shells.http_server import HttpServer
from penstock.shells.streams import Flow

PIECES = [b"one\n", b"", b"two\n", b"x" * 70_000]
WHOLE = b"".join(PIECES)
GET = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
PLAIN = b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n"


class Pieces:
    """Gives its pieces, then ends, fails, or waits to be told to finish."""

    def __init__(self, pieces: list[bytes], *, then: str = "end") -> None:
        self.pulls = 0
        self.closed = 0
        self.waits = False
        self._left = iter(pieces)
        self._then = then
        self._sink: Sink | None = None

    def pull(self, sink: Sink) -> None:
        self.pulls += 1
        self._sink = sink
        asyncio.get_running_loop().call_soon(self._answer, sink)

    def _answer(self, sink: Sink) -> None:
        piece = next(self._left, None)
        if piece is not None:
            sink.give(piece)
        elif self._then == "end":
            sink.end()
        elif self._then == "fail":
            sink.fail()
        else:
            self.waits = True

    def finish(self) -> None:
        if self.waits:
            assert self._sink is not None
            self._sink.end()

    def close(self) -> None:
        self.closed += 1


class Streams:
    """Answers with the stream that was put in place, at once or when it is told to."""

    def __init__(self, source: Pieces, length: int | None = None, *, endless: bool = False) -> None:
        self.source = source
        self.stream = Stream(200, b"Content-Type: text/plain\r\n", source, length, endless)
        self.ready: asyncio.Future[None] | None = None
        self.requests = 0

    def refusal(self, headers: Headers) -> None:
        pass

    def head_refusal(self, request: Request) -> None:
        pass

    def failed(self, request: Request) -> Response:
        return Response(500)

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        return BodyRule(1 << 20)

    def route(self, request: Request) -> Route:
        return self.handle

    def handle(self, request: Request) -> Response | Awaited:
        self.requests += 1
        if request.target == b"/plain":
            return Response(200, b"plain", b"")

        def when_ready(respond: Callable[[Response | Stream], None]) -> None:
            if self.ready:
                self.ready.add_done_callback(lambda _: respond(self.stream))
            else:
                respond(self.stream)

        return Awaited(when_ready)

    def ask(self, client: Client, query: Query, reply: Callable[[Any], None], /) -> None:
        raise AssertionError("nothing here is a question")

    def submit(self, client: Client, command: Command, reply: Callable[[Answer], None]) -> None:
        raise AssertionError("there is nothing to be carried out")

    def decide_collected(self) -> None:
        raise AssertionError("there is nothing to be carried out")


Connected = tuple[HttpServer, asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(handler: Streams, **limits: float) -> AsyncIterator[Connected]:
    server = HttpServer(handler, HttpConfig(**limits))  # type: ignore[arg-type]
    listener = await server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    try:
        yield server, reader, writer
    finally:
        writer.close()
        listener.close()
        server.close()


def told(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(story(), 60)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - The server shares this event loop; each turn it goes on.
        await asyncio.sleep(0)


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readuntil(b"\r\n\r\n")).lower()


async def chunks_of(reader: asyncio.StreamReader) -> bytes:
    whole = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        whole += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return whole


# Framing


def test_a_stream_of_unknown_length_is_sent_in_chunks_and_the_connection_goes_on() -> None:
    async def story() -> None:
        handler = Streams(Pieces(PIECES))
        async with connected(handler) as (_, reader, writer):
            writer.write(GET)
            head = await head_of(reader)
            assert b"transfer-encoding: chunked" in head
            assert b"content-length" not in head
            assert await chunks_of(reader) == WHOLE
            writer.write(PLAIN)
            assert b"content-length: 5" in await head_of(reader)
            assert await reader.readexactly(5) == b"plain"
            assert handler.source.closed == 1

    told(story)


def test_a_stream_of_known_length_is_sent_as_it_is() -> None:
    async def story() -> None:
        handler = Streams(Pieces(PIECES), len(WHOLE))
        async with connected(handler) as (_, reader, writer):
            writer.write(GET + PLAIN)
            head = await head_of(reader)
            assert b"content-length: %d" % len(WHOLE) in head
            assert b"transfer-encoding" not in head
            assert await reader.readexactly(len(WHOLE)) == WHOLE
            await head_of(reader)
            assert await reader.readexactly(5) == b"plain"

    told(story)


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n", b"Host: x\r\n"])
def test_to_http_1_0_the_end_of_the_connection_is_the_end_of_the_stream(keep: bytes) -> None:
    async def story() -> None:
        async with connected(Streams(Pieces(PIECES))) as (_, reader, writer):
            writer.write(b"GET /stream HTTP/1.0\r\n" + keep + b"\r\n")
            head = await head_of(reader)
            assert b"transfer-encoding" not in head
            assert b"connection: close" in head
            assert await reader.read() == WHOLE

    told(story)


def test_connection_close_is_kept_to_after_a_stream() -> None:
    async def story() -> None:
        async with connected(Streams(Pieces(PIECES))) as (_, reader, writer):
            writer.write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert b"connection: close" in await head_of(reader)
            assert await chunks_of(reader) == WHOLE
            assert await reader.read() == b""

    told(story)


def test_a_head_request_gets_the_head_and_asks_for_no_piece() -> None:
    async def story() -> None:
        handler = Streams(Pieces(PIECES))
        async with connected(handler) as (_, reader, writer):
            writer.write(GET.replace(b"GET", b"HEAD") + PLAIN)
            assert b"transfer-encoding: chunked" in await head_of(reader)
            assert b"content-length: 5" in await head_of(reader)
            assert (handler.source.pulls, handler.source.closed) == (0, 1)

    told(story)


# Turns


def test_what_was_asked_after_a_stream_is_answered_after_it() -> None:
    async def story() -> None:
        async with connected(Streams(Pieces(PIECES))) as (_, reader, writer):
            writer.write(PLAIN + GET + PLAIN + PLAIN)
            await head_of(reader)
            assert await reader.readexactly(5) == b"plain"
            await head_of(reader)
            assert await chunks_of(reader) == WHOLE
            for _ in range(2):
                await head_of(reader)
                assert await reader.readexactly(5) == b"plain"

    told(story)


def test_a_client_that_closes_its_side_still_gets_all_of_a_stream() -> None:
    async def story() -> None:
        async with connected(Streams(Pieces(PIECES))) as (_, reader, writer):
            writer.write(GET)
            writer.write_eof()
            await head_of(reader)
            assert await chunks_of(reader) == WHOLE

    told(story)


def test_an_endless_stream_ends_when_the_client_closes_its_side() -> None:
    async def story() -> None:
        handler = Streams(Pieces([b"first"], then="wait"), endless=True)
        async with connected(handler) as (_, reader, writer):
            writer.write(GET)
            await head_of(reader)
            await until(lambda: handler.source.waits)
            writer.write_eof()
            assert await chunks_of(reader) == b"first"
            assert handler.source.closed == 1

    told(story)


# Pressure


def test_a_client_that_does_not_read_is_not_read_for() -> None:
    async def story() -> None:
        handler = Streams(Pieces([b"x" * 100_000] * 1000))
        async with connected(handler, slow_client_seconds=1) as (server, reader, writer):
            link: socket.socket = writer.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(GET)
            await until(lambda: not server.connections)
            assert handler.source.pulls < 200, "as much as the system's buffers hold, and no more"
            assert handler.source.closed == 1

    told(story)


def test_a_client_that_reads_slowly_gets_everything() -> None:
    async def story() -> None:
        pieces = [bytes([number]) * 50_000 for number in range(100)]
        async with connected(Streams(Pieces(pieces))) as (_, reader, writer):
            writer.write(GET)
            await head_of(reader)
            whole = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                whole += await reader.readexactly(size)
                await reader.readexactly(2)
                await asyncio.sleep(0)
            assert whole == b"".join(pieces)

    told(story)


# Ends


def test_a_client_that_goes_away_ends_its_stream() -> None:
    async def story() -> None:
        handler = Streams(Pieces([b"x" * 100_000] * 100_000))
        async with connected(handler) as (server, reader, writer):
            writer.write(GET + PLAIN)
            await head_of(reader)
            writer.transport.abort()
            await until(lambda: not server.connections)
            assert handler.source.closed == 1

    told(story)


def test_a_stream_that_is_ready_after_its_client_has_gone_is_closed() -> None:
    async def story() -> None:
        handler = Streams(Pieces(PIECES))
        handler.ready = asyncio.get_running_loop().create_future()
        async with connected(handler) as (server, _, writer):
            writer.write(GET)
            await until(lambda: handler.requests == 1)
            link: socket.socket = writer.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()  # A plain end could be that of a client which still waits for its answer.
            await until(lambda: not server.connections)
            handler.ready.set_result(None)
            await until(lambda: handler.source.closed == 1)
            assert handler.source.pulls == 0

    told(story)


@pytest.mark.parametrize("late", [False, True])
def test_a_stream_behind_a_last_answer_is_closed_unsent(late: bool) -> None:
    async def story() -> None:
        first, second = Pieces(PIECES, then="wait"), Pieces(PIECES)
        handler = Streams(first)
        async with connected(handler) as (_, reader, writer):
            old = b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
            writer.write(old)
            await until(lambda: first.waits)
            handler.stream = Stream(200, b"", second)
            ready = handler.ready = asyncio.get_running_loop().create_future() if late else None
            writer.write(old)
            await until(lambda: handler.requests == 2)
            first.finish()
            await head_of(reader)
            assert await reader.read() == WHOLE
            if ready:
                ready.set_result(None)
            await until(lambda: second.closed == 1)
            assert second.pulls == 0

    told(story)


@pytest.mark.parametrize("length", [None, 100_000])
def test_a_stream_that_fails_does_not_look_complete(length: int | None) -> None:
    async def story() -> None:
        handler = Streams(Pieces([b"something"], then="fail"), length)
        async with connected(handler) as (_, reader, writer):
            writer.write(GET + PLAIN)
            await head_of(reader)
            rest = await reader.read()
            assert rest == (b"9\r\nsomething\r\n" if length is None else b"something")
            assert handler.source.closed == 1

    told(story)


def test_a_stream_that_fails_resets_the_connection_if_its_end_would_be_the_end_of_the_body() -> None:
    async def story() -> None:
        handler = Streams(Pieces([b"something"], then="fail"))
        async with connected(handler) as (_, reader, writer):
            writer.write(b"GET /stream HTTP/1.0\r\n\r\n")
            await until(lambda: handler.source.closed == 1)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1 << 20)

    told(story)


def test_a_stop_ends_what_would_go_on_for_ever_cleanly() -> None:
    async def story() -> None:
        handler = Streams(Pieces([b"first"], then="wait"), endless=True)
        async with connected(handler) as (server, reader, writer):
            writer.write(GET)
            await head_of(reader)
            await until(lambda: handler.source.waits)
            server.stop()
            assert await chunks_of(reader) == b"first"
            assert await reader.read() == b""
            await until(lambda: not server.connections)
            assert handler.source.closed == 1

    told(story)


def flows_left() -> int:
    gc.collect()
    return sum(type(found) is Flow for found in gc.get_objects())


def test_nothing_is_left_of_a_stream_that_has_ended() -> None:
    async def story() -> None:
        handler = Streams(Pieces(PIECES))
        async with connected(handler) as (_, reader, writer):
            writer.write(GET)
            await head_of(reader)
            del handler.stream, handler.source  # A handler does not keep what it has answered with.
            assert await chunks_of(reader) == WHOLE

    before = flows_left()
    told(story)
    assert flows_left() == before
