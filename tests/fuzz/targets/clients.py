"""Targets: what our clients read. Answers to the Python client, events, and responses of push endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec

from penstock.broker.services.push_messages import ResponseReader, retry_after_ns
from penstock.client import results
from penstock.client.connection import Answer, Connection, LostError
from penstock.client.encoding import body_of
from penstock.client.errors import ClientError
from penstock.client.events import _Reading
from penstock.client.transport import refusal, retry_after
from penstock.errors import ProtocolError
from penstock.limits import RETRY_AFTER_SECONDS_MAX, SECOND_NS
from tests.fuzz.target import Target
from tests.support.shells import Wire

_loop = asyncio.new_event_loop()


def in_loop(target: Callable[[bytes], Coroutine[Any, Any, None]]) -> Callable[[bytes], None]:
    """A target that needs an event loop; all of them share one."""
    return lambda data: _loop.run_until_complete(target(data))


async def _answers(data: bytes) -> None:
    """Answers to three requests, the last of which is read as a stream; whole, and byte by byte."""
    assert await _read([data]) == await _read([data[at : at + 1] for at in range(len(data))])


async def _read(pieces: list[bytes]) -> list[object]:
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    waiting = [connection.send(b"1"), connection.send(b"2")]
    stream = connection.stream(b"3")
    for piece in pieces:
        if not wire.aborted:
            connection.data_received(piece)
    connection.connection_lost(None)
    heads = await asyncio.gather(*waiting, stream.begun, return_exceptions=True)
    assert not [each for each in heads if isinstance(each, BaseException) and not isinstance(each, LostError)]
    body = b""
    try:
        while piece := await stream.read():
            body += piece
    except LostError:
        pass
    return [*[None if isinstance(each, LostError) else each for each in heads], body]


def _answer_seeds() -> Iterator[bytes]:
    whole = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"id":"abcd"}'
    yield whole * 2
    yield whole + b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    yield whole * 2 + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n"
    yield b"HTTP/1.1 100 Continue\r\n\r\n" + whole + b"HTTP/1.1 204 No Content\r\n\r\n"


def _refusals(data: bytes) -> None:
    """The first line is a header, the rest a body."""
    after, _, body = data.partition(b"\n")
    answer = Answer(503, {b"retry-after": after}, body)
    wait = retry_after(answer)
    assert wait is not None
    assert 0 <= wait < float("inf")
    assert isinstance(refusal(answer, "it"), ClientError)


_documents = [
    msgspec.json.Decoder(kind).decode
    for kind in (
        results.Confirmed,
        results.Outcome,
        list[results.SentFacts],
        list[results.MessageFacts],
        results.Queue,
        results.Schedule,
        results.Job,
        results.Event,
        results.FoundPage,
    )
]


def _documents_read(data: bytes) -> None:
    for decode in _documents:
        try:
            found = decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        repr(found)
    try:
        text = msgspec.json.decode(data, type=str)
        body_of(text, msgspec.UNSET)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass


def _events(data: bytes) -> None:
    """Server-Sent Events, however they are split."""
    found = []
    for size in (len(data) or 1, 1, 7):
        reading = _Reading("0")
        events: list[object] = []
        try:
            for at in range(0, len(data), size):
                events += reading._parsed(data[at : at + size])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = []
        found.append((events, reading.place if events else None))
    assert found[0] == found[1] == found[2]


def _push_responses(data: bytes) -> None:
    for size in (len(data) or 1, 1, 7):
        reader = ResponseReader()
        try:
            for at in range(0, len(data), size):
                if reply := reader.receive(data[at : at + size]):
                    assert reply.outcome in ("success", "invalid", "not_interested", "retry")
                    reader.expect()
            reader.end()
        except ProtocolError:
            pass
    assert 0 <= retry_after_ns(data, 0) <= RETRY_AFTER_SECONDS_MAX * SECOND_NS


_EVENT = b'id: 7\nevent: L\ndata: {"offset":6,"letter":"L","kind":"logged","time":"2026-01-31T23:59:59Z"}\n\n'

TARGETS = [
    Target("client-answers", in_loop(_answers), _answer_seeds),
    Target(
        "client-refusals",
        _refusals,
        lambda: [b'1\n{"error":"no","code":"queue_missing"}', b"nan\n[]", b"1e400\n\xff", b"\n"],
    ),
    Target(
        "client-documents",
        _documents_read,
        lambda: [
            b'{"id":"a","outcome":"success","discarded":false}',
            b'[{"id":"a","queue":"b","message":"c","receives":1,"created":"2026-01-31T23:59:59Z"}]',
            b'{"name":"a","status":{},"settings":{}}',
            b'{"messages":[],"next":null}',
        ],
    ),
    Target("client-events", _events, lambda: [_EVENT, b": heartbeat\n\n" + _EVENT * 2]),
    Target(
        "push-responses",
        _push_responses,
        lambda: [*_answer_seeds(), b"Wed, 21 Oct 2026 07:28:00 GMT", b"120"],
    ),
]
