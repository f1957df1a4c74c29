"""A request whose head was seen before is taken without the parser, and makes no difference to anyone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.dialects.http import BodyRule, Call, Headers, Request, Response
from penstock.errors import Reason
from penstock.model import Answer, Command, DescribeQueue, Refused
from penstock.server.config import HttpConfig
from penstock.server.http import HttpConnection, HttpServer, Route
from tests.engine.effort import effort


class Witness:
    """Tells each request what was understood of it."""

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        return BodyRule(1 << 20)

    def route(self, request: Request) -> Route:
        return self.handle

    def handle(self, request: Request) -> Response | Call:
        told = repr((request.method, request.target, sorted(request.headers.items()), request.body, request.cut))
        if request.method == b"GET":
            return Call(DescribeQueue(told), lambda answer: Response(200, f"told later: {answer}".encode()))
        return Response(200, told.encode())

    def submit(self, command: Command, reply: Callable[[Answer], None]) -> None:
        assert isinstance(command, DescribeQueue)
        reply(Refused(Reason.NO_QUEUE, command.name))

    def keep_order(self) -> None:
        pass


class Wire(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def answers(reads: list[bytes], *, forgetful: bool) -> tuple[bytes, bool, int]:
    server = HttpServer(Witness(), HttpConfig())
    wire = Wire()
    connection = HttpConnection(server)
    connection.connection_made(wire)
    most = 0
    for read in reads:
        if forgetful:
            server.known_fields.clear()
            server.known_heads.clear()
            connection._usual = None
        if not wire.ended:
            connection.data_received(read)
        most = max(most, len(server.known_fields))
    return wire.written, wire.ended, most


names = st.sampled_from(["Host", "Content-Type", "X-A", "Connection", "Expect", "Upgrade", "Transfer-Encoding"])
values = st.sampled_from(["a", "text/plain", "close", "keep-alive", "100-continue", "chunked", "b, c"])
fields = st.lists(st.tuples(names, values), max_size=3)
methods = st.sampled_from(["GET", "POST", "DELETE", "PATCH", "get", ""])
targets = st.sampled_from(
    ["/", "/a/b?c=d", "/a b", "*", "", "/\x01", "/caf\u00e9", "/%41", "http://x/y", "/" + "z" * 1500]
)
versions = st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1"])
bodies = st.sampled_from([b"", b"x", b"hello", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    body = draw(bodies)
    length = draw(st.sampled_from([len(body), len(body), len(body), len(body) + 1, max(0, len(body) - 1)]))
    lines = [f"{draw(methods)} {draw(targets)} {draw(versions)}", "Host: here"]
    lines += [f"{name}: {value}" for name, value in draw(fields)]
    lines += [f"Content-Length: {length}"] if body or draw(st.booleans()) else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


PLAIN = b"POST /messages/a HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhello"


@effort(400)
@given(st.lists(requests(), min_size=1, max_size=4), st.integers(1, 3), st.sampled_from([0, 0, 0, 7, 40]))
@example([PLAIN, PLAIN.replace(b"hello", b"HELLO")], 2, 0)
@example([PLAIN, PLAIN + PLAIN], 2, 0)
@example([PLAIN, PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0")], 2, 0)
def test_it_makes_no_difference_whether_a_head_was_seen_before(sent: list[bytes], times: int, cut: int) -> None:
    reads = [piece for request in sent * times for piece in ([request[:cut], request[cut:]] if cut else [request])]
    remembered, forgot = answers(reads, forgetful=False), answers(reads, forgetful=True)
    assert remembered[:2] == forgot[:2]


def test_plain_fields_are_remembered_and_special_ones_are_not() -> None:
    for request, count in (
        (PLAIN, 1),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1),
        (PLAIN + PLAIN, 0),
        (PLAIN.replace(b"Host: here", b"Host: here\r\nConnection: Keep-Alive"), 1),
        (PLAIN.replace(b"Host: here", b"Host: here\r\nConnection: close"), 0),
        (PLAIN.replace(b"Host: here", b"Host: " + b"h" * 1100), 0),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0),
    ):
        written, _, most = answers([request], forgetful=False)
        assert written.startswith(b"HTTP/1.1 200"), written
        assert most == count, request


def test_no_more_fields_are_remembered_than_there_is_room_for() -> None:
    reads = [b"GET / HTTP/1.1\r\nHost: a%d\r\n\r\n" % number for number in range(3000)]
    written, _, most = answers(reads, forgetful=False)
    assert written.count(b"HTTP/1.1 200") == 3000
    assert most == 1024


def test_a_request_without_a_body_is_remembered_with_what_it_led_to() -> None:
    server = HttpServer(Witness(), HttpConfig())
    wire = Wire()
    connection = HttpConnection(server)
    connection.connection_made(wire)
    request = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
    for _ in range(4):
        connection.data_received(request % 1)
    assert list(server.known_heads) == [(request % 1).removesuffix(b"\r\n\r\n")]
    assert wire.written.count(b"told later") == 4
    for number in range(3000):
        connection.data_received(request % number)
    assert wire.written.count(b"told later") == 3004
    assert len(server.known_heads) <= 1024


def test_a_broker_that_stops_closes_after_a_request_whose_head_is_known() -> None:
    server = HttpServer(Witness(), HttpConfig())
    wire = Wire()
    connection = HttpConnection(server)
    connection.connection_made(wire)
    connection.data_received(PLAIN)
    server.stopping = True
    connection.data_received(PLAIN)
    assert b"Connection: close" in wire.written
    assert wire.ended
