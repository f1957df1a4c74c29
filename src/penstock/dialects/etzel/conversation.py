"""Etzel: JSON commands for workers that sleep until there is work. `docs/etzel.md` has it in prose.

A command is one frame: a line over TCP, a text frame over WebSocket. Replies come in the order of the commands, since
nothing in them says which command they belong to. Only a wake-up comes when it comes, after the reply that allowed
the sleep.

Publishes, fetches and acknowledgements that come together are gathered until the shell says that this was all, and
carried out as one command each: a run of them costs half of what they cost one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from msgspec import Struct

from penstock.dialects.etzel.codec import (
    ACKNOWLEDGED,
    ADMITTED,
    AWAKE,
    BAD_JSON,
    DENIED,
    MAY_SLEEP,
    NO_MESSAGE,
    OK,
    SUBSCRIBED,
    TOO_LARGE,
    TOO_MANY,
    Auth,
    EtzelCommand,
    Fet,
    Islp,
    Pub,
    Sub,
    decode,
    encode,
    explained,
    in_json,
    message,
    named,
    refusal,
    refused,
)
from penstock.dialects.wire.conversation import Peer
from penstock.dialects.wire.json_bounds import NOT_JSON
from penstock.dialects.wire.order import Gathering
from penstock.errors import Reason
from penstock.ids import MessageIds
from penstock.limits import (
    BODY_BYTES_MAX,
    CONNECTION_QUEUES_MAX,
    RUN_MESSAGES_MIN,
    SECOND_NS,
)
from penstock.model.access import EVERYTHING, NOBODY, Access
from penstock.model.answers import Answer, Delivery, Done, Receipt, Receipts, Refused
from penstock.model.client import Cancelable
from penstock.model.commands import Fetch, Finish, FinishMany, NewMessage, Publish, PublishRun
from penstock.model.probe import Head, Probe
from penstock.model.settings import QueueSettings

TIMEOUT_SECONDS_DEFAULT = 60

_CONTENT_TYPE = "text/plain; charset=utf-8"


class _Fetches(Struct):
    """Fetches from one queue, carried out together."""

    shown: bytes  # The queue's name in JSON.
    numbers: list[int]  # The numbers of the commands.


class _Publishes(Struct):
    """Publishes to one queue, carried out together: the messages differ only in their bodies."""

    shown: bytes
    template: NewMessage
    numbers: list[int]
    bodies: list[bytes]


Login = Callable[[str], Access]  # The access that a token grants.


class Etzel:
    """Opens conversations. `create`: the settings of a queue that its first message makes."""

    def __init__(self, ids: MessageIds, create: QueueSettings) -> None:
        self.ids = ids
        self.create = create

    def converse(self, peer: Peer, login: Login = lambda _: EVERYTHING) -> EtzelConversation:
        return EtzelConversation(self, peer, login)


class EtzelConversation(Gathering):
    """One connection's side: frames in, commands out; answers in, frames out."""

    __slots__ = (
        "_answered",
        "_asked",
        "_asleep",
        "_create",
        "_drowsy",
        "_early",
        "_find",
        "_keep_back",
        "_login",
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

    def __init__(self, etzel: Etzel, peer: Peer, login: Login) -> None:
        super().__init__()
        self._peer = peer
        self._send = peer.send
        self._keep_back = peer.keep_back
        self._submit = peer.submit
        self._make = etzel.ids.make
        self._find = etzel.ids.find
        self._create = etzel.create
        self._login = login
        self.guest = peer.access is NOBODY  # It has not shown a valid token yet.
        self._over = False  # The connection is gone.
        self._asked = 0  # Commands that have arrived,
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
            command = decode(frame)
        except NOT_JSON:
            if binary:
                self._answer(number, BAD_JSON)
            else:
                self._answer_wrong(number, *(named(frame) or ("", "")), explained(frame))
            return
        kind = type(command)
        shown = None if kind is Auth else in_json(command.qname)
        if shown is None or self.guest or binary:
            self._answer_unusual(number, command, binary)
        elif kind is Pub:
            self._publish(number, shown, command)
        elif kind is Fet:
            run = self._fetches.get(command.qname)
            if run is None:
                self._fetches[command.qname] = _Fetches(shown, [number])
            else:
                run.numbers.append(number)
        elif kind is Islp:
            self._sleep(number, shown, command.qname)
        elif kind is Sub:
            self._subscribe(number, shown, command.qname)
        else:
            self._acknowledge(number, shown, command.uid)

    def _answer_unusual(self, number: int, command: EtzelCommand, binary: bool) -> None:
        if binary:
            self._answer(number, BAD_JSON)
        elif isinstance(command, Auth):
            self._authenticate(number, command.token)
        elif self.guest:
            self._deny(number)
        else:
            self._answer(number, refusal("BAD_FIELD", field="qname"))

    def _answer_wrong(self, number: int, command: str, qname: str, problem: bytes) -> None:
        """What is wrong with a command is said to who may send it, and if there is the queue that it needs."""
        heads: dict[str, Callable[[], Head]] = {
            "PUB": lambda: Publish(qname, (_PLAIN,), self._create),
            **dict.fromkeys(("FET", "SUB", "ISLP"), lambda: Fetch(qname)),
        }
        head = None if self.guest else heads.get(command)
        if head is None:
            self._answer(number, problem)
            return
        needs_queue = command == "FET" and qname not in self._subscribed

        def answered(answer: Answer) -> None:
            is_refused = isinstance(answer, Refused) and (needs_queue or answer.reason is not Reason.NO_QUEUE)
            self._answer(number, refused(cast("Refused", answer)) if is_refused else problem)

        self.settle()
        self._submit(Probe(head()), answered)

    # ── Each command ────────────────────────────────────────────────────────────────────────────────────────

    def _publish(self, number: int, shown: bytes, command: Pub) -> None:
        text, timeout, delay, expires = command.message, command.timeout, command.delay, command.expires
        if text is None:
            text = command.msg
        elif command.msg is not None:
            self._answer_wrong(number, "PUB", command.qname, refusal("BAD_FIELD", field="msg"))
            return
        if text is None:
            self._answer_wrong(number, "PUB", command.qname, refusal("BAD_FIELD", field="message"))
            return
        body = text.encode()
        if len(body) > BODY_BYTES_MAX:
            self._answer_wrong(number, "PUB", command.qname, TOO_LARGE)
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
            frames = [refused(answer)] * len(run.numbers)
        elif type(answer) is Receipts:
            sequences = range(answer.first, answer.first + answer.count)
            frames = [OK % (shown, make(answer.queue, sequence)) for sequence in sequences]
        else:
            receipts = cast("Sequence[Receipt]", answer)
            frames = [OK % (shown, make(receipt.queue, receipt.sequence)) for receipt in receipts]
        self._answer_all(run.numbers, frames)

    def _fetch_together(self, wanted: str, fetchers: _Fetches) -> None:
        self._submit(Fetch(wanted, len(fetchers.numbers)), partial(self._fetched, wanted, fetchers))

    def _fetched(self, qname: str, fetches: _Fetches, answer: Answer) -> None:
        shown, numbers = fetches.shown, fetches.numbers
        if type(answer) is Refused:
            absent = answer.reason is Reason.NO_QUEUE and qname in self._subscribed
            frames = [NO_MESSAGE % shown if absent else refused(answer)] * len(numbers)
        elif answer:
            make = self._make
            frames = [
                message(shown, make(each.queue, each.sequence), each.receives - 1, each.body)
                for each in cast("Sequence[Delivery]", answer)
            ]
        else:
            frames = [NO_MESSAGE % shown] * len(numbers)
        left = numbers[len(frames) :]
        self._answer_all(numbers[: len(frames)], frames)
        if left and not self._over:  # There may be more: large messages do not come all at once.
            self._fetch_together(qname, _Fetches(shown, left))

    def _acknowledge(self, number: int, shown: bytes, uid: str) -> None:
        name = uid.encode()
        place = self._find(name)
        if place is None:
            self._answer(number, ACKNOWLEDGED % (shown, encode(uid)))  # Never given out; gone is gone.
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
            refused(outcome)
            if type(outcome) is Refused and outcome.reason is not Reason.NO_MESSAGE
            else ACKNOWLEDGED % (shown, b'"%b"' % uid)
            for (_, _, shown, uid), outcome in zip(finished, outcomes, strict=True)
        ]
        self._answer_all([number for _, number, _, _ in finished], frames)

    def _subscribe(self, number: int, shown: bytes, qname: str) -> None:
        if forbidden := self._peer.refusal(Fetch(qname)):
            self._answer(number, refused(forbidden))
        elif len(self._subscribed) >= CONNECTION_QUEUES_MAX and qname not in self._subscribed:
            self._answer(number, TOO_MANY)
        else:
            self._subscribed.add(qname)
            self._answer(number, SUBSCRIBED % shown)

    def _authenticate(self, number: int, token: str) -> None:
        access = self._login(token)
        if access is NOBODY:
            self._deny(number)
        else:
            self._peer.access = access
            self.guest = False
            self._answer(number, ADMITTED)

    def _deny(self, number: int) -> None:
        """Answer once and end the connection, so that tokens cannot be guessed quickly."""
        self._answer(number, DENIED)
        self._peer.close("no valid token")

    # ── Sleep ───────────────────────────────────────────────────────────────────────────────────────────────

    def _sleep(self, number: int, shown: bytes, qname: str) -> None:
        if forbidden := self._peer.refusal(Fetch(qname)):
            self._answer(number, refused(forbidden))
            return
        if len(self._asleep) + len(self._drowsy) >= CONNECTION_QUEUES_MAX and qname not in self._asleep:
            self._answer(number, TOO_MANY)
            return
        if answer := self._peer.wait_refused():
            self._answer(number, refused(answer))
            return
        self._drowsy[number] = qname
        self._answer(number, MAY_SLEEP % shown)

    def _fall_asleep(self, qname: str) -> None:
        """Only after the reply that allows it: the wake-up may come at once, and must not come first."""
        if qname in self._asleep:
            return  # It is woken once, however often it asked.
        self._asleep[qname] = None
        sleep = self._peer.watch(qname, partial(self._awake, qname))
        if qname in self._asleep:
            self._asleep[qname] = sleep

    def _awake(self, qname: str) -> None:
        if qname in self._asleep:
            del self._asleep[qname]
            self._send(AWAKE % encode(qname))

    # ── Order ───────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, number: int, frame: bytes) -> None:
        """Send a reply, or keep it until all before it are sent."""
        if number != self._answered:
            self._early[number] = frame
            self._keep_back(len(frame))
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
            self._keep_back(-len(frame))
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
