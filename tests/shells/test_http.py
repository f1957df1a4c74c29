"""One HTTP connection that sends much leaves room for the others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from penstock.config.config import HttpConfig
from penstock.dialects.wire.http import Call, Request, Response
from penstock.model.answers import Answer, Done
from penstock.model.client import Client
from penstock.model.commands import Command, DescribeQueue
from penstock.shells.http import HttpConnection
from penstock.shells.http_server import HttpServer
from penstock.shells.long_answers import Worker
from tests.support.live_loop import until
from tests.support.shells import Wire, Witness

MANY = 5000


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: here\r\n\r\n".encode()


def connected(server: HttpServer) -> tuple[HttpConnection, Wire]:
    connection, wire = HttpConnection(server), Wire()
    connection.connection_made(wire)
    return connection, wire


def test_a_request_of_another_connection_is_handled_before_all_that_one_has_sent_at_once() -> None:
    async def story() -> None:
        witness = Witness()
        server = HttpServer(witness, HttpConfig())
        greedy, wire = connected(server)
        modest, answered = connected(server)
        greedy.data_received(get("/greedy") * MANY)
        assert len(witness.seen) < MANY / 10, "only a part is handled at once"
        assert not wire.reading, "and no more is read"
        modest.data_received(get("/modest"))
        assert witness.seen[-1] == b"/modest"
        assert answered.written.startswith(b"HTTP/1.1 200")
        await until(lambda: len(witness.seen) == MANY + 1)
        assert wire.written.count(b"HTTP/1.1 200") == MANY, "but all of it in the end"
        assert wire.reading

    asyncio.run(story())


@pytest.mark.parametrize("size", [1, 100, 1500, 30_000, 300_000])
def test_what_is_handled_in_parts_is_understood_as_if_it_came_at_once(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    post = b"POST /a HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % size + body[:size]
    chunked = b"POST /b HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"1\r\nx\r\n" * 999 + b"0\r\n\r\n"

    async def story() -> None:
        witness = Witness()
        server = HttpServer(witness, HttpConfig())
        connection, wire = connected(server)
        server.turns.light += 1  # So that the parts are small.
        connection.data_received((post + chunked + get("/c")) * 5)
        await until(lambda: len(witness.seen) == 15)
        assert witness.seen == [b"/a", b"/b", b"/c"] * 5
        assert wire.written.count(b"HTTP/1.1 200") == 15

    asyncio.run(story())


def test_an_answer_that_takes_long_is_made_while_others_are_answered() -> None:
    async def story() -> None:
        witness = Witness()
        server = HttpServer(witness, HttpConfig())
        slow, wire = connected(server)
        quick, answered = connected(server)
        slow.data_received(get("/long") + get("/long") + get("/after"))
        assert witness.seen == [b"/long"], "one long answer of a connection is made at a time"
        quick.data_received(get("/quick"))
        assert answered.written.startswith(b"HTTP/1.1 200")
        assert witness.steps < 100
        await until(lambda: b"/after" in witness.seen)
        assert wire.written.count(b"at last") == 2

    asyncio.run(story())


def test_one_answer_of_a_connection_is_made_elsewhere_at_a_time() -> None:
    witness = Witness()
    connection, wire = connected(HttpServer(witness, HttpConfig()))
    connection.data_received(get("/elsewhere") * 3)
    for number in (1, 2, 3):
        assert len(witness.awaited) == number
        assert wire.written.count(b"HTTP/1.1 200") == number - 1
        witness.awaited[-1](Response(200))
    assert wire.written.count(b"HTTP/1.1 200") == 3
    connection.data_received(get("/elsewhere"))
    connection.connection_lost(None)
    witness.awaited[-1](Response(200))  # Nobody waits for it any more.


def test_nothing_more_is_made_of_a_long_answer_when_the_client_has_gone() -> None:
    async def story() -> None:
        witness = Witness()
        server = HttpServer(witness, HttpConfig())
        connection, _ = connected(server)
        other, wire = connected(server)
        connection.data_received(get("/long"))
        connection.connection_lost(None)
        other.data_received(get("/long"))
        await until(lambda: b"at last" in wire.written)
        assert witness.steps == 100

    asyncio.run(story())


class Poll:
    """A command that waits."""

    def __init__(self, reply: Callable[[Answer], None]) -> None:
        self.reply = reply

    def cancel(self) -> None: ...
    def give_up(self) -> None: ...


class Waits(Witness):
    """Answers every request when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.polls: list[Poll] = []
        self.decisions = 0

    def decide_collected(self) -> None:
        self.decisions += 1

    def handle(self, request: Request) -> Response | Call:  # type: ignore[override]
        return Call(DescribeQueue("any"), lambda _: Response(200))

    def submit(self, client: Client, command: Command, reply: Callable[[Answer], None]) -> Poll:  # type: ignore[override]
        self.polls.append(Poll(reply))
        return self.polls[-1]


def test_the_writer_decides_between_two_requests_only_if_the_second_did_not_wait_for_the_first() -> None:
    handler = Waits()
    connection, _ = connected(HttpServer(handler, HttpConfig()))
    for _ in range(3):
        connection.data_received(get("/a"))
        handler.polls.pop().reply(Done())
    assert handler.decisions == 0
    connection.data_received(get("/a") * 3)
    assert handler.decisions == 2
    connection.connection_lost(None)
    handler.polls.clear()


def left(*kinds: type) -> list[object]:
    gc.collect()
    return [found for found in gc.get_objects() if type(found) in kinds]


@pytest.mark.parametrize("sent", [get("/a") * 500, get("/long"), get("/long") * 2 + get("/a")], ids=len)
def test_nothing_is_left_of_a_connection_that_is_gone(sent: bytes) -> None:
    async def story() -> None:
        server = HttpServer(Witness(), HttpConfig())
        connection, wire = connected(server)
        connection.data_received(sent)
        await until(lambda: wire.written.count(b"HTTP/1.1 200") == sent.count(b"GET"))
        connection.connection_lost(None)

    before = left(HttpConnection, Worker)
    asyncio.run(story())
    assert len(left(HttpConnection, Worker)) == len(before)


@pytest.mark.parametrize("is_answered", [True, False])
def test_nothing_is_left_of_a_request_that_waited(is_answered: bool) -> None:
    handler = Waits()
    connection, wire = connected(HttpServer(handler, HttpConfig()))
    for _ in range(10):
        connection.data_received(get("/a"))
        if is_answered:
            handler.polls.pop().reply(Done())
    connection.connection_lost(None)
    handler.polls.clear()
    assert wire.written.count(b"HTTP/1.1 200") == (10 if is_answered else 0)
    assert not left(Poll)


def test_a_request_without_a_valid_token_is_the_last_of_its_connection() -> None:
    async def story() -> None:
        witness = Witness()
        server = HttpServer(witness, HttpConfig())
        connection, wire = connected(server)
        connection.data_received(get("/first") + get("/door") + get("/second") * MANY)
        assert witness.seen == [b"/first", b"/door"]
        assert wire.ended
        assert wire.written.count(b"HTTP/1.1 401") == 1
        assert wire.written.count(b"Connection: close") == 1

    asyncio.run(story())
