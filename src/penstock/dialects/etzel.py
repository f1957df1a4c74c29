"""Etzel: JSON commands for workers that sleep until there is work. `docs/etzel.md` has it in prose.

A command is one frame: a line over TCP, a text frame over WebSocket. Replies come in the order of the commands, since
nothing in them says which command they belong to. Only a wake-up comes when it comes, after the reply that allowed
the sleep.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from penstock.dialects.conversation import Cancelable, Peer
from penstock.errors import Reason
from penstock.ids import MessageIds
from penstock.limits import (
    BODY_BYTES_MAX,
    CONNECTION_QUEUES_MAX,
    INT32_MAX,
    NAME_BYTES_MAX,
    SECOND_NS,
)
from penstock.model import Answer, Delivery, Fetch, Finish, NewMessage, Publish, QueueSettings, Receipt, Refused

TIMEOUT_SECONDS_MIN = 5
TIMEOUT_SECONDS_DEFAULT = 60
DELAY_SECONDS_MAX = 365 * 86_400

_CONTENT_TYPE = "text/plain; charset=utf-8"
_DEFAULT_LEASE_NS = TIMEOUT_SECONDS_DEFAULT * SECOND_NS


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]  # In characters; `_queue` counts bytes.


class _Subscribe(Struct, tag_field="cmd", tag="SUB", gc=False):
    qname: _Name


class _Fetch(Struct, tag_field="cmd", tag="FET", gc=False):
    qname: _Name


class _Sleep(Struct, tag_field="cmd", tag="ISLP", gc=False):
    qname: _Name


class _Publish(Struct, tag_field="cmd", tag="PUB", gc=False):
    qname: _Name
    message: str | None = None
    msg: str | None = None
    timeout: Annotated[float, Meta(ge=TIMEOUT_SECONDS_MIN, le=INT32_MAX)] | None = None
    delay: Annotated[float, Meta(ge=0, le=DELAY_SECONDS_MAX)] | None = None
    expires: Annotated[float, Meta(ge=0, le=INT32_MAX)] | None = None


class _Acknowledge(Struct, tag_field="cmd", tag="ACK", gc=False):
    qname: _Name
    uid: str


class _Delete(_Acknowledge, tag="DEL", gc=False):
    """The same by another name."""


class _Authenticate(Struct, tag_field="cmd", tag="AUTH", gc=False):
    token: str


_Command = _Publish | _Fetch | _Acknowledge | _Delete | _Sleep | _Subscribe | _Authenticate

_decode = msgspec.json.Decoder(_Command).decode
_decode_any = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_FIELDS = {
    str(kind.__struct_config__.tag): msgspec.structs.fields(kind)
    for kind in (_Publish, _Fetch, _Acknowledge, _Delete, _Sleep, _Subscribe, _Authenticate)
}


# ── Replies ───────────────────────────────────────────────────────────────────────────────────────────────


def refusal(error: str, **more: str) -> bytes:
    return _encode({"cmd": "nok", "err": error, **more})


_OK = b'{"cmd":"ok","qname":%b,"uid":"%b"}'
_MESSAGE = b'{"cmd":"msg","qname":%b,"uid":"%b","error_count":%d,"msg":%b}'
_BINARY_MESSAGE = b'{"cmd":"msg","qname":%b,"uid":"%b","error_count":%d,"msg_base64":"%b"}'
_NO_MESSAGE = b'{"cmd":"nomsg","qname":%b}'
_ACKNOWLEDGED = b'{"cmd":"okack","qname":%b,"uid":%b}'
_SUBSCRIBED = b'{"cmd":"oksub","qname":%b}'
_MAY_SLEEP = b'{"cmd":"okslp","qname":%b}'
_AWAKE = b'{"cmd":"awk","qname":%b}'
_ADMITTED = b'{"cmd":"okauth"}'

_BAD_JSON = refusal("BAD_JSON")
_BAD_COMMAND = refusal("BAD_CMD")
_NO_QUEUE = refusal("Q_NOT_FOUND")
_TOO_LARGE = refusal("TOO_LARGE")
_TOO_MANY = refusal("TOO_MANY")
_DENIED = refusal("DENIED")


class _Queue(Struct, frozen=True, gc=False):
    """What is said of a queue again and again."""

    shown: bytes  # Its name in JSON.
    fetch: Fetch


@lru_cache(maxsize=4096)
def _queue(name: str) -> _Queue | None:
    """None for what cannot be a name."""
    if len(name.encode()) > NAME_BYTES_MAX or "/" in name:
        return None
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in name):
        return None
    return _Queue(_encode(name), Fetch(name))


class Etzel:
    """Opens conversations. `create`: the settings of a queue that its first message makes."""

    def __init__(self, ids: MessageIds, create: QueueSettings) -> None:
        self.ids = ids
        self.create = create

    def converse(self, peer: Peer, admits: Callable[[str], bool] | None = None) -> EtzelConversation:
        """`admits`: tells whether a token opens the door; None: it stands open."""
        return EtzelConversation(self, peer, admits)


class EtzelConversation:
    """One connection's side: frames in, commands out; answers in, frames out."""

    __slots__ = (
        "_admits",
        "_answered",
        "_asked",
        "_asleep",
        "_create",
        "_drowsy",
        "_early",
        "_find",
        "_make",
        "_peer",
        "_send",
        "_submit",
        "_subscribed",
        "guest",
    )

    def __init__(self, etzel: Etzel, peer: Peer, admits: Callable[[str], bool] | None) -> None:
        self._peer = peer
        self._send = peer.send
        self._submit = peer.submit
        self._make = etzel.ids.make
        self._find = etzel.ids.find
        self._create = etzel.create
        self._admits = admits
        self.guest = admits is not None  # Has not shown yet that it may come in.
        self._asked = 0  # Commands that have come,
        self._answered = 0  # and how many of them are answered.
        self._early: dict[int, bytes] = {}  # Replies that wait for those before them, by the command's number.
        self._drowsy: dict[int, str] = {}  # Queues to sleep for once the reply to this command is out.
        self._asleep: dict[str, Cancelable | None] = {}
        self._subscribed: set[str] = set()

    @property
    def under_way(self) -> int:
        """Commands that are not answered yet."""
        return self._asked - self._answered

    @property
    def asleep(self) -> bool:
        return bool(self._asleep)

    def opened(self) -> None:
        """The client speaks first."""

    def closed(self) -> None:
        for sleep in self._asleep.values():
            if sleep is not None:
                sleep.cancel()
        self._asleep.clear()
        self._drowsy.clear()

    def refuse(self, error: str) -> None:
        """Answer a frame that the shell could not take."""
        number = self._asked
        self._asked = number + 1
        self._answer(number, refusal(error))

    def received(self, frame: bytes, *, binary: bool = False) -> None:
        number = self._asked
        self._asked = number + 1
        try:
            command = _decode(frame)
        except _UNREADABLE:
            self._answer(number, _explained(frame))
            return
        kind = type(command)
        queue = None if kind is _Authenticate else _queue(command.qname)
        if queue is None or self.guest or binary:
            self._answer_unusual(number, command, binary)
        elif kind is _Publish:
            self._publish(number, queue, command)
        elif kind is _Fetch:
            self._submit(queue.fetch, partial(self._fetched, number, queue))
        elif kind is _Sleep:
            self._sleep(number, queue)
        elif kind is _Subscribe:
            self._subscribe(number, queue)
        else:
            self._acknowledge(number, queue, command.uid)

    def _answer_unusual(self, number: int, command: _Command, binary: bool) -> None:
        if binary:
            self._answer(number, _BAD_JSON)
        elif isinstance(command, _Authenticate):
            self._authenticate(number, command.token)
        elif self.guest:
            self._answer(number, _DENIED)
        else:
            self._answer(number, refusal("BAD_FIELD", field="qname"))

    # ── Each command ────────────────────────────────────────────────────────────────────────────────────────

    def _publish(self, number: int, queue: _Queue, command: _Publish) -> None:
        text, timeout, delay, expires = command.message, command.timeout, command.delay, command.expires
        if text is None:
            text = command.msg
        elif command.msg is not None:
            self._answer(number, refusal("BAD_FIELD", field="msg"))
            return
        if text is None:
            self._answer(number, refusal("BAD_FIELD", field="message"))
            return
        body = text.encode()
        if len(body) > BODY_BYTES_MAX:
            self._answer(number, _TOO_LARGE)
            return
        message = NewMessage(
            body,
            _CONTENT_TYPE,
            lease_ns=_DEFAULT_LEASE_NS if timeout is None else int(timeout * SECOND_NS),
            delay_ns=None if delay is None else int(delay * SECOND_NS),
            expires_ns=int(expires * SECOND_NS) if expires else None,
        )
        publish = Publish(command.qname, (message,), self._create)
        self._submit(publish, partial(self._published, number, queue))

    def _published(self, number: int, queue: _Queue, answer: Answer) -> None:
        if type(answer) is Refused:
            frame = _refused(answer)
        else:
            receipt = cast("Sequence[Receipt]", answer)[0]
            frame = _OK % (queue.shown, self._make(receipt.queue, receipt.sequence))
        self._answer(number, frame)

    def _fetched(self, number: int, queue: _Queue, answer: Answer) -> None:
        if type(answer) is Refused:
            absent = answer.reason is Reason.NO_QUEUE and queue.fetch.queue in self._subscribed
            frame = _NO_MESSAGE % queue.shown if absent else _refused(answer)
        elif answer:
            frame = self._message(queue, cast("Sequence[Delivery]", answer)[0])
        else:
            frame = _NO_MESSAGE % queue.shown
        self._answer(number, frame)

    def _message(self, queue: _Queue, delivery: Delivery) -> bytes:
        uid = self._make(delivery.queue, delivery.sequence)
        try:
            return _MESSAGE % (queue.shown, uid, delivery.receives - 1, _encode(delivery.body.decode()))
        except UnicodeDecodeError:
            text = b2a_base64(delivery.body, newline=False)
            return _BINARY_MESSAGE % (queue.shown, uid, delivery.receives - 1, text)

    def _acknowledge(self, number: int, queue: _Queue, uid: str) -> None:
        name = uid.encode()
        place = self._find(name)
        if place is None:
            self._answer(number, _ACKNOWLEDGED % (queue.shown, _encode(uid)))  # Never given out; gone is gone.
        else:
            self._submit(Finish(*place), partial(self._acknowledged, number, queue, name))

    def _acknowledged(self, number: int, queue: _Queue, uid: bytes, answer: Answer) -> None:
        if type(answer) is Refused and answer.reason is not Reason.NO_MESSAGE:
            frame = _refused(answer)
        else:
            frame = _ACKNOWLEDGED % (queue.shown, b'"%b"' % uid)
        self._answer(number, frame)

    def _subscribe(self, number: int, queue: _Queue) -> None:
        qname = queue.fetch.queue
        if len(self._subscribed) >= CONNECTION_QUEUES_MAX and qname not in self._subscribed:
            self._answer(number, _TOO_MANY)
        else:
            self._subscribed.add(qname)
            self._answer(number, _SUBSCRIBED % queue.shown)

    def _authenticate(self, number: int, token: str) -> None:
        if self._admits is None or self._admits(token):
            self.guest = False
            self._answer(number, _ADMITTED)
        else:
            self._answer(number, _DENIED)

    # ── Sleep ───────────────────────────────────────────────────────────────────────────────────────────────

    def _sleep(self, number: int, queue: _Queue) -> None:
        qname = queue.fetch.queue
        if len(self._asleep) + len(self._drowsy) >= CONNECTION_QUEUES_MAX and qname not in self._asleep:
            self._answer(number, _TOO_MANY)
            return
        self._drowsy[number] = qname
        self._answer(number, _MAY_SLEEP % queue.shown)

    def _fall_asleep(self, qname: str) -> None:
        """Only when the client was told that it may: the wake-up can come at once, and must not come first."""
        if qname in self._asleep:
            return  # It will be woken once, however often it said so.
        self._asleep[qname] = None
        sleep = self._peer.watch(qname, partial(self._awake, qname))
        if qname in self._asleep:
            self._asleep[qname] = sleep

    def _awake(self, qname: str) -> None:
        if qname in self._asleep:
            del self._asleep[qname]
            self._send(_AWAKE % _encode(qname))

    # ── Order ───────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, number: int, frame: bytes) -> None:
        """Send a reply, or keep it until all before it are sent."""
        if number != self._answered:
            self._early[number] = frame
            return
        self._send(frame)
        self._answered = number + 1
        if self._drowsy or self._early:
            self._go_on()

    def _go_on(self) -> None:
        """A reply is out: let those follow that waited for it, and begin the sleeps that were allowed."""
        while True:
            qname = self._drowsy.pop(self._answered - 1, None)
            if qname is not None:
                self._fall_asleep(qname)
            frame = self._early.pop(self._answered, None)
            if frame is None:
                return
            self._send(frame)
            self._answered += 1


def _refused(answer: Refused) -> bytes:
    if answer.reason is Reason.NO_QUEUE:
        return _NO_QUEUE
    more = {"detail": answer.detail} if answer.detail else {}
    return refusal(answer.reason.name, **more)


def _explained(frame: bytes) -> bytes:
    """What is wrong with a frame that could not be read as a command: looked at again, field by field."""
    try:
        fields = _decode_fields(frame)
        name = _decode_any(fields["cmd"]) if "cmd" in fields else None
        expected = _FIELDS.get(name) if isinstance(name, str) else None
        if expected is None:
            return _BAD_COMMAND
        for field in expected:
            if not _fits(field, fields):
                return refusal("BAD_FIELD", field=field.name)
    except _UNREADABLE:
        pass
    return _BAD_JSON


def _fits(field: FieldInfo, fields: dict[str, msgspec.Raw]) -> bool:
    if field.name not in fields:
        return not field.required
    try:
        msgspec.json.decode(fields[field.name], type=field.type)
    except msgspec.ValidationError:
        return False
    return True
