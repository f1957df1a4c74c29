"""Targets: what all dialects share. Frames, parts, JSON, times, header values, queries, ids and cursors."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import msgspec
from websockets.utils import apply_mask

from penstock.dialects.native import search
from penstock.dialects.native.parameters import number, parameters, seconds, time_of
from penstock.dialects.wire import frames, multipart
from penstock.dialects.wire.http import Request, checked_name, queue_name, whole_number
from penstock.dialects.wire.json_bodies import json_of
from penstock.dialects.wire.json_bounds import check_keys, longer_than
from penstock.errors import ProtocolError
from penstock.ids import MessageIds, is_uuid
from penstock.limits import SEQUENCE_MAX, UINT32_MAX
from penstock.model import kept_headers, times
from penstock.model.header_values import content_type_header, content_type_of
from penstock.model.searches import Messages
from tests.fuzz.target import Target

_IDS = MessageIds(bytes(16), 7)
_MASK = b"\1\2\3\4"


# ── WebSocket frames ──────────────────────────────────────────────────────────────────────────────────────────


def _read_frames(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], int | None]:
    reader, messages, read = frames.FrameReader(), list[tuple[int, bytes]](), 0
    try:
        for piece in pieces:
            reader.receive(piece, messages)
            read += len(piece)
            assert reader.buffered_bytes <= read
    except frames.FrameError as error:
        return messages, error.code
    return messages, None


def _frames(data: bytes) -> None:
    messages, fault = _read_frames([data])
    assert (messages, fault) == _read_frames([data[at : at + 1] for at in range(len(data))])
    for opcode, payload in messages:
        if opcode == frames.CLOSE:
            try:
                frames.close_code(payload)
            except frames.FrameError:
                pass
    if fault is None:
        again = b"".join(masked_frame(opcode, payload) for opcode, payload in messages)
        assert _read_frames([again]) == (messages, None)


def masked_frame(opcode: int, payload: bytes) -> bytes:
    """As a client sends it."""
    head = bytearray(frames.head(opcode, len(payload)))
    head[1] |= 0x80
    return bytes(head) + _MASK + apply_mask(payload, _MASK)


def _frame_seeds() -> Iterator[bytes]:
    for opcode, payload in ((1, b"hello"), (2, b"\xff" * 200), (9, b""), (10, b"x"), (8, b"\x03\xe8bye")):
        yield masked_frame(opcode, payload)
    yield masked_frame(1, b"a" * 70_000)
    begun, rest = bytearray(masked_frame(1, "é".encode()[:1])), masked_frame(0, "é".encode()[1:])
    begun[0] &= 0x7F
    yield bytes(begun) + masked_frame(9, b"") + rest


# ── Parts and headers ─────────────────────────────────────────────────────────────────────────────────────────


def _multipart(data: bytes) -> None:
    """The first line is the content type."""
    content_type, _, body = data.partition(b"\n")
    try:
        boundary = multipart.boundary_of(content_type)
        parts = multipart.split_parts(body, boundary or b"x", 100)
    except ProtocolError:
        return
    lines = [(b"".join(b"%b: %b\r\n" % pair for pair in headers.items()), content) for headers, content in parts]
    boundary, joined = multipart.join_parts(lines, b"seed")
    assert multipart.split_parts(joined, boundary, 100) == parts


def _header_value(data: bytes) -> None:
    try:
        content_type = content_type_of(data)
    except ProtocolError:
        content_type = data.decode("latin-1")  # As an earlier version may have stored it.
    assert not {*b"\r\n\0"} & {*content_type_header(content_type)}
    try:
        given = msgspec.json.decode(data, type=dict[str, str])
        packed = kept_headers.encode_headers(kept_headers.checked_headers(given))
    except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError):
        return
    assert kept_headers.decode_headers(packed) == {name.encode(): value.encode() for name, value in given.items()}
    lines = kept_headers.own_header_lines(packed) + kept_headers.kept_header_lines(packed)
    assert lines.count(b"\n") == lines.count(b"\r\n") <= len(given)


# ── JSON and text ─────────────────────────────────────────────────────────────────────────────────────────────

_is_long = longer_than(100)


def _json(data: bytes) -> None:
    """A body that is shown as JSON says the same as before, and is shown the same again."""
    _is_long(data)
    try:
        check_keys(data, 100)
    except ProtocolError:
        pass
    shown = json_of(data, "application/json")
    if shown is not None:
        assert msgspec.json.decode(shown) == msgspec.json.decode(data)
        assert json_of(shown, "application/json") == shown


def _times(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (times.producer_time, lambda given: time_of(given, "time")):
        try:
            read(text)
        except ProtocolError:
            pass
    try:
        value = msgspec.json.decode(data, type=float | str)
        assert times.producer_time(times.producer_time(value)) == times.producer_time(value)
    except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError):
        pass


def _query(data: bytes) -> None:
    try:
        given = parameters(Request(b"GET", b"/v1/search?" + data, {}), *search.CRITERIA, "limit", "cursor", "wait")
        number(given, "limit", 1, 1000, 100)
        seconds(given, "wait", 20)
        search.criteria_of(given, _IDS)
        after, afters = search._cursor(given, 2)
        if text := search._next(Messages([], after or None, afters)):
            assert search._cursor({"cursor": [text]}, 2) == (after, afters)
    except ProtocolError:
        pass


def _query_seeds() -> Iterator[bytes]:
    yield urlencode({"queue": "a", "state": "ready,leased", "text": "é", "limit": 5, "wait": 1.5}).encode()
    yield urlencode(
        {"cursor": search.cursor_text((12, 34)), "from": "2026-01-31T23:59:59Z", "to": "1700000000.5"}
    ).encode()
    yield b"limit=00000000000000000001&topic=a&topic=%ff&queue=%00"


def _name(data: bytes) -> None:
    for read in (queue_name, checked_name, lambda text: whole_number(text, "it", 0, UINT32_MAX)):
        try:
            read(data)
        except ProtocolError:
            pass


# ── Ids ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _message_id(data: bytes) -> None:
    found = _IDS.find(data)
    if found is not None:
        assert _IDS.make(*found) == data.lower()
        assert is_uuid(data)
    queue, sequence = int.from_bytes(data[:2]) + 1, int.from_bytes(data[2:8]) & SEQUENCE_MAX
    assert _IDS.find(_IDS.make(queue, sequence)) == (queue, sequence)


TARGETS = [
    Target("frames", _frames, _frame_seeds),
    Target(
        "multipart",
        _multipart,
        lambda: [b'multipart/mixed; boundary="b"\n--b\r\nA: 1\r\nB: 2\r\n\r\none\r\n--b\r\n\r\ntwo\r\n--b--\r\n'],
    ),
    Target(
        "header-values",
        _header_value,
        lambda: [b"text/plain; charset=utf-8", b'{"X-A":"b","trace":"\\u00e9"}', b'{"X-TRACE-ID":"a\\r\\nb"}'],
    ),
    Target(
        "json-bodies",
        _json,
        lambda: [
            b'{"a": [1, 2.50, 1e400, "x\\u00e9\\ud83d\\ude00"], "a": null}',
            b"12345678901234567890",
            b'"x"',
            b"[1.0e2]",
        ],
    ),
    Target("times", _times, lambda: [b"2026-01-31T23:59:59Z", b"1700000000.25", b'"1700000000123"', b"-5", b"1e300"]),
    Target("query", _query, _query_seeds),
    Target("names", _name, lambda: [b"orders", b"a%2Fb", "größe".encode(), b"12", b"%", b"x" * 251]),
    Target("message-id", _message_id, lambda: [_IDS.make(3, 12345), _IDS.make(9, 7).upper(), b"-" * 36, b"+1"]),
]
