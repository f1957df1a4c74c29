"""One connection that sends much leaves room for the others, in every shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.dialects.etzel.codec import refusal
from penstock.dialects.wire.conversation import Peer
from penstock.dialects.wire.frames import PING
from penstock.dialects.wire.http import Awaited, BodyRule, Headers, Request, Response, Steps, Stream, Work
from penstock.limits import BODY_BYTES_MAX, LINES_REPLY_BYTES_MAX
from penstock.model.answers import Answer
from penstock.model.commands import Command
from penstock.server.config import HttpConfig, LinesConfig, WsConfig
from penstock.server.shells.exchanges import Route
from penstock.server.shells.http import HttpConnection, HttpServer
from penstock.server.shells.lines import LineConnection, LineServer
from penstock.server.shells.turns import Turns
from penstock.server.shells.ws import WsConnection
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, until

MANY = 5000


class Wire(asyncio.Transport):
    """Takes what is written, and knows whether it may be read from."""

    def __init__(self, extra: dict[str, object] | None = None) -> None:
        super().__init__(extra)
        self.written = b""
        self.reading = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Witness:
    """Notes what is asked for, and answers at once, but for /long, which takes a hundred steps, and /door, which is
    shut."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.awaited: list[Callable[[Response | Stream], None]] = []
        self.steps = 0

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        return BodyRule(1 << 20)

    def refusal(self, headers: Headers) -> Response | None:
        return None

    def route(self, request: Request) -> Route:
        return self.handle

    def handle(self, request: Request) -> Response | Work | Awaited:
        self.seen.append(request.target)
        if request.target == b"/elsewhere":
            return Awaited(self.awaited.append)
        if request.target == b"/long":
            return Work(self._take_long())
        return Response(401 if request.target == b"/door" else 200)

    def _take_long(self) -> Steps:
        for _ in range(100):
            self.steps += 1
            yield None
        return Response(200, b"at last")

    def submit(self, command: Command, reply: Callable[[Answer], None]) -> None:
        raise AssertionError("nothing here is a command")

    def decide_collected(self) -> None: ...


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: here\r\n\r\n".encode()


def connected(server: HttpServer) -> tuple[HttpConnection, Wire]:
    connection, wire = HttpConnection(server), Wire()
    connection.connection_made(wire)
    return connection, wire


# ── The rotation ──────────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Digger:
    """Has so many parts to do, and notes whose turn it was."""

    def __init__(self, name: str, parts: int, done: list[str]) -> None:
        self.name = name
        self.parts = parts
        self._done = done

    def take_turn(self, *, crowded: bool) -> bool:
        self.parts -= 1
        self._done.append(self.name)
        return self.parts > 0


def test_whoever_has_much_to_do_takes_turns_with_the_others() -> None:
    async def story() -> list[str]:
        turns, done = Turns(), list[str]()
        diggers = [Digger(name, parts, done) for name, parts in (("a", 4), ("b", 2), ("c", 3))]
        for digger in diggers:
            turns.join(digger)
        turns.join(diggers[0])  # It is there already.
        await until(lambda: not any(digger.parts for digger in diggers))
        return done

    assert "".join(asyncio.run(story())) == "abcabcaca"


def test_whoever_has_much_to_do_stands_back_while_a_light_request_waits_for_the_disk() -> None:
    async def story() -> tuple[int, int]:
        busy, clock = True, Clock()
        turns, done = Turns(lambda: busy, clock), list[str]()
        turns._ran_at = clock.now  # Just now.
        turns.light += 1
        turns.join(Digger("a", 1000, done))
        await asyncio.sleep(0)
        waited = len(done)
        busy = False
        turns.after_commit()
        await asyncio.sleep(0)
        return waited, len(done)

    before, after = asyncio.run(story())
    assert (before, after > 0) == (0, True)


