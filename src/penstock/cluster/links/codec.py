"""What crosses a link, as bytes and back: commands, requests, the answers to them, and what belongs to them.

A frame is the length of what follows, in 4 bytes, and one array with everything of one turn. Workers of one machine
run the same code: `FORM` differs if they do not.
"""

from __future__ import annotations

from functools import reduce
from hashlib import blake2b
from operator import or_
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import fields

from penstock import __version__
from penstock.broker.quotas.account import Scope
from penstock.config.quotas import QuotaLimits
from penstock.errors import ProtocolError
from penstock.limits import LINK_FRAME_BYTES_MAX
from penstock.model import commands, consuming, courier_commands, probe, schedules, tokens
from penstock.model.access import EVERYTHING, NOBODY, Access, scope_of
from penstock.model.answer_bytes import ANSWERS, QUERIES, AnyAnswer, kinds_in
from penstock.model.commands import Command
from penstock.model.happening import Happening
from penstock.model.queries import Query
from penstock.model.tokens import Token
from penstock.model.values import Packed

_LENGTH = Layout(">I")
LENGTH_BYTES = _LENGTH.size
_ARRAY = Layout(">IBI")  # The length, and the head of an array in msgpack.
_ARRAY_OF_32_BITS = 0xDD


COMMANDS = kinds_in(commands, consuming, courier_commands, schedules, tokens, probe)

if TYPE_CHECKING:
    AnyCommand = Command
    AnyQuery = Query
else:
    AnyCommand = reduce(or_, COMMANDS)
    AnyQuery = reduce(or_, QUERIES)


# ── To the owner of a shard ───────────────────────────────────────────────────────────────────────────────────


class Question(Packed, frozen=True, gc=False):
    """A question, and the number that its answer will have."""

    number: int
    shard: int
    client: int
    query: AnyQuery


class Greet(Packed, frozen=True, gc=False):
    """The first thing that each worker sends."""

    form: str
    worker: int
    origin: bytes  # Names the process that runs: the worker may be one that was started again.
    shards: dict[int, int]  # That it has, each with its epoch.


class Introduce(Packed, frozen=True, gc=False):
    """A client that commands will come from."""

    client: int
    access: Access
    address: str
    dialect: str


class Dismiss(Packed, frozen=True, gc=False):
    """No more commands come from this client."""

    client: int


class Ask(Packed, frozen=True, gc=False):
    """A command, and the number that its answer will have. Client 0 is the worker itself."""

    number: int
    shard: int
    client: int
    stage: int
    command: AnyCommand


class AskAgain(Ask, frozen=True, gc=False):
    """A command that was sent to whoever had the shard then, and was not answered."""


class AskWithRoom(Ask, frozen=True, gc=False):
    """A command for whose answer there is room where it was asked, as much as the command says."""


class Crowd(Packed, frozen=True, gc=False):
    """Whether there is hardly any room for answers where this comes from: then only those are made that were asked
    for with room. To the others, the answer is `COME_AGAIN`."""

    is_crowded: bool


class EndAskAgain(Packed, frozen=True, gc=False):
    """Everything was asked again that had to be. What was decided in the shard before is known."""

    shard: int


class Received(Packed, frozen=True, gc=False):
    """So many more answers have arrived, in the order in which they were sent."""

    count: int


class Reach(Packed, frozen=True, gc=False):
    """Answer when everything decided so far has reached the stage."""

    number: int
    shard: int
    stage: int


class WatchQueue(Packed, frozen=True, gc=False):
    """Answer once when the queue has a ready message."""

    number: int
    shard: int
    queue: str


class Follow(Packed, frozen=True, gc=False):
    """Report each later event of a message."""

    number: int
    shard: int
    queue: int
    sequence: int


class Withdraw(Packed, frozen=True, gc=False):
    """The client of one of these has gone away: it need not be answered."""

    number: int


class Hurry(Packed, frozen=True, gc=False):
    """Answer a command with what there is."""

    number: int


class Decide(Packed, frozen=True, gc=False):
    """Decide what came before this, so that nothing that comes after it is decided together with it."""

    shard: int


class WantPart(Packed, frozen=True, gc=False):
    """The next part of a response may be sent."""

    number: int


class FinishStream(Packed, frozen=True, gc=False):
    """The stream that answers a request is to end now, if it would not end by itself."""

    number: int


# ── Back from the owner ───────────────────────────────────────────────────────────────────────────────────────


class Answered(Packed, frozen=True, gc=False):
    number: int
    answer: AnyAnswer


class Happened(Packed, frozen=True, gc=False):
    """What a message went through that is followed. The number of its consumer means nothing in another shard."""

    number: int
    what: Happening


class BeginFlow(Packed, frozen=True, gc=False):
    """An answer whose pieces follow, each when it is wanted."""

    number: int
    head: bytes  # A value; empty if there is none.


class SendPart(Packed, frozen=True, gc=False):
    """The next part of a response, or the next bytes of a flow. It may be empty."""

    number: int
    data: bytes


