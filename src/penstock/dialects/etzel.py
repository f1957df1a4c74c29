"""Etzel: JSON commands for workers that sleep until there is work. `docs/etzel.md` has it in prose.

A command is one frame: a line over TCP, a text frame over WebSocket. Replies come in the order of the commands, since
nothing in them says which command they belong to. Only a wake-up comes when it comes, after the reply that allowed
the sleep.

Publishes, fetches and acknowledgements that come together are gathered until the shell says that this was all, and
carried out as one command each: a run of them costs half of what they cost one by one.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from penstock.dialects.wire.conversation import Cancelable, Peer
from penstock.dialects.wire.http import checked_name
from penstock.dialects.wire.order import Gathering
from penstock.errors import ProtocolError, Reason
from penstock.ids import MessageIds
from penstock.limits import (
    BODY_BYTES_MAX,
    CONNECTION_QUEUES_MAX,
    DELAY_SECONDS_MAX,
    INT32_MAX,
    NAME_BYTES_MAX,
    RUN_MESSAGES_MIN,
    SECOND_NS,
)
from penstock.model.answers import Answer, Delivery, Done, Receipt, Receipts, Refused
from penstock.model.commands import Fetch, Finish, FinishMany, NewMessage, PublishRun
from penstock.model.settings import QueueSettings

TIMEOUT_SECONDS_MIN = 5
TIMEOUT_SECONDS_DEFAULT = 60

_CONTENT_TYPE = "text/plain; charset=utf-8"


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]  # In characters; `_in_json` counts bytes.


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
_decode_text = msgspec.json.Decoder(str).decode
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


class _Fetches(Struct):
    """Fetches from one queue, to be carried out together."""

    shown: bytes  # The queue's name in JSON.
    numbers: list[int]  # Of the commands.


class _Publishes(Struct):
    """Publishes to one queue, to be carried out together: of messages that are alike in all but their bodies."""

    shown: bytes
    template: NewMessage
    numbers: list[int]
    bodies: list[bytes]


@lru_cache(maxsize=4096)
def _in_json(name: str) -> bytes | None:
    """A queue's name as replies show it; None for what cannot be a name."""
    try:
        return _encode(checked_name(name.encode()))
    except ProtocolError:
        return None


class Etzel:
    """Opens conversations. `create`: the settings of a queue that its first message makes."""

    def __init__(self, ids: MessageIds, create: QueueSettings) -> None:
        self.ids = ids
        self.create = create

    def converse(self, peer: Peer, admits: Callable[[str], bool] | None = None) -> EtzelConversation:
        """`admits`: tells whether a token opens the door; None: it stands open."""
        return EtzelConversation(self, peer, admits)


