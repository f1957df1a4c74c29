"""Events as text. `docs/native/events.md` has it in prose."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from penstock.dialects.wire.json_bodies import json_of
from penstock.ids import MessageIds
from penstock.model.event_log import Events, EventText, Word
from penstock.model.kept_headers import decode_headers
from penstock.model.kinds import Kind
from penstock.model.letters import LOGGED
from penstock.model.message_fields import MESSAGE_FIELDS
from penstock.model.times import rfc3339_nanos
from penstock.model.traces import WORDS, Event, TextOf

assert WORDS.keys() == LOGGED


_PLACE = b'{"offset":%d,"next":"%b",'
_LINE = _PLACE + b"%b\n"
_SENT = b"id: %b\ndata: " + _PLACE + b"%b\n\n"
_WHERE = b'"state":"%b","event":"%b","time":"%b","queue":%b,"queue_number":%d'
_WHICH = b',"sequence":%d,"id":"%b","created":"%b","receives":%d'
_EVENT = _WHERE + _WHICH
_MOVED = b',"to_queue":%b,"to_queue_number":%d,"to_sequence":%d,"to_id":"%b"'
_FAILURES = "REI"  # Their result is the reason that the consumer gave.
_LETTERS = {letter: (letter.encode(), word.encode()) for letter, word in WORDS.items()}
_REASONS = {int(kind): b',"reason":"%b"' % kind.row.reason.encode() for kind in Kind if kind.row.reason}
_encode = msgspec.json.Encoder().encode


class EventWriter:
    """Encodes events, one at a time. What an event does not have is left out; only the name of a queue that is
    long gone is null.

    By hand, in pieces that are put together: three times as fast as making a document of each.
    """

    def __init__(self, ids: MessageIds, name: TextOf, queue: TextOf, *, raw: bool) -> None:
        self._ids = ids
        self._raw = raw  # JSON as text too.
        self._types = _Named(lambda number: name(number) or "")
        self._names = _Named(lambda number: _encode(name(number)))
        self._topics = _Named(lambda number: _encode((name(number) or "").split("\n")))
        self._queues = _Named(lambda number: _encode(queue(number)))

    def documents(self, events: Iterable[Event]) -> Iterator[bytes]:
        for event in events:
            yield _PLACE % (event.offset, event.next) + self.text(event)

    def text(self, event: Event) -> bytes:
        """The document of an event without its beginning, which says where it is in the log."""
        queue, sequence, time, created = event.queue, event.sequence, event.time, event.created
        time_text = rfc3339_nanos(time)
        where = (*_LETTERS[event.letter], time_text, self._queues[queue], queue)
        if sequence is None or created is None:
            return _WHERE % where + b"}"
        created_text = time_text if created == time else rfc3339_nanos(created)
        text = _EVENT % (*where, sequence, self._ids.make(queue, sequence), created_text, event.receives)
        visible_at = event.visible_at
        if visible_at is not None:
            text += b',"visible_at":"%b"' % (time_text if visible_at == time else rfc3339_nanos(visible_at))
        if event.expires_at is not None:
            text += b',"expires_at":"%b"' % rfc3339_nanos(event.expires_at)
        if event.consumer:
            text += b',"consumer":%b' % self._names[event.consumer]
        if event.priority is not None:
            text += b',"priority":%d' % event.priority + self._facts(event)
        if event.to_queue is not None and event.to_sequence is not None:
            place = event.to_queue, event.to_sequence
            text += _MOVED % (self._queues[event.to_queue], *place, self._ids.make(*place))
        if event.result is not None:
            text += _text("reason" if event.letter in _FAILURES else "result", event.result)
        return text + _REASONS.get(event.kind, b"") + b"}"

    def _facts(self, event: Event) -> bytes:
        """What a message has from its producer."""
        text = b',"content_type":%b' % self._names[event.content_type] if event.content_type else b""
        if event.sender:
            text += b',"sender":%b' % self._names[event.sender]
        if event.object:
            text += b',"object":%b' % self._names[event.object]
        if event.topics:
            text += b',"topics":%b' % self._topics[event.topics]
        if event.body is not None:
            text += self._message(event.body, event.content_type)
        if event.key is not None:
            text += _text("key", event.key)
        if event.headers is not None:
            text += _headers(event.headers)
        if event.digest is not None:
            text += b',"sha256":"%b"' % event.digest.hex().encode()
        return text

    def _message(self, body: bytes, content_type: int) -> bytes:
        found = json_of(body, self._types[content_type]) if content_type and not self._raw else None
        return _text("message", body) if found is None else b',"message":' + found


class EventStreamText:
    """Pieces of a stream as JSON lines or as Server-Sent Events, whose ids are where to continue after each event."""

    def __init__(self, *, sent_events: bool, shards: int) -> None:
        """`shards`: how many it has events of. If there are several, events say of which they are, and a reader has a
        place in each: `0:17,1:4`."""
        self._sent_events = sent_events
        self._several = shards > 1
        self._reached: list[bytes] = []  # The place in each shard, as it is written.

    def __call__(self, piece: Events | bytes) -> bytes:
        if not isinstance(piece, Events):
            return piece  # It is empty.
        shown = [self._in_all(event) for event in piece.events] if self._several else self._alone(piece.events)
        self._reached = [b"%d:%b" % each for each in enumerate(piece.reached)] if self._several else piece.reached
        return b"".join([*shown, self._said(piece.word)])

    def _alone(self, events: Sequence[EventText]) -> list[bytes]:
        """In one go: one shard is the usual case."""
        if not self._sent_events:
            return [_LINE % (event.offset, event.following, event.text) for event in events]
        return [_SENT % (event.following, event.offset, event.following, event.text) for event in events]

    def _in_all(self, event: EventText) -> bytes:
        self._reached[event.shard] = b"%d:%b" % (event.shard, event.following)
        place = b",".join(self._reached)
        data = b'{"shard":%d,"offset":%d,"next":"%b",%b' % (event.shard, event.offset, place, event.text)
        return b"id: %b\ndata: %b\n\n" % (place, data) if self._sent_events else data + b"\n"

    def _said(self, word: Word) -> bytes:
        if not self._sent_events:
            return b"\n" if word == "beat" else b""
        # An id without data updates the position from which the client goes on if it loses the connection.
        place = b"id: %b\n\n" % b",".join(self._reached)
        return b": beat\n" + place if word == "beat" else place if word in ("begin", "past") else b""


_Value = TypeVar("_Value")


class _Named(dict[int, _Value]):
    """What numbers stand for."""

    def __init__(self, find: Callable[[int], _Value]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, number: int) -> _Value:
        if len(self) >= _NAMED_MAX:
            self.clear()
        self[number] = value = self._find(number)
        return value


_NAMED_MAX = 4096


def headers_by_name(data: bytes) -> dict[str, str | dict[str, str]] | None:
    """What dialects keep with a message: the fields that have names of their own, and `headers`. None if it is not
    text."""
    try:
        named = {name.decode(): value.decode() for name, value in decode_headers(data).items()}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    fields: dict[str, str | dict[str, str]] = {name: named.pop(name) for name in MESSAGE_FIELDS if name in named}
    return fields | ({"headers": named} if named else {})


def _headers(data: bytes) -> bytes:
    named = headers_by_name(data)
    if named is None:
        return _text("headers", data)
    return b"".join([b',"%b":%b' % (name.encode(), _encode(value)) for name, value in named.items()])


def _text(name: str, data: bytes) -> bytes:
    """Bytes as text if they are text, else in base64 under a name that says so."""
    try:
        return b',"%b":%b' % (name.encode(), _encode(data.decode()))
    except UnicodeDecodeError:
        return b',"%b_base64":"%b"' % (name.encode(), base64.b64encode(data))