class SendPiece(Packed, frozen=True, gc=False):
    """The next value of a flow."""

    number: int
    data: bytes


class EndStream(Packed, frozen=True, gc=False):
    """There are no more parts; or there are, but they cannot be read."""

    number: int
    has_failed: bool


# ── Between workers ───────────────────────────────────────────────────────────────────────────────────────────


class PassOn(Packed, frozen=True, gc=False):
    """The header fields of the request with which a client has begun a conversation."""

    headers: dict[bytes, bytes]


class WantTokens(Packed, frozen=True, gc=False):
    """Send the tokens of the store as soon as they are not these. Who asks has taken note of the version; 0: none."""

    version: int


class TellTokens(Packed, frozen=True, gc=False):
    version: int
    tokens: dict[str, Token]


class Announce(Packed, frozen=True, gc=False):
    """The shards that the worker has from now on, each with its epoch."""

    shards: dict[int, int]


class Stopping(Packed, frozen=True, gc=False):
    """How far the worker has come in the order in which all of them stop."""

    stage: int


class Borrow(Packed, frozen=True, gc=False):
    """So much of a quota was used or returned, and so much more is wanted."""

    scope: Scope
    name: str
    limits: QuotaLimits
    quota: str
    used: float
    returned: float
    wanted: float


class Lend(Packed, frozen=True, gc=False):
    """So much of a quota may be used, from a time on."""

    scope: Scope
    name: str
    quota: str
    amount: float
    seconds: float


_OfCommands = (
    Greet
    | Introduce
    | Dismiss
    | Ask
    | Question
    | AskAgain
    | AskWithRoom
    | Crowd
    | EndAskAgain
    | Received
    | Reach
    | WatchQueue
    | Follow
    | Withdraw
    | Hurry
    | Decide
    | Answered
    | Happened
)
_OfRequests = WantPart | FinishStream | BeginFlow | SendPart | SendPiece | EndStream
Entry = _OfCommands | _OfRequests | PassOn | WantTokens | TellTokens | Announce | Stopping | Borrow | Lend


# ── Bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────


_FIXED = (EVERYTHING, NOBODY)


def _written(value: Any) -> Any:
    """What the encoder does not know. Those that are compared by identity are the same at the other end."""
    if value in _FIXED:
        return _FIXED.index(value)
    if isinstance(value, Access):
        return value.name, value.kind, [scope.text for scope in value.scopes], dict(value.limits)
    raise NotImplementedError


def _read(kind: type, value: Any) -> Any:
    assert kind is Access
    if isinstance(value, int):
        return _FIXED[value]
    name, source, scopes, limits = value
    return Access(name, map(scope_of, scopes), limits, source)


encode = msgspec.msgpack.Encoder(enc_hook=_written).encode
_decode = msgspec.msgpack.Decoder(list[Entry], dec_hook=_read).decode
decode_answer = msgspec.msgpack.Decoder(AnyAnswer, dec_hook=_read).decode


def frame(entries: list[bytes]) -> bytes:
    """A frame of entries that are encoded already. Each was, so that its size is known when it is collected."""
    size = _ARRAY.size - _LENGTH.size + sum(map(len, entries))
    return b"".join((_ARRAY.pack(size, _ARRAY_OF_32_BITS, len(entries)), *entries))


class Frames:
    """The entries in a stream of bytes, however it is split."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # The beginning of a frame, which may be long.
        self._missing = 0  # So many bytes at least until it is worth to look at them.

    def receive(self, data: bytes) -> list[Entry]:
        """Raises `ProtocolError` if this is not what a worker sends."""
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
        entries, at, self._missing = _entries_in(data)
        self._pieces = [data[at:]] if at < len(data) else []
        return entries


def _entries_in(data: bytes) -> tuple[list[Entry], int, int]:
    """The entries of whole frames, where the last one ends, and how many bytes of the next one are missing."""
    entries: list[Entry] = []
    at, end, view = 0, len(data), memoryview(data)
    while end - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, at)
        if length > LINK_FRAME_BYTES_MAX:
            raise ProtocolError(f"a frame has {length} bytes; at most {LINK_FRAME_BYTES_MAX} are allowed")
        start = at + _LENGTH.size
        if start + length > end:
            return entries, at, start + length - end
        entries += _decoded(view[start : start + length])
        at = start + length
    return entries, at, _LENGTH.size - (end - at)


def _decoded(data: memoryview) -> list[Entry]:
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProtocolError(f"a frame that cannot be read: {error}") from None


def _form() -> str:
    """Tells programs apart whose frames differ."""
    kinds = [*COMMANDS, *QUERIES, *ANSWERS, *Entry.__args__]
    shapes = [f"{kind.__name__}{[(each.name, str(each.type)) for each in fields(kind)]}" for kind in kinds]
    return f"{__version__} {blake2b(repr(shapes).encode(), digest_size=8).hexdigest()}"


FORM = _form()
