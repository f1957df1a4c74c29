"""What glovebox clients and the broker say to each other: requests and replies, as JSON and as bincode.

`docs/glovebox.md` has both, with examples to the byte. Three bincode requests have two layouts: the document's, and
that of the program it comes from ("the origin"). Their lengths tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from penstock.dialects.glovebox.bincode import Reader, pack_bytes, pack_u32, pack_u64
from penstock.dialects.wire.json_bounds import NOT_JSON
from penstock.errors import ProtocolError
from penstock.limits import BLOCK_SECONDS_MAX, BODY_BYTES_MAX, INT32_MAX, NOTIFY_MAX, UINT32_MAX, WORK_SECONDS_MAX

UINT64_MAX = (1 << 64) - 1
_LABEL_DIGITS_MAX = 20

Notice = Literal["ready", "write", "sync", "assign", "finish", "retry", "drop"]
Firmness = Literal["ready", "write", "sync"]
Code = Literal["NoObject", "ObjectAlreadyExists", "PermissionDenied", "BadRequest", "Unavailable", "OutcomeUnknown"]

# In bincode each of them is its place in this list.
_NOTICES: tuple[Notice, ...] = ("ready", "write", "sync", "assign", "finish", "retry", "drop")
_FIRMNESSES: tuple[Firmness, ...] = ("ready", "write", "sync")
_CODES: tuple[Code, ...] = get_args(Code)

_Byte = Annotated[int, Meta(ge=0, le=255)]
_Uint32 = Annotated[int, Meta(ge=0, le=UINT32_MAX)]
_Priority = Annotated[int, Meta(ge=-(1 << 15), le=UINT32_MAX)]  # The origin's is an i16. Below 0 counts as 0.
_Label = Annotated[int, Meta(ge=0)]  # And at most UINT64_MAX, which msgspec cannot say.
_BlockSeconds = Annotated[float, Meta(ge=0, le=BLOCK_SECONDS_MAX)]
_WorkSeconds = Annotated[float, Meta(ge=0, le=WORK_SECONDS_MAX)]

# ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────


class Post(Struct, tag_field="type", tag="post", gc=False):
    queue: str
    message: str | Annotated[list[_Byte], Meta(max_length=BODY_BYTES_MAX)]  # From bincode: bytes.
    priority: _Priority = 0
    label: _Label = 0
    notify: Annotated[list[Notice], Meta(max_length=NOTIFY_MAX)] = []


class Fetch(Struct, tag_field="type", tag="fetch", gc=False):
    queue: str
    block_timeout: _BlockSeconds | None = None
    work_timeout: _WorkSeconds | None = None
    sync: Firmness | None = None
    label: _Label = 0


class Finish(Struct, tag_field="type", tag="finish", gc=False):
    queue: str
    sequence: _Label
    shard: _Uint32 = 0
    label: _Label | None = None
    response: Firmness | None = None


class Pop(Struct, tag_field="type", tag="pop", gc=False):
    queue: str
    timeout: _BlockSeconds | None = None
    label: _Label = 0
    sync: Firmness | None = None


class Create(Struct, tag_field="type", tag="create", forbid_unknown_fields=True, gc=False):
    """Unknown settings are refused: a queue that was created differently than intended is hard to notice."""

    queue: str
    label: _Label = 0
    retries: _Uint32 | None = None
    visibility_timeout: _WorkSeconds | None = None
    retention_timeout: Annotated[float, Meta(gt=0, le=INT32_MAX)] | None = None
    message_delay: _WorkSeconds | None = None
    message_deduplication: bool | None = None
    shard_max_entries: _Label | None = None  # The origin's clients send these two. They have no effect.
    shard_max_bytes: _Label | None = None


Request = Post | Fetch | Finish | Pop | Create

MALFORMED = (*NOT_JSON, ProtocolError)
"""What `decode_json` and `decode_bincode` raise."""

decode_json: Callable[[bytes], Request] = msgspec.json.Decoder(Request).decode
_encode = msgspec.json.Encoder().encode


class _Labelled(Struct):
    label: Raw = Raw(b"0")  # Whatever it is, it is not built.


_decode_label = msgspec.json.Decoder(_Labelled).decode


def label_in(frame: bytes) -> int:
    """The label of a JSON request that is wrong otherwise, so that its sender knows which it was; else 0."""
    try:
        label = bytes(_decode_label(frame).label)
    except MALFORMED:
        return 0
    number = int(label) if label.isdigit() and len(label) <= _LABEL_DIGITS_MAX else 0
    return number if number <= UINT64_MAX else 0


class _Named(Struct):
    type: str
    queue: str


_decode_named = msgspec.json.Decoder(_Named).decode
_KINDS = ("post", "fetch", "finish", "pop", "create")


def named_in(frame: bytes, *, binary: bool) -> tuple[str, str] | None:
    """The kind and the queue of a request that is wrong in something else."""
    try:
        if not binary:
            named = _decode_named(frame)
            return named.type, named.queue
        reader = Reader(frame)
        version, kind = reader.u32("the version"), reader.u32("the kind of request")
        return (_KINDS[kind], reader.text("queue")) if not version and kind < len(_KINDS) else None
    except MALFORMED:
        return None


def decode_bincode(frame: bytes) -> Request:
    reader = Reader(frame)
    if version := reader.u32("the version"):
        raise ProtocolError(f"unknown version: {version}")
    kind = reader.u32("the kind of request")
    if kind >= len(_READERS):
        raise ProtocolError(f"unknown kind of request: {kind}")
    request = _READERS[kind](reader)
    reader.end()
    return request


def _read_post(reader: Reader) -> Post:
    queue = reader.text("queue")
    body: Any = reader.octets("message")
    # After this come a u64, a u64 and u32s: two bytes too few for a u32 here are the origin's i16.
    priority = reader.i16("priority") if reader.left % 4 == 2 else reader.u32("priority")
    label = reader.u64("label")
    count = reader.u64("notify")
    if count > NOTIFY_MAX:
        raise ProtocolError(f"notify lists at most {NOTIFY_MAX} stages, got {count}")
    return Post(queue, body, priority, label, [_notice(reader) for _ in range(count)])


def _read_fetch(reader: Reader) -> Fetch:
    return Fetch(
        reader.text("queue"),
        _seconds(reader.option(reader.f32, "block_timeout"), BLOCK_SECONDS_MAX, "block_timeout"),
        _seconds(reader.f32("work_timeout"), WORK_SECONDS_MAX, "work_timeout"),
        _firmness(reader.u32("sync"), "sync"),
        reader.u64("label"),
    )


def _read_finish(reader: Reader) -> Finish:
    return Finish(
        reader.text("queue"),
        reader.u64("sequence"),
        reader.u32("shard"),
        reader.option(reader.u64, "label"),
        _firmness(reader.option(reader.u32, "response"), "response"),
    )


def _read_pop(reader: Reader) -> Pop:
    queue = reader.text("queue")
    if _is_origin_pop(reader):
        return _read_origin_pop(reader, queue)
    timeout = _seconds(reader.option(reader.f32, "timeout"), BLOCK_SECONDS_MAX, "timeout")
    label = reader.u64("label")
    # The document knows no `sync` here: it may be left off.
    return Pop(queue, timeout, label, _firmness(reader.option(reader.u32, "sync") if reader.left else None, "sync"))


def _is_origin_pop(reader: Reader) -> bool:
    """The origin's layout has 17 bytes with a timeout and 13 without one. The document's has 13 bytes with a timeout
    and no `sync`, and begins with 1 then. One frame is both. It does not wait in either reading, and is read as the
    document's, which promises more: `sync`, not `write`."""
    return reader.left == 17 or (reader.left == 13 and not reader.next_is(1))


