"""A request whose head was seen before is taken without the parser, and makes no difference to anyone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.broker.turns import Turns
from penstock.config.config import HttpConfig
from penstock.dialects.wire.http import BodyRule, Call, Headers, Request, Response
from penstock.errors import Reason
from penstock.model.answers import Answer, Refused
from penstock.model.client import Client
from penstock.model.commands import Command, DescribeQueue
from penstock.model.queries import Query
from penstock.shells.exchanges import Route
from penstock.shells.http import HttpConnection
from penstock.shells.http_server import HttpServer
from tests.support.effort import effort
from tests.support.shells import Wire


class Witness:
    """Tells each request what was understood of it. What is asked for under /later is answered later."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._waiting: list[Callable[[], None]] = []

    def refusal(self, headers: Headers) -> Response | None:
        return Response(403) if headers.get(b"host") == b"evil" else None

    def head_refusal(self, request: Request) -> None:
        pass

    def failed(self, request: Request) -> Response:
        return Response(500)

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        return BodyRule(1 << 20)

    def route(self, request: Request) -> Route:
        return self.handle

    def handle(self, request: Request) -> Response | Call:
        told = repr((request.method, request.target, sorted(request.headers.items()), request.body, request.cut))
        if request.method == b"GET":
            return Call(DescribeQueue(told), lambda answer: Response(200, f"told later: {answer}".encode()))
        self.seen.append(told)
        return Response(200, told.encode())

    def ask(self, client: Client, query: Query, reply: Callable[[Any], None], /) -> None:
        raise AssertionError("nothing here is a question")

    def submit(self, client: Client, command: Command, reply: Callable[[Answer], None]) -> None:
        assert isinstance(command, DescribeQueue)
        self.seen.append(command.name)
        answer = Refused(Reason.NO_QUEUE, command.name)
        if "/later" in command.name:
            self._waiting.append(partial(reply, answer))
        else:
            reply(answer)

    def release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply()

    def decide_collected(self) -> None:
        pass


def a_server(witness: Witness, *, forgetful: bool = False) -> HttpServer:
    server = HttpServer(witness, HttpConfig(), Turns(clock=lambda: 0.0))  # No request takes long.
    if forgetful:
        server.known.most = 0
    return server


def a_connection(server: HttpServer) -> tuple[HttpConnection, Wire]:
    connection, wire = HttpConnection(server), Wire()
    connection.connection_made(wire)
    return connection, wire


def answers(reads: list[bytes], *, forgetful: bool) -> tuple[bytes, bool, int]:
    server = a_server(Witness(), forgetful=forgetful)
    connection, wire = a_connection(server)
    most = 0
    for read in reads:
        if not wire.ended:
            connection.data_received(read)
        most = max(most, len(server.known.fields))
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
    server = a_server(Witness())
    connection, wire = a_connection(server)
    request = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
    for _ in range(4):
        connection.data_received(request % 1)
    assert list(server.known.heads) == [(request % 1).removesuffix(b"\r\n\r\n")]
    assert wire.written.count(b"told later") == 4
    for number in range(3000):
        connection.data_received(request % number)
    assert wire.written.count(b"told later") == 3004
    assert len(server.known.heads) <= 1024


def test_a_broker_that_stops_closes_after_a_request_whose_head_is_known() -> None:
    server = a_server(Witness())
    connection, wire = a_connection(server)
    connection.data_received(PLAIN)
    server.stopping = True
    connection.data_received(PLAIN)
    assert b"Connection: close" in wire.written
    assert wire.ended


# ── Any bytes, in any pieces ──────────────────────────────────────────────────────────────────────────────────

INNER = b"POST /inner HTTP/1.1\r\nHost: here\r\n\r\n"


def post(fields: bytes, body: bytes, length: int | None = None, target: bytes = b"/a") -> bytes:
    size = len(body) if length is None else length
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (target, fields, size, body)


def looks_whole_without_its_end() -> bytes:
    """A request that is as long as its body says when only the CR after its last field has come."""
    request = post(b"Host: here\r\n", b"")
    while len(request) - 3 - 3 != (size := int(request.split(b": ")[-1])):
        request = post(b"Host: here\r\n", b"", size + 1)
    return request + (INNER * 3)[:size].ljust(size, b".")


AWKWARD = looks_whole_without_its_end()
AWKWARD_END = len(AWKWARD) - AWKWARD.index(b"\r\n\r\n") - 1
USUAL = [
    AWKWARD,
    PLAIN,
    post(b"Host: here\r\n", b"HELLO", target=b"/b?c=%20"),
    post(b"Host: here\r\n", b"hello", target=b"abc"),
    INNER,
    b"GET /later HTTP/1.1\r\nHost: here\r\n\r\n",
    PLAIN.replace(b"here", b"evil"),
]
LESSONS = [*USUAL * 2, b"\r\n" + PLAIN, b"\r\n\r\n" + INNER]
rarer = st.sampled_from(
    [
        post(b"Host: here\r\n", b"hell", 4),
        post(b"Host: here\r\n", b"helloo", 5),
        post(b"Host: here\r\n", INNER),
        post(b"Host: here\r\n", INNER + PLAIN, len(INNER)),
        post(b"Host: here\r\n", b"\r\n\r\n"),
        post(b"Host: here\r\nHost: there\r\n", b"x"),
        post(b"Host: here\r\nContent-Length: 5\r\n", b"hello"),
        post(b"Host: here\r\nProxy-Connection: close\r\n", b"x"),
        post(b"Host: here\r\nConnection: close\r\n", b"x"),
        post(b"Host: here\r\nExpect: 100-continue\r\n", b"x"),
        post(b"X: y\r\n", b"x"),
        post(b"Host: here\r\n", b"x", target=b"*"),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET /later HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"DELETE /1 HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: here\r\n\r\n",
        b"GET / HTTP/1.1\nHost: here\n\n",
        b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n29\r\n%b\r\n0\r\nX: y\r\n\r\n" % INNER,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: here\r\n\r\n",
    ]
)
scraps = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"G", b"POST ", b"POST /x HTTP/1.1\r\n", b"Host: here\r\n\r\n", b"\0", b" "]
)
usual = st.sampled_from(USUAL)
pieces = st.one_of(usual, usual, rarer, scraps)


