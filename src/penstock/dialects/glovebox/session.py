"""One client's side of glovebox: what it asks for, and what it is answered.

A session lives as long as its connection, or, if it is durable, until its client has been away for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.dialects.glovebox.codec import (
    MALFORMED,
    UINT64_MAX,
    Codec,
    Create,
    Fetch,
    Finish,
    Firmness,
    Pop,
    Post,
    decode_bincode,
    decode_json,
    label_in,
    named_in,
)
from penstock.dialects.glovebox.replies import Following, FramePeer, Leases, MessageKey, Replies
from penstock.dialects.wire.http import checked_name
from penstock.dialects.wire.order import Gathering
from penstock.dialects.wire.setting_documents import settings_in
from penstock.errors import ProtocolError, Reason
from penstock.limits import BODY_BYTES_MAX, GATHERED_MAX, GATHERED_RUN_MIN, HELD_LEASES_MAX
from penstock.model.answers import Answer, Delivery, Refused
from penstock.model.client import Cancelable
from penstock.model.commands import CreateQueue, FinishMany, NewMessage, Publish, PublishRun
from penstock.model.commands import Fetch as FetchCommand
from penstock.model.commands import Finish as FinishCommand
from penstock.model.probe import Head, Probe
from penstock.model.settings import QueueSettings
from penstock.model.times import nanos_of
from penstock.model.values import Nanos, Stage

if TYPE_CHECKING:
    from penstock.dialects.glovebox.sessions import Sessions

_STAGES: dict[Firmness | None, Stage] = {
    None: Stage.SYNC,
    "ready": Stage.READY,
    "write": Stage.WRITE,
    "sync": Stage.SYNC,
}
_SYNC = Stage.SYNC
_SYNC_ONLY = ["sync"]

_HEADS: dict[str, Callable[[str], Head]] = {
    "post": lambda queue: Publish(queue, (NewMessage(b""),)),
    **dict.fromkeys(("fetch", "pop"), FetchCommand),
    "create": lambda queue: CreateQueue(queue, QueueSettings()),
}
"""What a request is about, by its kind. A finish names a message that the session holds."""


class _Wish(NamedTuple):
    """What a fetch or a pop asks for. Those that are alike can be carried out together."""

    queue: str
    wait_ns: Nanos
    lease_ns: Nanos | None
    confirm: bool


class _Posts(NamedTuple):
    """Posts to one queue, as columns."""

    bodies: list[bytes]
    priorities: list[int]
    marks: list[int]  # Their labels: the complement of each, if no notice is wanted.


_Finishing = tuple[FinishCommand, MessageKey, int | None]  # With the label of the request, if it wants an answer.


class _Wait:
    """A fetch or a pop that waits for a message."""

    __slots__ = ("_label", "_session", "_wish", "handle")

    def __init__(self, session: Session, wish: _Wish, label: int) -> None:
        self._session = session
        self._wish = wish
        self._label = label
        self.handle: Cancelable | None = None

    def reply(self, answer: Answer) -> None:
        self._session.answer_wait(self, self._wish, self._label, answer)


class Session(Gathering):
    """Requests in, commands out; answers in, replies out."""

    __slots__ = (
        "_expiry",
        "_following",
        "_labels",
        "_last_fetch",
        "_leases",
        "_posts",
        "_queue",
        "_replies",
        "_sessions",
        "_short",
        "_waits",
        "id",
        "owner",
    )

    _finishes: list[_Finishing]
    _publishes: dict[str, _Posts]
    _fetches: dict[_Wish, list[int]]  # The labels of those who want the same.

    def __init__(self, sessions: Sessions, number: int, owner: str, *, durable: bool) -> None:
        super().__init__()
        self.id = number
        self.owner = owner  # The identity.
        self._sessions = sessions
        self._replies = Replies(sessions, durable=durable)
        self._leases = Leases(self._replies)
        self._replies.dropped = self._leases.give_back
        self._following = Following(self._replies, sessions.settings.followed_max)
        self._expiry: Cancelable | None = None
        self._waits: set[_Wait] = set()
        self._queue: str | None = None  # Of the last post that was gathered,
        self._posts = _Posts([], [], [])  # with all posts to that queue.
        self._last_fetch: Fetch | None = None  # Of those that were gathered,
        self._labels: list[int] = []  # and all that want the same.
        self._short: list[tuple[_Wish, list[int]]] = []  # Fetches that may get more once the client has read.

    def received(self, frame: bytes, *, binary: bool = False) -> None:
        try:
            request = decode_bincode(frame) if binary else decode_json(frame)
        except MALFORMED as error:
            kind, queue = named_in(frame, binary=binary) or ("", "")
            self._refuse_wrong(kind, queue, 0 if binary else label_in(frame), str(error))
            return
        if request.label and request.label > UINT64_MAX:
            kind = str(request.__struct_config__.tag)
            self._refuse_wrong(kind, request.queue, 0, f"Expected `int` <= {UINT64_MAX} - at `$.label`")
        elif type(request) is Post:
            self._post(request)
        elif type(request) is Finish:
            self._finish(request)
        elif type(request) is Fetch:
            self._fetch(request)
        elif type(request) is Pop:
            self._pop(request)
        else:
            assert type(request) is Create
            self._create(request)

    def _refuse_wrong(self, kind: str, queue: str, label: int, problem: str) -> None:
        """What is wrong with a request is said to who may send it, and if there is the queue that it needs."""
        replies = self._replies
        if kind not in _HEADS or _name_problem(queue):
            replies.refuse(label, "BadRequest", problem)
        elif kind == "create" and not self._sessions.settings.create_queues:
            replies.refuse(label, "PermissionDenied", queue)
        else:

            def answered(answer: Answer) -> None:
                if isinstance(answer, Refused):
                    replies.refused(label, answer, queue)
                else:
                    replies.refuse(label, "BadRequest", problem)

            self.settle()
            replies.peer.submit(Probe(_HEADS[kind](queue)), answered)

    def settle(self) -> None:
        super().settle()
        self._queue = self._last_fetch = None
        if self._short and not self._replies.peer.choked:
            short, self._short = self._short, []
            for wish, labels in short:
                self._fetch_together(wish, labels)

    # ── Posts ───────────────────────────────────────────────────────────────────────────────────────────────

    def _post(self, post: Post) -> None:
        body: Any = post.message
        if type(body) is str:
            body = body.encode()
        elif type(body) is list:
            body = bytes(body)
        if len(body) > BODY_BYTES_MAX:
            self._refuse_wrong("post", post.queue, post.label, f"the message is over {BODY_BYTES_MAX} bytes")
            return
        if self._fetches:
            self.settle()  # Commands keep their order: see `Gathering`.
        priority = post.priority if post.priority > 0 else 0
        notify = post.notify
        if notify == _SYNC_ONLY:
            mark = post.label
        elif notify:
            self.settle()
            self._following.post(post, NewMessage(body, "", priority))
            return
        else:
            mark = ~post.label
            if self._replies.peer.waiting(post.queue):
                self._post_fleeting(post.queue, NewMessage(body, "", priority), mark)
                return
        if post.queue != self._queue:
            self._queue = post.queue
            self._posts = self._publishes.setdefault(post.queue, _Posts([], [], []))
        bodies, priorities, marks = self._posts
        bodies.append(body)
        priorities.append(priority)
        marks.append(mark)
        if len(marks) >= GATHERED_MAX:
            self.settle()

    def _publish_together(self, queue: str, messages: _Posts) -> None:
        bodies, priorities, marks = messages
        is_run = len(bodies) >= GATHERED_RUN_MIN and priorities.count(priorities[0]) == len(priorities)
        if is_run:
            command: Publish | PublishRun = PublishRun(queue, NewMessage(b"", "", priorities[0]), bodies)
        else:
            command = Publish(queue, list(map(NewMessage, bodies, repeat(""), priorities)))
        self._replies.peer.submit(command, partial(self._posted, queue, marks))

    def _post_fleeting(self, queue: str, message: NewMessage, mark: int) -> None:
        """Perhaps a pop waits that takes the message at once."""
        self.settle()
        self._replies.peer.submit(Publish(queue, (message,), fleeting=True), partial(self._posted, queue, [mark]))

    def _posted(self, queue: str, marks: list[int], answer: Answer) -> None:
        if isinstance(answer, Refused):
            for mark in marks:
                self._replies.refused(max(mark, ~mark), answer, queue)
        else:
            self._replies.notify_all([mark for mark in marks if mark >= 0], "sync")

    # ── Fetches and pops ────────────────────────────────────────────────────────────────────────────────────

    def _fetch(self, fetch: Fetch) -> None:
        last = self._last_fetch
        if (
            last is not None
            and fetch.queue == last.queue
            and fetch.block_timeout == last.block_timeout
            and fetch.work_timeout == last.work_timeout
            and fetch.sync == last.sync
            and len(self._labels) < GATHERED_MAX
        ):
            self._labels.append(fetch.label)  # As most do: one more of what was asked for just now.
            return
        lease_ns = None if fetch.work_timeout is None else nanos_of(fetch.work_timeout)
        wish = _Wish(fetch.queue, nanos_of(fetch.block_timeout or 0), lease_ns, True)
        self._want(wish, fetch.label, _STAGES[fetch.sync])
        self._last_fetch = fetch if self._fetches else None

    def _pop(self, pop: Pop) -> None:
        self._last_fetch = None
        self._want(_Wish(pop.queue, nanos_of(pop.timeout or 0), None, False), pop.label, _STAGES[pop.sync])

    def _want(self, wish: _Wish, label: int, stage: Stage) -> None:
        if stage is not _SYNC:
            self.settle()
            self._fetch_one(wish, label, stage)
            return
        if len(self._fetches.get(wish, ())) >= GATHERED_MAX:
            self.settle()
        self._labels = self._fetches.setdefault(wish, [])
        self._labels.append(label)

    def _fetch_together(self, wanted: _Wish, fetchers: list[int]) -> None:
        if len(fetchers) == 1:
            self._fetch_one(wanted, fetchers[0], _SYNC)
        else:
            command = FetchCommand(wanted.queue, len(fetchers), 0, wanted.lease_ns, "", wanted.confirm)
            self._replies.peer.submit(command, partial(self._fetched, wanted, fetchers))

    def _fetched(self, wish: _Wish, labels: list[int], answer: Answer) -> None:
        if isinstance(answer, Refused):
            for label in labels:
                self._replies.refused(label, answer, wish.queue)
            return
        deliveries = cast("Sequence[Delivery]", answer)
        self._deliver(wish, labels, deliveries)
        rest = labels[len(deliveries) :]
        if deliveries and rest and self._replies.connected:  # There may be more: the bytes of an answer are limited.
            if self._replies.peer.choked:
                self._short.append((wish, rest))
            else:
                self._fetch_together(wish, rest)
        elif wish.wait_ns and self._replies.connected:
            for label in rest:
                self._fetch_one(wish, label, _SYNC)
        else:
            for label in rest:
                self._replies.send("nomessage", label)

    def _fetch_one(self, wish: _Wish, label: int, stage: Stage) -> None:
        wait = _Wait(self, wish, label)
        self._waits.add(wait)
        command = FetchCommand(wish.queue, 1, wish.wait_ns, wish.lease_ns, "", wish.confirm)
        wait.handle = self._replies.peer.submit(command, wait.reply, stage)
        if len(self._waits) > 1:  # Others wait already, so the answer will take a while.
            self._replies.peer.acknowledge()

    def answer_wait(self, wait: _Wait, wish: _Wish, label: int, answer: Answer) -> None:
        self._waits.discard(wait)
        if isinstance(answer, Refused):
            self._replies.refused(label, answer, wish.queue)
            return
        deliveries = cast("Sequence[Delivery]", answer)
        if deliveries:
            self._deliver(wish, [label], deliveries)
        else:
            self._replies.send("nomessage", label)

    def _deliver(self, wish: _Wish, labels: list[int], deliveries: Sequence[Delivery]) -> None:
        """Send messages, and remember those that are to be finished."""
        queue, confirm, leases, replies = wish.queue, wish.confirm, self._leases, self._replies
        write, frames = replies.codec.message, []
        key = None
        for label, delivery in zip(labels, deliveries, strict=False):
            sequence, shard = delivery.sequence, 0
            if confirm:
                key = (queue, 0, sequence)
                if key in leases or len(leases) >= HELD_LEASES_MAX:
                    key = leases.make_room(key, delivery.queue)
                    shard = key[1]
                leases[key] = (delivery.queue, delivery.receives)
            if replies.connected:
                frames.append(write(label, shard, sequence, delivery.body, not confirm))
            else:
                replies.keep("message", (label, shard, sequence, delivery.body, not confirm), key)
        if frames:
            replies.peer.send_all(frames, binary=replies.codec.binary)

    # ── Finishes ────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, finish: Finish) -> None:
        key = (finish.queue, finish.shard, finish.sequence)
        lease = self._leases.pop(key, None)
        if lease is None:
            self._replies.refuse(finish.label or 0, "NoObject", str(finish.sequence))
            return
        command = FinishCommand(lease[0], finish.sequence, None, lease[1])
        self._finishes.append((command, key, finish.label))
        stage = _STAGES[finish.response]
        if stage is not _SYNC or len(self._finishes) >= GATHERED_MAX:
            finishes, self._finishes = self._finishes, []
            self._finish_together(finishes, stage)

    def _finish_together(self, finishes: list[_Finishing], stage: Stage = _SYNC) -> None:
        if finishes[-1][2] is None:  # Nothing answers it.
            self._replies.peer.acknowledge()
        if stage is not _SYNC and len(finishes) > 1:
            last = finishes.pop()
            self._replies.peer.submit(last[0], partial(self._finished, [last]), stage)
        if len(finishes) == 1:
            self._replies.peer.submit(finishes[0][0], partial(self._finished, finishes), stage)
        else:
            commands = [command for command, _, _ in finishes]
            self._replies.peer.submit(FinishMany(commands), partial(self._finished, finishes))

    def _finished(self, finishing: list[_Finishing], answer: Any) -> None:
        answers = answer if isinstance(answer, list | tuple) else [answer] * len(finishing)
        done: list[int] = []
        for (command, key, label), one in zip(finishing, answers, strict=True):
            if type(one) is Refused:
                if one.reason in (Reason.UNAVAILABLE, Reason.OUTCOME_UNKNOWN):
                    self._leases.setdefault(key, (command.queue, cast("int", command.delivery)))
                self._replies.refused(label or 0, one, str(key[2]))
            elif label is not None:
                done.append(label)
        self._replies.notify_all(done, "finish")

    # ── Queues ──────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self, create: Create) -> None:
        self.settle()
        name = create.queue
        if not self._sessions.settings.create_queues:
            self._replies.refuse(create.label, "PermissionDenied", name)
            return
        if problem := _name_problem(name):
            self._replies.refuse(create.label, "BadRequest", problem)
            return
        settings = QueueSettings(**settings_in(create, QueueSettings, absent=None))
        self._replies.peer.submit(CreateQueue(name, settings), partial(self._created, name, create.label))

    def _created(self, name: str, label: int, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self._replies.refused(label, answer, name)
        else:
            self._replies.notify(label, "ready")

    # ── Connections come and go ─────────────────────────────────────────────────────────────────────────────

    def attach(self, peer: FramePeer, codec: Codec) -> None:
        """Talk to the client through this peer from now on."""
        replies = self._replies
        if replies.connected:
            old = replies.peer
            self._let_go()
            old.close("another connection took this session over")
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        replies.attach(peer, codec)
        self._sessions.found(self)
        replies.send("hello", self.id)
        replies.send_kept()

    def detach(self, peer: FramePeer) -> None:
        """The connection is gone. A session that is not durable ends with it; its leases expire."""
        replies = self._replies
        if not replies.connected or peer is not replies.peer:
            return
        self._let_go()
        if replies.durable:
            self._expiry = peer.after(self._sessions.settings.session_seconds, self.end)
            self._sessions.lost(self)
        else:
            self.end()

    def _let_go(self) -> None:
        self.settle()
        self._replies.connected = False
        self._short = []
        waits, self._waits = self._waits, set()
        for wait in waits:
            if wait.handle:
                wait.handle.cancel()

    def end(self) -> None:
        """Nobody will come back to this session."""
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        self._replies.end()
        self._following.end_all()
        self._leases.clear()
        self._sessions.forget(self)


def _name_problem(name: str) -> str:
    """Why this cannot be the name of a queue; empty if it can."""
    try:
        checked_name(name.encode())
    except ProtocolError as error:
        return str(error)
    return ""