def _read_origin_pop(reader: Reader, queue: str) -> Pop:
    sync = _firmness(reader.u32("sync"), "sync")
    timeout = _seconds(reader.option(reader.f32, "timeout"), BLOCK_SECONDS_MAX, "timeout")
    return Pop(queue, timeout, reader.u64("label"), sync)


def _read_create(reader: Reader) -> Create:
    """Each setting of the document's layout may be left off, with all that follow it. What could also be the origin's
    layout means the same in both, or has a retention_timeout below 2**-126 seconds in the document's."""
    request = Create(reader.text("queue"), reader.u64("label"))
    if reader.holds_options(4, 8, 8):
        request.retries = reader.option(reader.u32, "retries")
        request.shard_max_entries = reader.option(reader.u64, "shard_max_entries")
        request.shard_max_bytes = reader.option(reader.u64, "shard_max_bytes")
        return request
    if reader.left:
        request.retries = reader.option(reader.u32, "retries")
    if reader.left:
        visibility = reader.option(reader.f32, "visibility_timeout")
        request.visibility_timeout = _seconds(visibility, WORK_SECONDS_MAX, "visibility_timeout")
    if reader.left:
        retention = reader.option(reader.f32, "retention_timeout")
        if retention == 0:
            raise ProtocolError("retention_timeout must be above 0")
        request.retention_timeout = _seconds(retention, INT32_MAX, "retention_timeout")
    if reader.left:
        delay = reader.option(reader.f32, "message_delay")
        request.message_delay = _seconds(delay, WORK_SECONDS_MAX, "message_delay")
    if reader.left:
        request.message_deduplication = reader.option(reader.boolean, "message_deduplication")
    return request