def test_nobody_stands_back_for_ever() -> None:
    async def story() -> None:
        turns, done = Turns(lambda: True, Clock()), list[str]()
        turns.light += 1
        turns.join(Digger("a", 100, done))
        await until(lambda: len(done) == 100)

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_defect_in_one_turn_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def take_turn(self, *, crowded: bool) -> bool:
            raise AssertionError("on purpose")

    async def story() -> list[str]:
        turns, done = Turns(), list[str]()
        turns.join(Broken())
        turns.join(Digger("a", 2, done))
        await until(lambda: len(done) == 2)
        return done

    assert asyncio.run(story()) == ["a", "a"]
    assert [record.message for record in caplog.records] == ["turn_failed"]


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_a_request_without_a_valid_token_is_the_last_of_its_connection() -> None:
    async def story() -> None:
        witness = Witness()
        server = HttpServer(witness, HttpConfig())
        connection, wire = connected(server)
        connection.data_received(get("/first") + get("/door") + get("/second") * MANY)
        assert witness.seen == [b"/first", b"/door"]
        assert wire.closed
        assert wire.written.count(b"HTTP/1.1 401") == 1
        assert wire.written.count(b"Connection: close") == 1

    asyncio.run(story())


# ── Lines and WebSocket ───────────────────────────────────────────────────────────────────────────────────────


class Echo:
    """Counts what it hears."""

    under_way = 0
    asleep = False
    guest = False

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.heard = 0

    def opened(self) -> None: ...
    def received(self, frame: bytes, *, binary: bool = False) -> None:
        self.heard += 1
        self._peer.send(frame)

    def refuse(self, error: str) -> None: ...
    def settle(self) -> None: ...
    def closed(self) -> None: ...


def test_of_many_lines_a_part_is_taken_at_once_and_all_in_the_end() -> None:
    async def story() -> None:
        conversations: list[Echo] = []

        def converse(peer: Peer) -> Echo:
            conversations.append(Echo(peer))
            return conversations[-1]

        server = LineServer(a_loop(MemoryLog()), LinesConfig(), converse, refusal)
        greedy, wire = LineConnection(server), Wire({"socket": _NoSocket()})
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
        connection, wire = LineConnection(server), Wire({"socket": _NoSocket()})
        connection.connection_made(wire)
        connection.data_received(b'{"cmd":"FET","qname":"large"}\n' * 100)
        await asyncio.sleep(0)
        assert conversations[0].heard == LINES_REPLY_BYTES_MAX // BODY_BYTES_MAX
        assert not wire.reading

    asyncio.run(story())


class _NoSocket:
    def setsockopt(self, *_: object) -> None: ...


def test_of_many_frames_a_part_is_taken_at_once_and_all_in_the_end() -> None:
    async def story() -> None:
        http, wire = HttpServer(Witness(), HttpConfig()), Wire()
        connection = WsConnection(http, a_loop(MemoryLog()), WsConfig(), wire)
        echo = Echo(connection)
        connection.open(echo, b"")
        http.turns.light += 1
        pings, texts = bytes((0x80 | PING, 0x80, 0, 0, 0, 0)), b"\x81\x81\0\0\0\0x"
        connection.data_received(pings * MANY + texts * MANY)
        assert len(wire.written) < MANY / 10
        assert not wire.reading
        await until(lambda: echo.heard == MANY)
        await until(lambda: wire.reading)
        assert wire.written == b"\x8a\x00" * MANY + b"\x81\x01x" * MANY

    asyncio.run(story())


def test_a_message_has_its_time_from_its_own_first_byte() -> None:
    async def story() -> None:
        http, wire = HttpServer(Witness(), HttpConfig(slow_client_seconds=1)), Wire()
        connection = WsConnection(http, a_loop(MemoryLog()), WsConfig(), wire)
        connection.open(Echo(connection), b"")
        whole = b"\x81\x81\0\0\0\0x"
        connection.data_received(whole[:3])
        for http.sweeps in range(1, 20):
            connection.data_received(whole[3:] + whole[:3])
            connection.check_time()
        assert wire.written == b"\x81\x01x" * 19
        http.sweeps += 3
        connection.check_time()
        assert wire.written.endswith(b"the message was not complete after 1 s")

    asyncio.run(story())
