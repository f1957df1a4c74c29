"""Bincode requests as the origin's clients write them, to the byte, and the document's layout of the same requests.

`tests/conformance/glovebox/origin_*.toml` sends these frames to a broker.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.glovebox.bincode import pack_bytes, pack_f32, pack_i16, pack_u32, pack_u64
from penstock.dialects.glovebox.codec import Create, Fetch, Finish, Pop, Post, Request, decode_bincode, decode_json

MANUAL = Path(__file__).parents[3] / "docs" / "glovebox.md"
UINT64_MAX = (1 << 64) - 1
ALL = ["ready", "write", "sync", "assign", "finish", "retry", "drop"]
LABEL = "0700000000000000"
QUEUE = "0100000000000000 71"
HI = "0200000000000000 6869"


def post(body: Any, *facts: Any) -> Post:
    return Post("q", body, *facts)


FRAMES: dict[str, tuple[str, Request]] = {
    # Post: queue, message, priority i16, label, notify.
    "post": (f"00000000 00000000 {QUEUE} {HI} 0000 0000000000000000 0000000000000000", post(b"hi")),
    "post with notices": (
        f"00000000 00000000 {QUEUE} {HI} 0500 {LABEL} 0200000000000000 02000000 04000000",
        post(b"hi", 5, 7, ["sync", "finish"]),
    ),
    "post with all notices": (
        f"00000000 00000000 {QUEUE} {HI} ff7f {LABEL} 0700000000000000"
        " 00000000 01000000 02000000 03000000 04000000 05000000 06000000",
        post(b"hi", 32767, 7, ALL),
    ),
    "post below 0": (
        f"00000000 00000000 {QUEUE} {HI} ffff {LABEL} 0100000000000000 02000000",
        post(b"hi", -1, 7, ["sync"]),
    ),
    "post of the lowest priority": (
        f"00000000 00000000 {QUEUE} {HI} 0080 {LABEL} 0100000000000000 02000000",
        post(b"hi", -32768, 7, ["sync"]),
    ),
    "post of bytes": (
        f"00000000 00000000 {QUEUE} 0300000000000000 00fffe 0100 ffffffffffffffff 0100000000000000 02000000",
        post(b"\0\xff\xfe", 1, UINT64_MAX, ["sync"]),
    ),
    "post of nothing": (
        f"00000000 00000000 {QUEUE} 0000000000000000 0100 {LABEL} 0200000000000000 00000000 04000000",
        post(b"", 1, 7, ["ready", "finish"]),
    ),
    # Fetch and finish are the same in both layouts.
    "fetch": (
        f"00000000 01000000 {QUEUE} 01 0000003f 00007041 02000000 {LABEL}",
        Fetch("q", 0.5, 15.0, "sync", 7),
    ),
    "fetch at once": (f"00000000 01000000 {QUEUE} 00 0000003f 01000000 {LABEL}", Fetch("q", None, 0.5, "write", 7)),
    "fetch and wait": (
        f"00000000 01000000 {QUEUE} 01 0000f041 0000003f 00000000 {LABEL}",
        Fetch("q", 30.0, 0.5, "ready", 7),
    ),
    "finish": (f"00000000 02000000 {QUEUE} 0900000000000000 00000000 00 00", Finish("q", 9)),
    "finish with a label": (
        f"00000000 02000000 {QUEUE} 0900000000000000 00000000 01 {LABEL} 00",
        Finish("q", 9, 0, 7),
    ),
    "finish in memory": (
        f"00000000 02000000 {QUEUE} 0900000000000000 00000000 01 {LABEL} 01 00000000",
        Finish("q", 9, 0, 7, "ready"),
    ),
    "finish on disk": (
        f"00000000 02000000 {QUEUE} ffffffffffffffff 00000000 00 01 02000000",
        Finish("q", UINT64_MAX, 0, None, "sync"),
    ),
    # Pop: queue, sync, timeout, label.
    "pop at once": (f"00000000 03000000 {QUEUE} 02000000 00 {LABEL}", Pop("q", None, 7, "sync")),
    "pop at once from memory": (f"00000000 03000000 {QUEUE} 00000000 00 {LABEL}", Pop("q", None, 7, "ready")),
    "pop and wait": (f"00000000 03000000 {QUEUE} 01000000 01 0000f041 {LABEL}", Pop("q", 30.0, 7, "write")),
    "pop from memory and wait": (
        f"00000000 03000000 {QUEUE} 00000000 01 0000003f {LABEL}",
        Pop("q", 0.5, 7, "ready"),
    ),
    "pop and wait no time": (
        f"00000000 03000000 {QUEUE} 02000000 01 00000000 ffffffffffffffff",
        Pop("q", 0.0, UINT64_MAX, "sync"),
    ),
    # This one is also a pop of the document's layout, with a timeout of 0, and is read as that.
    "pop at once, written": (f"00000000 03000000 {QUEUE} 01000000 00 {LABEL}", Pop("q", 0.0, 7)),
    # Create: queue, label, retries, shard_max_entries, shard_max_bytes.
    "create": (f"00000000 04000000 {QUEUE} {LABEL} 00 00 00", Create("q", 7)),
    "create with retries": (f"00000000 04000000 {QUEUE} {LABEL} 01 03000000 00 00", Create("q", 7, 3)),
    "create with entries": (
        f"00000000 04000000 {QUEUE} {LABEL} 00 01 5000000000000000 00",
        Create("q", 7, shard_max_entries=80),
    ),
    "create with bytes": (
        f"00000000 04000000 {QUEUE} {LABEL} 00 00 01 0000004000000000",
        Create("q", 7, shard_max_bytes=1 << 30),
    ),
    "create with retries and entries": (
        f"00000000 04000000 {QUEUE} {LABEL} 01 e8030000 01 5000000000000000 00",
        Create("q", 7, 1000, shard_max_entries=80),
    ),
    "create with retries and bytes": (
        f"00000000 04000000 {QUEUE} {LABEL} 01 03000000 00 01 50c3000000000000",
        Create("q", 7, 3, shard_max_bytes=50_000),
    ),
    "create with entries and bytes": (
        f"00000000 04000000 {QUEUE} {LABEL} 00 01 ffffffffffffffff 01 ffffffffffffffff",
        Create("q", 7, shard_max_entries=UINT64_MAX, shard_max_bytes=UINT64_MAX),
    ),
    "create with everything": (
        f"00000000 04000000 {QUEUE} ffffffffffffffff 01 ffffffff 01 0000010000000000 01 0000004000000000",
        Create("q", UINT64_MAX, (1 << 32) - 1, shard_max_entries=1 << 16, shard_max_bytes=1 << 30),
    ),
}
SHOWN = ("post with notices", "pop at once", "pop and wait", "create with retries and entries")


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_the_origin_is_read_from_exactly_these_bytes(name: str) -> None:
    digits, request = FRAMES[name]
    assert decode_bincode(bytes.fromhex(digits)) == request


@pytest.mark.parametrize("name", SHOWN)
def test_the_manual_shows_the_origins_bytes(name: str) -> None:
    shown = re.sub(r"\s", "", MANUAL.read_text("utf-8"))
    assert FRAMES[name][0].replace(" ", "") in shown


@pytest.mark.parametrize("value", [b"null", b"0", b"80", b"18446744073709551615"])
def test_json_takes_the_origins_shard_settings(value: bytes) -> None:
    for name in (b"shard_max_entries", b"shard_max_bytes"):
        decode_json(b'{"type":"create","queue":"q","label":0,"retries":null,"%b":%b}' % (name, value))


# Whatever is written in one layout is read in it.

SECONDS = st.floats(0, 86_400, width=32)
LABELS = st.integers(0, UINT64_MAX)
STAGES = st.sampled_from(["ready", "write", "sync"])


def option(packed: bytes | None) -> bytes:
    return b"\0" if packed is None else b"\1" + packed


@given(
    st.binary(max_size=9), st.integers(-(1 << 15), (1 << 32) - 1), LABELS, st.lists(st.sampled_from(ALL), max_size=9)
)
def test_a_post_is_read_in_the_layout_it_was_written_in(
    body: bytes, priority: int, label: int, notify: list[str]
) -> None:
    head = bytes(8) + pack_bytes(b"q") + pack_bytes(body)
    tail = pack_u64(label) + pack_u64(len(notify)) + b"".join(pack_u32(ALL.index(each)) for each in notify)
    if priority < 1 << 15:
        assert decode_bincode(head + pack_i16(priority) + tail) == post(body, priority, label, notify)
    if priority >= 0:
        assert decode_bincode(head + pack_u32(priority) + tail) == post(body, priority, label, notify)


@given(st.none() | SECONDS, LABELS, STAGES)
def test_a_pop_of_the_origin_is_read_as_it_was_meant(timeout: float | None, label: int, sync: Any) -> None:
    waits = option(None if timeout is None else pack_f32(timeout))
    frame = pack_u32(0) + pack_u32(3) + pack_bytes(b"q") + pack_u32(["ready", "write", "sync"].index(sync))
    safer = timeout is None and sync == "write"
    meant = Pop("q", 0.0, label) if safer else Pop("q", timeout, label, sync)
    assert decode_bincode(frame + waits + pack_u64(label)) == meant


@given(st.none() | SECONDS, LABELS, st.none() | STAGES, st.booleans())
def test_a_pop_of_the_document_is_read_as_it_was_meant(
    timeout: float | None, label: int, sync: Any, whole: bool
) -> None:
    frame = pack_u32(0) + pack_u32(3) + pack_bytes(b"q") + option(None if timeout is None else pack_f32(timeout))
    stage = option(None if sync is None else pack_u32(["ready", "write", "sync"].index(sync)))
    frame += pack_u64(label) + (stage if whole or sync else b"")
    assert decode_bincode(frame) == Pop("q", timeout, label, sync)


@given(
    LABELS,
    st.none() | st.integers(0, (1 << 32) - 1),
    st.none() | st.integers(0, UINT64_MAX),
    st.none() | st.integers(0, UINT64_MAX),
)
def test_a_create_of_the_origin_is_read_as_it_was_meant(
    label: int, retries: int | None, entries: int | None, size: int | None
) -> None:
    frame = pack_u32(0) + pack_u32(4) + pack_bytes(b"q") + pack_u64(label)
    frame += option(None if retries is None else pack_u32(retries))
    frame += b"".join(option(None if each is None else pack_u64(each)) for each in (entries, size))
    meant = Create("q", label, retries, shard_max_entries=entries, shard_max_bytes=size)
    assert decode_bincode(frame) == meant


@given(
    LABELS,
    st.none() | st.integers(0, (1 << 32) - 1),
    st.none() | SECONDS,
    st.none() | st.floats(2**-30, 1e9, width=32),
    st.none() | SECONDS,
    st.none() | st.booleans(),
    st.integers(0, 5),
)
def test_a_create_of_the_document_is_read_as_it_was_meant(
    label: int,
    retries: int | None,
    visibility: float | None,
    retention: float | None,
    delay: float | None,
    deduplication: bool | None,
    count: int,
) -> None:
    given = [retries, visibility, retention, delay, deduplication]
    packers: list[Any] = [pack_u32, pack_f32, pack_f32, pack_f32, lambda value: bytes((value,))]
    fields = [option(None if value is None else pack(value)) for value, pack in zip(given, packers, strict=True)]
    frame = pack_u32(0) + pack_u32(4) + pack_bytes(b"q") + pack_u64(label) + b"".join(fields[:count])
    assert decode_bincode(frame) == Create("q", label, *given[:count])  # type: ignore[arg-type]