_READERS = (_read_post, _read_fetch, _read_finish, _read_pop, _read_create)


def _notice(reader: Reader) -> Notice:
    number = reader.u32("notify")
    if number >= len(_NOTICES):
        raise ProtocolError(f"unknown stage {number} - at notify")
    return _NOTICES[number]


def _firmness(number: int | None, what: str) -> Firmness | None:
    if number is None:
        return None
    if number >= len(_FIRMNESSES):
        raise ProtocolError(f"unknown stage {number} - at {what}")
    return _FIRMNESSES[number]


def _seconds(seconds: float | None, most: int, what: str) -> float | None:
    if seconds is not None and not 0 <= seconds <= most:  # Not a number is neither.
        raise ProtocolError(f"{what} must be from 0 to {most} seconds")
    return seconds


# ── Replies ───────────────────────────────────────────────────────────────────────────────────────────────────


class Codec(Protocol):
    """How replies are written."""

    @property
    def binary(self) -> bool: ...
    def hello(self, number: int) -> bytes: ...
    def notice(self, label: int, notice: Notice) -> bytes: ...
    def notices(self, labels: list[int], notice: Notice) -> list[bytes]: ...
    def message(self, label: int, shard: int, sequence: int, body: bytes, finished: bool) -> bytes: ...
    def nomessage(self, label: int) -> bytes: ...
    def error(self, label: int, code: Code, key: str) -> bytes: ...


class JsonCodec:
    __slots__ = ()
    binary = False

    def hello(self, number: int) -> bytes:
        return b'{"type":"hello","id":%d}' % number

    def notice(self, label: int, notice: Notice) -> bytes:
        return _JSON_NOTICES[notice] % label

    def notices(self, labels: list[int], notice: Notice) -> list[bytes]:
        template = _JSON_NOTICES[notice]
        return [template % label for label in labels]

    def message(self, label: int, shard: int, sequence: int, body: bytes, finished: bool) -> bytes:
        try:
            text = _encode(body.decode())
        except UnicodeDecodeError:
            text = _encode(list(body))
        return _JSON_MESSAGE % (label, shard, sequence, text, b"true" if finished else b"false")

    def nomessage(self, label: int) -> bytes:
        return b'{"type":"nomessage","label":%d}' % label

    def error(self, label: int, code: Code, key: str) -> bytes:
        return _encode({"type": "error", "label": label, "code": code, "key": key})


_JSON_MESSAGE = b'{"type":"message","label":%d,"shard":%d,"sequence":%d,"body":%b,"finished":%b}'
_JSON_NOTICES = {notice: b'{"type":"notice","label":%%d,"notice":"%b"}' % notice.encode() for notice in _NOTICES}


class BincodeCodec:
    __slots__ = ()
    binary = True

    def hello(self, number: int) -> bytes:
        return _reply(2) + pack_u64(number)

    def notice(self, label: int, notice: Notice) -> bytes:
        return _reply(1) + pack_u64(label) + pack_u32(_NOTICES.index(notice))

    def notices(self, labels: list[int], notice: Notice) -> list[bytes]:
        return [self.notice(label, notice) for label in labels]

    def message(self, label: int, shard: int, sequence: int, body: bytes, finished: bool) -> bytes:
        place = pack_u64(label) + pack_u32(shard) + pack_u64(sequence)
        return _reply(0) + place + pack_bytes(body) + bytes((finished,))

    def nomessage(self, label: int) -> bytes:
        return _reply(3) + pack_u64(label)

    def error(self, label: int, code: Code, key: str) -> bytes:
        return _reply(4) + pack_u64(label) + pack_u32(_CODES.index(code)) + pack_bytes(key.encode())


JSON = JsonCodec()
BINCODE = BincodeCodec()


def _reply(kind: int) -> bytes:
    return pack_u32(0) + pack_u32(kind)  # The version, then the kind.