@st.composite
def split_streams(draw: st.DrawFn) -> list[bytes]:
    """Bytes, and where the reads of them end: mostly with a piece, else anywhere, and often beside a CR or an LF."""
    parts = draw(st.lists(pieces, min_size=1, max_size=7)) * draw(st.sampled_from([1, 1, 1, 1, 30]))
    stream = b"".join(parts)
    ends = {sum(map(len, parts[:count])) for count in range(1, len(parts)) if draw(st.integers(0, 3))}
    line_ends = [place + 1 for place, byte in enumerate(stream) if byte in b"\r\n"]
    head_ends = [place - 3 for place in line_ends if stream[place - 4 : place] == b"\r\n\r\n"]
    anywhere = st.integers(1, max(1, len(stream) - 1))
    places = [anywhere, *(st.sampled_from(marks) for marks in (line_ends, head_ends) if marks)]
    ends |= draw(st.sets(st.one_of(places), max_size=3))
    edges = [0, *sorted(end for end in ends if end < len(stream)), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


happenings = st.lists(st.sampled_from(["", "", "", "", "release", "choke", "unchoke", "stop"]), max_size=12)


def converse(
    streams: list[list[bytes]], happens: list[str], *, forgetful: bool, lessons: Sequence[bytes] = ()
) -> tuple[list[str], list[tuple[bytes, bool, bool]]]:
    """What was carried out and answered on connections to one server, one after the other."""
    return asyncio.run(_converse(streams, happens, forgetful=forgetful, lessons=lessons))


async def _converse(
    streams: list[list[bytes]], happens: list[str], *, forgetful: bool, lessons: Sequence[bytes] = ()
) -> tuple[list[str], list[tuple[bytes, bool, bool]]]:
    witness = Witness()
    server = a_server(witness, forgetful=forgetful)
    told = []
    for lesson in lessons:
        a_connection(server)[0].data_received(lesson)
    witness.release()
    for stream in streams:
        connection, wire = a_connection(server)
        unread = deque(stream)
        for happening in (*happens, *[""] * len(unread), "unchoke", *["release"] * len(unread), "release"):
            if unread and wire.reading and not wire.ended:
                connection.data_received(unread.popleft())
            if happening == "release":
                witness.release()
            elif happening == "choke" and not wire.ended:
                connection.pause_writing()
            elif happening == "unchoke" and not wire.ended:
                connection.resume_writing()
            elif happening == "stop":
                server.stopping = True
            while server.turns._waiting:  # noqa: ASYNC110 - A large read is handled in parts.
                await asyncio.sleep(0)
        connection.connection_lost(None)
        told.append((wire.written, wire.ended, wire.reading and not wire.ended))  # Nothing is read after the end.
    return witness.seen, told


@effort(200)
@given(st.lists(split_streams(), min_size=1, max_size=2), happenings)
def test_any_bytes_in_any_pieces_are_understood_alike_whether_heads_are_remembered_or_not(
    streams: list[list[bytes]], happens: list[str]
) -> None:
    remembered = converse(streams, happens, forgetful=False, lessons=LESSONS)
    assert remembered == converse(streams, happens, forgetful=True, lessons=LESSONS)


def test_a_head_that_ends_on_a_cr_is_not_taken_for_a_whole_request() -> None:
    seen, _ = converse([[AWKWARD] * 2, [AWKWARD[:-AWKWARD_END], AWKWARD[-AWKWARD_END:]]], [], forgetful=False)
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_a_request_after_the_one_that_ends_the_connection_is_not_carried_out() -> None:
    last = b"GET /later HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    seen, told = converse([[PLAIN] * 2, [last, PLAIN]], ["", "", "release"], forgetful=False)
    assert len(seen) == 3
    assert told[1][0].count(b"HTTP/1.1 200") == 1


def test_requests_that_wait_are_answered_before_the_garbage_behind_them_is_refused() -> None:
    async def story() -> None:
        server = a_server(Witness())
        connection, wire = a_connection(server)
        later = b"GET /later HTTP/1.1\r\nHost: here\r\n\r\n"
        connection.data_received(later * 40 + b"\0")
        while b"HTTP/1.1 400" not in wire.written:
            before = wire.written
            server.handler.release()  # type: ignore[attr-defined]
            assert wire.written != before
        assert wire.written.count(b"HTTP/1.1 200") == 40
        assert wire.ended

    asyncio.run(story())


def test_fields_that_are_refused_are_refused_again_whatever_came_before_them() -> None:
    evil = PLAIN.replace(b"here", b"evil")
    for before in ([], [PLAIN], [PLAIN * 400]):
        _, told = converse([[*before, evil, evil, evil]], [], forgetful=False)
        assert told[0][0].count(b"HTTP/1.1 403") == 3
