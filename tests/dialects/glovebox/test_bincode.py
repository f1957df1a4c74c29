"""Bincode, to the byte: `docs/glovebox.md` shows the vectors that are held here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.glovebox.bincode import Reader, pack_bytes, pack_f32, pack_u32, pack_u64
from penstock.dialects.glovebox.codec import (
    MALFORMED,
    BincodeCodec,
    Create,
    Fetch,
    Finish,
    JsonCodec,
    Pop,
    Post,
    Request,
    decode_bincode,
    decode_json,
)
from penstock.errors import ProtocolError

MANUAL = Path(__file__).parents[3] / "docs" / "glovebox.md"

REQUESTS: dict[str, tuple[str, Request]] = {
    "post": (
        "00000000 00000000 0100000000000000 71 0200000000000000 6869 05000000 0700000000000000"
        " 0200000000000000 02000000 04000000",
        Post("q", b"hi", 5, 7, ["sync", "finish"]),  # type: ignore[arg-type]
    ),
    "fetch": (
        "00000000 01000000 0100000000000000 71 01 0000003f 00007041 02000000 0700000000000000",
        Fetch("q", 0.5, 15.0, "sync", 7),
    ),
    "finish": (
        "00000000 02000000 0100000000000000 71 0900000000000000 00000000 01 0700000000000000 01 00000000",
        Finish("q", 9, 0, 7, "ready"),
    ),
    "pop": ("00000000 03000000 0100000000000000 71 00 0700000000000000", Pop("q", None, 7)),
    "create": (
        "00000000 04000000 0100000000000000 71 0700000000000000 01 03000000 01 0000f041 00 00 01 01",
        Create("q", 7, 3, 30.0, None, None, True),
    ),
}

BINCODE = BincodeCodec()
REPLIES = {
    "message": (
        "00000000 00000000 0700000000000000 00000000 0900000000000000 0200000000000000 6869 00",
        BINCODE.message(7, 0, 9, b"hi", False),
    ),
    "notice": ("00000000 01000000 0700000000000000 06000000", BINCODE.notice(7, "drop")),
    "hello": ("00000000 02000000 39300000 00000000", BINCODE.hello(12345)),
    "nomessage": ("00000000 03000000 0700000000000000", BINCODE.nomessage(7)),
    "error": (
        "00000000 04000000 0700000000000000 00000000 0100000000000000 71",
        BINCODE.error(7, "NoObject", "q"),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_read_from_exactly_these_bytes(name: str) -> None:
    digits, request = REQUESTS[name]
    assert decode_bincode(bytes.fromhex(digits)) == request


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_written_as_exactly_these_bytes(name: str) -> None:
    digits, reply = REPLIES[name]
    assert reply == bytes.fromhex(digits)


@pytest.mark.parametrize("name", [*REQUESTS, *REPLIES])
def test_the_manual_shows_the_same_bytes(name: str) -> None:
    digits = (REQUESTS | REPLIES)[name][0]
    shown = re.sub(r"\s", "", MANUAL.read_text("utf-8"))
    assert digits.replace(" ", "") in shown


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_ends_too_soon_is_refused_wherever_it_ends(name: str) -> None:
    whole = bytes.fromhex(REQUESTS[name][0])
    # What the document does not know may be left off, setting by setting.
    fields = {"create": {25, 30, 35, 36, 37}}.get(name, set())
    for size in set(range(len(whole))) - fields:
        with pytest.raises(ProtocolError, match=r"the bytes end within|notify lists at most"):
            decode_bincode(whole[:size])


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_with_bytes_left_over_is_refused(name: str) -> None:
    whole = bytes.fromhex(REQUESTS[name][0])
    with pytest.raises(ProtocolError):
        decode_bincode(whole + b"\1\0\0\0\0\0")


def test_what_may_be_left_off_is_as_if_it_were_none() -> None:
    start = pack_u32(0) + pack_u32(4) + pack_bytes(b"q") + pack_u64(7)
    assert decode_bincode(start) == decode_bincode(start + bytes(5)) == Create("q", 7)
    pop = bytes.fromhex(REQUESTS["pop"][0])
    assert decode_bincode(pop + b"\0") == decode_bincode(pop)
    assert decode_bincode(pop + b"\1" + pack_u32(1)) == Pop("q", None, 7, "write")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pack_u32(1), "unknown version: 1"),
        (pack_u32(0) + pack_u32(5), "unknown kind of request: 5"),
        (pack_u32(0) + pack_u32(3) + pack_bytes(b"\xff") + bytes(9), "queue is not UTF-8"),
        (
            pack_u32(0) + pack_u32(3) + pack_bytes(b"q") + b"\2" + bytes(8),
            "the mark before timeout is neither 0 nor 1",
        ),
        (
            pack_u32(0) + pack_u32(3) + pack_bytes(b"q") + b"\1" + pack_f32(float("nan")) + bytes(8),
            "timeout must be from 0",
        ),
        (pack_u32(0) + pack_u32(3) + pack_bytes(b"q") + b"\1" + pack_f32(-1) + bytes(8), "timeout must be from 0"),
        (
            pack_u32(0) + pack_u32(3) + pack_bytes(b"q") + b"\1" + pack_f32(float("inf")) + bytes(8),
            "timeout must be from 0",
        ),
        (
            bytes(8) + pack_bytes(b"q") + pack_bytes(b"") + bytes(12) + pack_u64(64) + bytes(4 * 63),
            "the bytes end within notify",
        ),
        (
            bytes(8) + pack_bytes(b"q") + pack_bytes(b"") + bytes(12) + pack_u64(1 << 60),
            "notify lists at most 64 stages",
        ),
        (bytes(8) + pack_u64((1 << 64) - 1) + b"q", "the bytes end within queue"),
        (bytes(8) + pack_bytes(b"q") + bytes(8 + 12) + pack_u64(1) + pack_u32(7), "unknown stage 7 - at notify"),
        (
            pack_u32(0) + pack_u32(1) + pack_bytes(b"q") + b"\0" + pack_f32(1) + pack_u32(3) + bytes(8),
            "unknown stage 3 - at sync",
        ),
        (
            pack_u32(0) + pack_u32(4) + pack_bytes(b"q") + bytes(8) + b"\0\0\1" + pack_f32(0),
            "retention_timeout must be above 0",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(data: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(problem)):
        decode_bincode(data)


@given(st.binary(max_size=120))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_bincode, decode_json):
        try:
            decode(data)
        except MALFORMED:
            pass


@given(st.binary(max_size=80), st.sampled_from(sorted(REQUESTS)))
def test_a_request_that_goes_wrong_half_way_is_read_or_refused(tail: bytes, name: str) -> None:
    whole = bytes.fromhex(REQUESTS[name][0])
    for cut in (8, len(whole) // 2, len(whole) - 1):
        try:
            decode_bincode(whole[:cut] + tail)
        except ProtocolError:
            pass


@given(st.text(max_size=20), st.binary(max_size=50), st.integers(0, (1 << 64) - 1))
def test_what_is_packed_is_read_back(text: str, octets: bytes, number: int) -> None:
    data = pack_bytes(text.encode()) + pack_bytes(octets) + pack_u64(number) + b"\1" + pack_u32(number & 0xFFFFFFFF)
    reader = Reader(data)
    assert (reader.text("text"), reader.octets("octets"), reader.u64("number")) == (text, octets, number)
    assert reader.option(reader.u32, "option") == number & 0xFFFFFFFF
    reader.end()


@given(st.binary(max_size=60))
def test_a_body_is_text_in_json_if_it_can_be_and_a_list_of_bytes_if_not(body: bytes) -> None:
    message = json.loads(JsonCodec().message(1, 0, 2, body, True))
    assert message["type"] == "message"
    try:
        assert message["body"] == body.decode()
    except UnicodeDecodeError:
        assert message["body"] == list(body)