class EtzelConversation(Gathering):
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
        "_over",
        "_peer",
        "_send",
        "_submit",
        "_subscribed",
        "guest",
    )

    _finishes: list[tuple[Finish, int, bytes, bytes]]  # With the command's number, the queue's name in JSON, the uid.
    _publishes: dict[str, _Publishes]
    _fetches: dict[str, _Fetches]

    def __init__(self, etzel: Etzel, peer: Peer, admits: Callable[[str], bool] | None) -> None:
        super().__init__()
        self._peer = peer
        self._send = peer.send
        self._submit = peer.submit
        self._make = etzel.ids.make
        self._find = etzel.ids.find
        self._create = etzel.create
        self._admits = admits
        self.guest = admits is not None  # Has not shown yet that it may come in.
        self._over = False  # The connection is gone.
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
        self._over = True

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
            self._answer(number, _BAD_JSON if binary else _explained(frame))
            return
        kind = type(command)
        shown = None if kind is _Authenticate else _in_json(command.qname)
        if shown is None or self.guest or binary:
            self._answer_unusual(number, command, binary)
        elif kind is _Publish:
            self._publish(number, shown, command)
        elif kind is _Fetch:
            run = self._fetches.get(command.qname)
            if run is None:
                self._fetches[command.qname] = _Fetches(shown, [number])
            else:
                run.numbers.append(number)
        elif kind is _Sleep:
            self._sleep(number, shown, command.qname)
        elif kind is _Subscribe:
            self._subscribe(number, shown, command.qname)
        else:
            self._acknowledge(number, shown, command.uid)

    def _answer_unusual(self, number: int, command: _Command, binary: bool) -> None:
        if binary:
            self._answer(number, _BAD_JSON)
        elif isinstance(command, _Authenticate):
            self._authenticate(number, command.token)
        elif self.guest:
            self._deny(number)
        else:
            self._answer(number, refusal("BAD_FIELD", field="qname"))

    # ── Each command ────────────────────────────────────────────────────────────────────────────────────────

    def _publish(self, number: int, shown: bytes, command: _Publish) -> None:
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
        plain = timeout is None and delay is None and expires is None
        template = _PLAIN if plain else _template(timeout, delay, expires)
        run = self._publishes.get(command.qname)
        if self._fetches or (run and run.template != template):
            self.settle()  # Commands keep their order, and so do the messages of one queue.
            run = None
        if run is None:
            self._publishes[command.qname] = _Publishes(shown, template, [number], [body])
        else:
            run.numbers.append(number)
            run.bodies.append(body)

    def _publish_together(self, queue: str, messages: _Publishes) -> None:
        command = PublishRun(queue, messages.template, messages.bodies, self._create)
        few = len(messages.bodies) < RUN_MESSAGES_MIN  # Those of several connections are decided together.
        self._submit(command.apart() if few else command, partial(self._published, messages))

    def _published(self, run: _Publishes, answer: Answer) -> None:
        shown, make = run.shown, self._make
        if type(answer) is Refused:
            frames = [_refused(answer)] * len(run.numbers)
        elif type(answer) is Receipts:
            sequences = range(answer.first, answer.first + answer.count)
            frames = [_OK % (shown, make(answer.queue, sequence)) for sequence in sequences]
        else:
            receipts = cast("Sequence[Receipt]", answer)
            frames = [_OK % (shown, make(receipt.queue, receipt.sequence)) for receipt in receipts]
        self._answer_all(run.numbers, frames)

    def _fetch_together(self, wanted: str, fetchers: _Fetches) -> None:
        self._submit(Fetch(wanted, len(fetchers.numbers)), partial(self._fetched, wanted, fetchers))

    def _fetched(self, qname: str, fetches: _Fetches, answer: Answer) -> None:
        shown, numbers = fetches.shown, fetches.numbers
        if type(answer) is Refused:
            absent = answer.reason is Reason.NO_QUEUE and qname in self._subscribed
            frames = [_NO_MESSAGE % shown if absent else _refused(answer)] * len(numbers)
        elif answer:
            frames = [self._message(shown, delivery) for delivery in cast("Sequence[Delivery]", answer)]
        else:
            frames = [_NO_MESSAGE % shown] * len(numbers)
        left = numbers[len(frames) :]
        self._answer_all(numbers[: len(frames)], frames)
        if left and not self._over:  # There may be more: large messages do not come all at once.
            self._fetch_together(qname, _Fetches(shown, left))

    def _message(self, shown: bytes, delivery: Delivery) -> bytes:
        uid = self._make(delivery.queue, delivery.sequence)
        try:
            return _MESSAGE % (shown, uid, delivery.receives - 1, _encode(delivery.body.decode()))
        except UnicodeDecodeError:
            return _BINARY_MESSAGE % (shown, uid, delivery.receives - 1, b2a_base64(delivery.body, newline=False))

    def _acknowledge(self, number: int, shown: bytes, uid: str) -> None:
        name = uid.encode()
        place = self._find(name)
        if place is None:
            self._answer(number, _ACKNOWLEDGED % (shown, _encode(uid)))  # Never given out; gone is gone.
        else:
            self._finishes.append((Finish(*place), number, shown, name))

    def _finish_together(self, finishes: list[tuple[Finish, int, bytes, bytes]]) -> None:
        commands = [finish for finish, _, _, _ in finishes]
        command = commands[0] if len(commands) == 1 else FinishMany(commands)
        self._submit(command, partial(self._acknowledged, finishes))

    def _acknowledged(self, finished: list[tuple[Finish, int, bytes, bytes]], answer: Answer) -> None:
        if isinstance(answer, Done | Refused):
            outcomes: Sequence[Done | Refused] = [answer] * len(finished)
        else:
            outcomes = cast("Sequence[Done | Refused]", answer)
        frames = [
            _refused(outcome)
            if type(outcome) is Refused and outcome.reason is not Reason.NO_MESSAGE
            else _ACKNOWLEDGED % (shown, b'"%b"' % uid)
            for (_, _, shown, uid), outcome in zip(finished, outcomes, strict=True)
        ]
        self._answer_all([number for _, number, _, _ in finished], frames)

    def _subscribe(self, number: int, shown: bytes, qname: str) -> None:
        if len(self._subscribed) >= CONNECTION_QUEUES_MAX and qname not in self._subscribed:
            self._answer(number, _TOO_MANY)
        else:
            self._subscribed.add(qname)
            self._answer(number, _SUBSCRIBED % shown)

    def _authenticate(self, number: int, token: str) -> None:
        if self._admits is None or self._admits(token):
            self.guest = False
            self._answer(number, _ADMITTED)
        else:
            self._deny(number)

    def _deny(self, number: int) -> None:
        """Answer once and end the connection, so that nobody can guess tokens as fast as it can send."""
        self._answer(number, _DENIED)
        self._peer.close("no valid token")

    # ── Sleep ───────────────────────────────────────────────────────────────────────────────────────────────

    def _sleep(self, number: int, shown: bytes, qname: str) -> None:
        if len(self._asleep) + len(self._drowsy) >= CONNECTION_QUEUES_MAX and qname not in self._asleep:
            self._answer(number, _TOO_MANY)
            return
        self._drowsy[number] = qname
        self._answer(number, _MAY_SLEEP % shown)

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

    def _answer_all(self, numbers: list[int], frames: list[bytes]) -> None:
        """Send replies to commands in their order; with one step for all of them if nothing was in between."""
        if numbers[0] == self._answered and numbers[-1] - numbers[0] == len(numbers) - 1:
            send = self._send
            for frame in frames:
                send(frame)
            self._answered = numbers[-1] + 1
            if self._drowsy or self._early:
                self._go_on()
        else:
            for number, frame in zip(numbers, frames, strict=True):
                self._answer(number, frame)

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


def _template(timeout: float | None, delay: float | None, expires: float | None) -> NewMessage:
    """All of a message but its body."""
    return NewMessage(
        b"",
        _CONTENT_TYPE,
        lease_ns=int((TIMEOUT_SECONDS_DEFAULT if timeout is None else timeout) * SECOND_NS),
        delay_ns=None if delay is None else int(delay * SECOND_NS),
        expires_ns=int(expires * SECOND_NS) if expires else None,
    )


_PLAIN = _template(None, None, None)


def _refused(answer: Refused) -> bytes:
    if answer.reason is Reason.NO_QUEUE:
        return _NO_QUEUE
    more = {"detail": answer.detail} if answer.detail else {}
    return refusal(answer.reason.name, **more)


def _explained(frame: bytes) -> bytes:
    """What is wrong with a frame that could not be read as a command: looked at again, field by field."""
    try:
        fields = _decode_fields(frame)
        command = bytes(fields.get("cmd", b""))
        expected = _FIELDS.get(_decode_text(command)) if command.startswith(b'"') else None
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
