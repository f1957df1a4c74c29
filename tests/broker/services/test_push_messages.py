from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.services.push_messages import (
    Reply,
    RequestWriter,
    ResponseReader,
    outcome_of,
    parse_url,
    retry_after_ns,
)
from penstock.errors import ProtocolError
from penstock.ids import ID_KEY_BYTES, MessageIds
from penstock.limits import PUSH_RESPONSE_BODY_BYTES_MAX, RETRY_AFTER_SECONDS_MAX, SECOND_NS
from penstock.model.answers import Delivery

NOW = 1_800_000_000 * SECOND_NS
IDS = MessageIds(bytes(ID_KEY_BYTES))


# ── Where to ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "authority", "port", "target"),
    [
        ("http://example.org", "example.org", 80, "/"),
        ("https://example.org/hook?a=b&c=%20", "example.org", 443, "/hook?a=b&c=%20"),
        ("http://Example.org:8080/", "example.org:8080", 8080, "/"),
        ("https://example.org:443/x", "example.org", 443, "/x"),
        ("http://[2001:db8::1]:81/x", "[2001:db8::1]:81", 81, "/x"),
        ("http://example.org?q", "example.org", 80, "/?q"),
    ],
)
def test_a_url_says_where_to(url: str, authority: str, port: int, target: str) -> None:
    endpoint = parse_url(url)
    assert (endpoint.authority, endpoint.port, endpoint.target) == (authority, port, target)
    assert endpoint.secure == url.startswith("https")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "http://"),
        ("example.org/x", "http://"),
        ("ftp://example.org/", "http://"),
        ("file:///etc/passwd", "http://"),
        ("unix:/run/docker.sock", "http://"),
        ("http://", "host"),
        ("http:///x", "host"),
        ("http://example.org:0/", "host"),
        ("http://example.org:99999/", "cannot be read"),
        ("http://[::1/", "cannot be read"),
        ("http://me:secret@example.org/", "password"),
        ("http://example.org/#top", "fragment"),
        ("http://example.org/a b", "ASCII"),
        ("http://example.org/a\r\nHost: evil", "ASCII"),
        ("http://exämple.org/", "ASCII"),
        ("http://example.org/" + "x" * 2048, "2048"),
    ],
)
def test_what_is_no_url_to_push_to_is_refused_with_a_reason(url: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        parse_url(url)


# ── What is sent ──────────────────────────────────────────────────────────────────────────────────────────────


def a_delivery(
    body: bytes = b"hello", content_type: str = "text/plain", sender: str = "", key: bytes = b""
) -> Delivery:
    sizes = (len(body), len(key), 0)
    return Delivery(1, 5, 0, *sizes, content_type, sender, 0, 2, NOW, NOW, body, key)


def test_a_request_is_written_like_this() -> None:
    writer = RequestWriter(IDS, "büro", parse_url("http://example.org:81/in?x"), "1.2")
    assert writer.write(a_delivery()) == (
        b"POST /in?x HTTP/1.1\r\nHost: example.org:81\r\nUser-Agent: penstock/1.2\r\n"
        b"X-Penstock-Channel: b%C3%BCro\r\n"
        b"X-Penstock-Id: " + IDS.make(1, 5) + b"\r\nX-Penstock-Receives: 2\r\n"
        b"X-Penstock-Created: 2027-01-15T08:00:00.000000Z\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\n"
    )


words = st.text(max_size=40)


@given(words, words, words, st.binary(max_size=40), words, words)
def test_nothing_that_a_producer_says_ends_a_header_line(
    channel: str, content_type: str, sender: str, key: bytes, about: str, topics: str
) -> None:
    writer = RequestWriter(IDS, channel, parse_url("http://example.org/"), "1")
    delivery = a_delivery(b"", content_type, sender, key)
    delivery.object, delivery.topics = about, topics
    head = writer.write(delivery)
    lines = head.decode("ascii").split("\r\n")
    assert lines[-2:] == ["", ""]
    assert len(lines) == 11 + sum(map(bool, (sender, key, about, topics)))
    assert all(line.isprintable() and ": " in line for line in lines[1:-2])


# ── What comes back ───────────────────────────────────────────────────────────────────────────────────────────

RESPONSES = {
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n": Reply(200, "success", True),
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello": Reply(200, "success", True),
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n": Reply(200, "success", False),
    b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n": Reply(200, "success", False),
    b"HTTP/1.1 204 No Content\r\n\r\n": Reply(204, "success", True),
    b"HTTP/1.1 204 \r\nx-penstock-outcome: Not-Interested\r\n\r\n": Reply(204, "not_interested", True),
    b"HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\nno": Reply(422, "invalid", True),
    b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n": Reply(503, "retry", True, b"7"),
    b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n": Reply(302, "retry", True),
    b"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n": Reply(304, "retry", True),
    b"HTTP/1.1 201 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": Reply(201, "success", True),
    b"HTTP/1.1 100 Go on\r\nRetry-After: 9\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n": Reply(
        200, "success", True
    ),
}


def cut(data: bytes, at: list[int]) -> list[bytes]:
    return [data[start:stop] for start, stop in pairwise([0, *sorted(at), len(data)])]


@pytest.mark.parametrize(("data", "reply"), RESPONSES.items(), ids=range(len(RESPONSES)))
def test_a_response_is_understood_however_it_is_cut(data: bytes, reply: Reply) -> None:
    for pieces in ([data], cut(data, list(range(1, len(data)))), *[cut(data, [at]) for at in range(1, len(data))]):
        reader = ResponseReader()
        for piece in pieces[:-1]:
            assert reader.receive(piece) is None
        assert reader.receive(pieces[-1]) == reply


def test_one_reader_reads_one_response_after_the_other() -> None:
    reader = ResponseReader()
    for data, reply in RESPONSES.items():
        if reply.keep_alive:
            reader.expect()
            assert reader.receive(data) == reply


@pytest.mark.parametrize("tail", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 500 "])
def test_what_follows_a_response_changes_nothing_but_ends_the_connection(tail: bytes) -> None:
    reader = ResponseReader()
    reply = reader.receive(b"HTTP/1.1 422 No\r\nContent-Length: 2\r\nRetry-After: 4\r\n\r\nno" + tail)
    assert reply == Reply(422, "invalid", False, b"4")


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", Reply(200, "success", False)),
        (b"HTTP/1.1 422 OK\r\n\r\nfor this reason", Reply(422, "invalid", False)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Le", None),
        (b"HTTP/1.1 100 Go on\r\n\r\n", None),
        (b"", None),
    ],
)
def test_the_end_of_a_connection_ends_only_a_response_without_a_length(data: bytes, reply: Reply | None) -> None:
    reader = ResponseReader()
    assert not data or reader.receive(data) is None
    assert reader.end() == reply


def test_more_of_a_body_than_is_read_of_any_is_not_waited_for() -> None:
    reader = ResponseReader()
    assert reader.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n") is None
    assert reader.receive(bytes(PUSH_RESPONSE_BODY_BYTES_MAX)) is None
    assert reader.receive(b"x") == Reply(200, "success", False)


def test_a_trailer_says_nothing() -> None:
    reply = ResponseReader().receive(
        b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\nRetry-After: 9\r\n\r\n"
    )
    assert reply is not None
    assert (reply.status, reply.retry_after, reply.keep_alive) == (503, b"", True)


@pytest.mark.parametrize("trailer", [b"X-Padding: " + b"x" * 1000, b"X: y\r\n" * 200])
def test_no_more_is_read_of_trailers_than_of_a_body(trailer: bytes) -> None:
    reader = ResponseReader()
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + trailer
    assert reader.receive(begun) is None
    read = 0
    more = trailer if trailer.endswith(b"\n") else b"x" * 1000
    while (reply := reader.receive(more)) is None:
        read += len(more)
        assert read < 3 * PUSH_RESPONSE_BODY_BYTES_MAX
    assert (reply.status, reply.outcome, reply.keep_alive) == (200, "success", False)


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Other\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 16),
        b"HTTP/1.1 100 Go on\r\n\r\n" * 2000,
    ],
    ids=range(8),
)
def test_what_is_no_response_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="response"):
        ResponseReader().receive(data)


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_no_bytes_whatever_do_more_harm_than_that(pieces: list[bytes]) -> None:
    reader = ResponseReader()
    try:
        for piece in pieces:
            reader.receive(piece)
        reader.end()
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("status", "said", "outcome"),
    [
        (200, b"", "success"),
        (299, b"", "success"),
        (204, b"not-interested", "not_interested"),
        (200, b"not-interested", "success"),
        (204, b"else", "success"),
        (422, b"", "invalid"),
        (400, b"", "retry"),
        (301, b"", "retry"),
        (429, b"", "retry"),
        (500, b"not-interested", "retry"),
    ],
)
def test_the_outcome_is_in_the_status(status: int, said: bytes, outcome: str) -> None:
    assert outcome_of(status, said) == outcome


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"", 0),
        (b"0", 0),
        (b" 120 ", 120),
        (b"99999999999999999999", RETRY_AFTER_SECONDS_MAX),
        (b"Fri, 15 Jan 2027 08:01:00 GMT", 60),
        (b"Fri, 15 Jan 2021 08:01:00 GMT", 0),
        (b"Fri, 15 Jan 2099 08:01:00 GMT", RETRY_AFTER_SECONDS_MAX),
        (b"-5", 0),
        (b"soon", 0),
        (b"\xff", 0),
        (b"Fri, 99 Jan 2027 08:01:00 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date_within_bounds(text: bytes, seconds: int) -> None:
    assert retry_after_ns(text, NOW) == seconds * SECOND_NS
