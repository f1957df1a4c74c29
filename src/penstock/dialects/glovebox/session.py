"""One client's side of glovebox: what it has asked for, what it holds, and what waits for it.

A session lives as long as its connection, or, if it is durable, until its client has been away for too long: what is
meant for the client waits in the session until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, cast

from penstock.dialects.glovebox.codec import (
    MALFORMED,
    UINT64_MAX,
    BincodeCodec,
    Code,
    Codec,
    Create,
    Fetch,
    Finish,
    Firmness,
    JsonCodec,
    Notice,
    Pop,
    Post,
    decode_bincode,
    decode_json,
    label_in,
)
from penstock.dialects.wire.conversation import Cancelable, Peer
from penstock.dialects.wire.http import checked_name
from penstock.dialects.wire.order import Gathering
from penstock.errors import ProtocolError, Reason
from penstock.limits import (
    BODY_BYTES_MAX,
    GATHERED_MAX,
    HELD_LEASES_MAX,
    LOST_SESSIONS_BYTES_MAX,
    SECOND_NS,
    SESSION_ID_MAX,
)
from penstock.model.answers import Answer, Delivery, Receipt, Refused
from penstock.model.commands import CreateQueue, FinishMany, NewMessage, Publish, Release
from penstock.model.commands import Fetch as FetchCommand
from penstock.model.commands import Finish as FinishCommand
from penstock.model.kinds import Kind, kinds_where
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Stage

CODES: dict[Reason, Code] = {
    Reason.NO_QUEUE: "NoObject",
    Reason.QUEUE_EXISTS: "ObjectAlreadyExists",
    Reason.IS_CHANNEL: "PermissionDenied",
    Reason.NO_DEAD_LETTER_QUEUE: "NoObject",
    Reason.NOT_TOGETHER: "PermissionDenied",
    Reason.CONFIRMATIONS_COUNT: "PermissionDenied",
    Reason.NO_MESSAGE: "NoObject",
    Reason.NO_OBJECT: "NoObject",
    Reason.LEASE_GONE: "NoObject",
    Reason.NO_CURSOR: "PermissionDenied",
    Reason.NO_RESULTS: "PermissionDenied",
    Reason.TOO_MANY_RECEIVERS: "PermissionDenied",
    Reason.TOO_MANY_DELIVERIES: "PermissionDenied",
    Reason.TOO_MANY_QUEUES: "PermissionDenied",
    Reason.TOO_MANY_KEYS: "PermissionDenied",
    Reason.LEASED: "PermissionDenied",
    Reason.TOO_MANY_NAMES: "Unavailable",
    Reason.NOT_DELAYED: "PermissionDenied",
    Reason.HISTORY_BEHIND: "Unavailable",
    Reason.NOT_STAGED: "NoObject",
    Reason.STAGING_FULL: "Unavailable",
    Reason.UNAVAILABLE: "Unavailable",
    Reason.DAMAGED: "Unavailable",
}
# The origin's clients end with an error of their own when they read a code that is not in the document.
_ORIGIN_CODES: dict[Code, Code] = {"BadRequest": "PermissionDenied", "Unavailable": "PermissionDenied"}
_NOTICES: dict[Kind, Notice] = {kind: kind.row.notice for kind in Kind if kind.row.notice}
# After any other event a sender hears nothing more of its message.
_GOES_ON = kinds_where(lambda row: row.notice in ("assign", "retry")) | {Kind.MOVED}
_STAGES: dict[Firmness | None, Stage] = {
    None: Stage.SYNC,
    "ready": Stage.READY,
    "write": Stage.WRITE,
    "sync": Stage.SYNC,
}
_SYNC = Stage.SYNC
_SYNC_ONLY = ["sync"]
_LATER = frozenset(("assign", "finish", "retry", "drop"))  # What happens to a message after it was stored.
_KEPT_OVERHEAD_BYTES = 200  # What keeping a reply takes beside its body.

JSON = JsonCodec()
BINCODE = BincodeCodec()


class Settings(Protocol):
    @property
    def create_queues(self) -> bool: ...
    @property
    def errors(self) -> Literal["all", "origin"]: ...
    @property
    def followed_max(self) -> int: ...
    @property
    def sessions_max(self) -> int: ...
    @property
    def session_seconds(self) -> float: ...
    @property
    def session_replies_max(self) -> int: ...
    @property
    def session_bytes_max(self) -> int: ...


class FramePeer(Peer, Protocol):
    """The shell of a session: a peer that tells how its client keeps up."""

    def send_all(self, frames: list[bytes], *, binary: bool = False) -> None:
        """Send several frames, which costs less than one by one."""

    @property
    def choked(self) -> bool:
        """The client does not read as fast as it is written to. `settle` is called when it does again."""

    def acknowledge(self) -> None:
        """Tell the client's TCP that its requests have come, if nothing is sent in this turn. It may keep the next
        one back until it knows (Nagle's algorithm)."""

    def reach(self, stage: Stage, reply: Callable[[Answer], None]) -> None:
        """Call when everything decided so far has reached the stage, or with `Refused` when it is known that it never
        will."""


# ── All sessions ──────────────────────────────────────────────────────────────────────────────────────────────


class Sessions:
    """Every durable session of a broker, and the rules for all sessions."""

    def __init__(self, settings: Settings, random: Callable[[], int]) -> None:
        self.settings = settings
        self.codes: dict[Code, Code] = _ORIGIN_CODES if settings.errors == "origin" else {}
        self.kept_bytes = 0  # In all of them together.
        self._random = random
        self._durable: dict[int, Session] = {}
        self._lost: dict[int, Session] = {}  # Those of them that have no connection, oldest loss first.

    def find(self, number: int) -> Session | None:
        return self._durable.get(number)

    def begin(self, *, durable: bool) -> Session:
        while not (number := self._random()) or number in self._durable:
            pass
        assert number <= SESSION_ID_MAX
        session = Session(self, number, durable=durable)
        if durable:
            self._durable[number] = session
        return session

    def found(self, session: Session) -> None:
        """The client of a durable session is back."""
        self._lost.pop(session.id, None)

    def lost(self, session: Session) -> None:
        """A durable session has no connection any more."""
        self._lost[session.id] = session
        self._spare()

    def forget(self, session: Session) -> None:
        self._lost.pop(session.id, None)
        self._durable.pop(session.id, None)

    def kept(self, size: int) -> None:
        """So many bytes more are kept for clients that are away."""
        self.kept_bytes += size
        self._spare()

    def _spare(self) -> None:
        """Whoever has been away longest makes room."""
        most = self.settings.sessions_max
        while self._lost and (len(self._lost) > most or self.kept_bytes > LOST_SESSIONS_BYTES_MAX):
            next(iter(self._lost.values())).end()


# ── One session ───────────────────────────────────────────────────────────────────────────────────────────────


class _Wish(NamedTuple):
    """What a fetch or a pop asks for. Those that are alike can be carried out together."""

    queue: str
    wait_ns: Nanos
    lease_ns: Nanos | None
    confirm: bool


class _Kept(NamedTuple):
    """A reply that waits for its client to come back."""

    kind: str
    facts: tuple[Any, ...]
    size: int
    place: _Place | None  # Of a message that the session holds a lease of.


_Posts = tuple[list[NewMessage], list[int]]  # A label of each: the complement of it, if no notice is wanted.
_Place = tuple[str, int, int]  # Queue, shard and sequence: what a client knows a message by.
_Lease = tuple[int, int]  # The queue's number, and which delivery of the message it is.
_Finishing = tuple[FinishCommand, _Place, int | None]  # With the label of the request, if it wants an answer.


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


class _Followed:
    """A message whose sender wants to know what becomes of it."""

    __slots__ = ("_label", "_session", "_wanted", "handle")

    def __init__(self, session: Session, label: int, wanted: frozenset[Notice]) -> None:
        self._session = session
        self._label = label
        self._wanted = wanted
        self.handle: Cancelable | None = None

    def tell(self, kind: Kind) -> None:
        notice = _NOTICES.get(kind)
        if notice in self._wanted:
            assert notice is not None
            self._session.notify(self._label, notice)
        if kind not in _GOES_ON:
            self._session.unfollow(self)


class Session(Gathering):
    """Requests in, commands out; answers in, replies out."""

    __slots__ = (
        "_codec",
        "_connected",
        "_ended",
        "_expiry",
        "_followed",
        "_followed_soon",
        "_held",
        "_kept",
        "_kept_bytes",
        "_labels",
        "_last_fetch",
        "_peer",
        "_sessions",
        "_short",
        "_waits",
        "durable",
        "id",
    )

    _peer: FramePeer  # The newest one; of a session without a connection, the last.
    _finishes: list[_Finishing]
    _publishes: dict[str, _Posts]
    _fetches: dict[_Wish, list[int]]  # The labels of those who want the same.

    def __init__(self, sessions: Sessions, number: int, *, durable: bool) -> None:
        super().__init__()
        self.id = number
        self.durable = durable
        self._sessions = sessions
        self._codec: Codec = JSON
        self._connected = False
        self._ended = False
        self._expiry: Cancelable | None = None
        self._held: dict[_Place, _Lease] = {}  # What was delivered and is not finished, oldest first.
        self._waits: set[_Wait] = set()
        self._followed: set[_Followed] = set()
        self._followed_soon = 0  # Messages that will be followed once they are stored.
        self._kept: deque[_Kept] | None = None
        self._kept_bytes = 0
        self._last_fetch: Fetch | None = None  # Of those that were gathered,
        self._labels: list[int] = []  # and all that want the same.
        self._short: list[tuple[_Wish, list[int]]] = []  # Fetches that may get more once the client has read.

    def received(self, frame: bytes, *, binary: bool = False) -> None:
        try:
            request = decode_bincode(frame) if binary else decode_json(frame)
        except MALFORMED as error:
            self._refuse(0 if binary else label_in(frame), "BadRequest", str(error))
            return
        if request.label and request.label > UINT64_MAX:
            self._refuse(0, "BadRequest", f"Expected `int` <= {UINT64_MAX} - at `$.label`")
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

    def settle(self) -> None:
        super().settle()
        self._last_fetch = None
        if self._short and not self._peer.choked:
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
            self._refuse(post.label, "BadRequest", f"the message is over {BODY_BYTES_MAX} bytes")
            return
        if self._fetches:
            self.settle()
        message = NewMessage(body, "", post.priority if post.priority > 0 else 0)
        notify = post.notify
        if notify == _SYNC_ONLY:
            mark = post.label
        elif notify:
            self._post_watched(post, message)
            return
        else:
            mark = ~post.label
            if self._peer.waiting(post.queue):
                self._post_fleeting(post.queue, message, mark)
                return
        posts, marks = self._publishes.get(post.queue) or self._begin_posts(post.queue)
        posts.append(message)
        marks.append(mark)
        if len(posts) >= GATHERED_MAX:
            self.settle()

    def _begin_posts(self, queue: str) -> _Posts:
        posts: _Posts = ([], [])
        self._publishes[queue] = posts
        return posts

    def _publish_together(self, queue: str, messages: _Posts) -> None:
        posts, marks = messages
        self._peer.submit(Publish(queue, posts), partial(self._posted, queue, marks))

    def _post_fleeting(self, queue: str, message: NewMessage, mark: int) -> None:
        """Perhaps a pop waits that takes the message at once."""
        self.settle()
        self._peer.submit(Publish(queue, (message,), fleeting=True), partial(self._posted, queue, [mark]))

    def _posted(self, queue: str, marks: list[int], answer: Answer) -> None:
        if isinstance(answer, Refused):
            for mark in marks:
                self._refused(max(mark, ~mark), answer, queue)
        else:
            self._notify_all([mark for mark in marks if mark >= 0], "sync")

    def _post_watched(self, post: Post, message: NewMessage) -> None:
        """A post whose sender wants to know more than that it is stored."""
        self.settle()
        wanted = frozenset(post.notify)
        if not _LATER.isdisjoint(wanted):
            most = self._sessions.settings.followed_max
            if len(self._followed) + self._followed_soon >= most:
                text = f"notify: this session follows {most} messages already"
                self._refuse(post.label, "PermissionDenied", text)
                return
            self._followed_soon += 1
        fleeting = wanted.isdisjoint(("write", "sync"))  # Who asks for these is promised that it is stored.
        command = Publish(post.queue, (message,), fleeting=fleeting)
        self._peer.submit(command, partial(self._posted_watched, post.queue, post.label, wanted), Stage.READY)

    def _posted_watched(self, queue: str, label: int, wanted: frozenset[Notice], answer: Answer) -> None:
        later = not _LATER.isdisjoint(wanted)
        if later:
            self._followed_soon -= 1
        if isinstance(answer, Refused):
            self._refused(label, answer, queue)
            return
        receipt = cast("Sequence[Receipt]", answer)[0]
        if not receipt.sequence:  # Gone to a pop, and stored nowhere.
            if not wanted.isdisjoint(("ready", "finish")):
                self.notify(label, "finish")
            return
        if "ready" in wanted:
            self.notify(label, "ready")
        if "write" in wanted:
            self._peer.reach(Stage.WRITE, partial(self._reached, queue, label, "write"))
        if "sync" in wanted:
            self._peer.reach(Stage.SYNC, partial(self._reached, queue, label, "sync"))
        if later and (self._connected or self.durable) and not self._ended:
            followed = _Followed(self, label, wanted)
            self._followed.add(followed)
            followed.handle = self._peer.follow(receipt.queue, receipt.sequence, followed.tell)

    def _reached(self, queue: str, label: int, notice: Notice, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self._refused(label, answer, queue)
        else:
            self.notify(label, notice)

    def unfollow(self, followed: _Followed) -> None:
        self._followed.discard(followed)
        if followed.handle:
            followed.handle.cancel()

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
        lease_ns = None if fetch.work_timeout is None else _nanos(fetch.work_timeout)
        wish = _Wish(fetch.queue, _nanos(fetch.block_timeout or 0), lease_ns, True)
        self._want(wish, fetch.label, _STAGES[fetch.sync])
        self._last_fetch = fetch if self._fetches else None

    def _pop(self, pop: Pop) -> None:
        self._last_fetch = None
        self._want(_Wish(pop.queue, _nanos(pop.timeout or 0), None, False), pop.label, _STAGES[pop.sync])

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
            self._peer.submit(command, partial(self._fetched, wanted, fetchers))

    def _fetched(self, wish: _Wish, labels: list[int], answer: Answer) -> None:
        if isinstance(answer, Refused):
            for label in labels:
                self._refused(label, answer, wish.queue)
            return
        deliveries = cast("Sequence[Delivery]", answer)
        self._deliver(wish, labels, deliveries)
        rest = labels[len(deliveries) :]
        if deliveries and rest and self._connected:  # There may be more: an answer has only so many bytes.
            if self._peer.choked:
                self._short.append((wish, rest))
            else:
                self._fetch_together(wish, rest)
        elif wish.wait_ns and self._connected:
            for label in rest:
                self._fetch_one(wish, label, _SYNC)
        else:
            for label in rest:
                self._reply("nomessage", label)

    def _fetch_one(self, wish: _Wish, label: int, stage: Stage) -> None:
        wait = _Wait(self, wish, label)
        self._waits.add(wait)
        command = FetchCommand(wish.queue, 1, wish.wait_ns, wish.lease_ns, "", wish.confirm)
        wait.handle = self._peer.submit(command, wait.reply, stage)
        if len(self._waits) > 1:  # Others wait already, so the answer will take a while.
            self._peer.acknowledge()

    def answer_wait(self, wait: _Wait, wish: _Wish, label: int, answer: Answer) -> None:
        self._waits.discard(wait)
        if isinstance(answer, Refused):
            self._refused(label, answer, wish.queue)
            return
        deliveries = cast("Sequence[Delivery]", answer)
        if deliveries:
            self._deliver(wish, [label], deliveries)
        else:
            self._reply("nomessage", label)

    def _deliver(self, wish: _Wish, labels: list[int], deliveries: Sequence[Delivery]) -> None:
        """Send messages, and remember those that are to be finished."""
        queue, confirm, held = wish.queue, wish.confirm, self._held
        write, frames = self._codec.message, []
        place = None
        for label, delivery in zip(labels, deliveries, strict=False):
            sequence, shard = delivery.sequence, 0
            if confirm:
                place = (queue, 0, sequence)
                if place in held or len(held) >= HELD_LEASES_MAX:
                    place = self._make_place(place, delivery.queue)
                    shard = place[1]
                held[place] = (delivery.queue, delivery.receives)
            if self._connected:
                frames.append(write(label, shard, sequence, delivery.body, not confirm))
            else:
                self._keep("message", (label, shard, sequence, delivery.body, not confirm), place)
        if frames:
            self._peer.send_all(frames, binary=self._codec.binary)

    def _make_place(self, place: _Place, queue: int) -> _Place:
        """Room for one more message, under a name that means no other that the client has."""
        while (other := self._held.get(place)) is not None:
            if other[0] == queue:
                del self._held[place]  # The same message again; its older lease is over.
                break
            # A dead letter has the sequence of the queue it came from: two may have the same one.
            place = (place[0], place[1] + 1, place[2])
        if len(self._held) >= HELD_LEASES_MAX:
            self._give_back(next(iter(self._held)))
        return place

    def _give_back(self, place: _Place) -> None:
        queue, delivery = self._held.pop(place)
        self._peer.submit(Release(queue, place[2], None, delivery), _ignore)

    # ── Finishes ────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, finish: Finish) -> None:
        place = (finish.queue, finish.shard, finish.sequence)
        lease = self._held.pop(place, None)
        if lease is None:
            self._refuse(finish.label or 0, "NoObject", str(finish.sequence))
            return
        command = FinishCommand(lease[0], finish.sequence, None, lease[1])
        self._finishes.append((command, place, finish.label))
        stage = _STAGES[finish.response]
        if stage is not _SYNC or len(self._finishes) >= GATHERED_MAX:
            finishes, self._finishes = self._finishes, []
            self._finish_together(finishes, stage)

    def _finish_together(self, finishes: list[_Finishing], stage: Stage = _SYNC) -> None:
        if finishes[-1][2] is None:  # Nothing answers it.
            self._peer.acknowledge()
        if stage is not _SYNC and len(finishes) > 1:
            last = finishes.pop()
            self._peer.submit(last[0], partial(self._finished, [last]), stage)
        if len(finishes) == 1:
            self._peer.submit(finishes[0][0], partial(self._finished, finishes), stage)
        else:
            commands = [command for command, _, _ in finishes]
            self._peer.submit(FinishMany(commands), partial(self._finished, finishes))

    def _finished(self, finishing: list[_Finishing], answer: Any) -> None:
        answers = answer if isinstance(answer, list | tuple) else [answer] * len(finishing)
        done: list[int] = []
        for (command, place, label), one in zip(finishing, answers, strict=True):
            if type(one) is Refused:
                if one.reason is Reason.UNAVAILABLE:
                    self._held.setdefault(place, (command.queue, cast("int", command.delivery)))
                self._refused(label or 0, one, str(place[2]))
            elif label is not None:
                done.append(label)
        self._notify_all(done, "finish")

    # ── Queues ──────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self, create: Create) -> None:
        self.settle()
        name = create.queue
        if not self._sessions.settings.create_queues:
            self._refuse(create.label, "PermissionDenied", name)
            return
        try:
            checked_name(name.encode())
        except ProtocolError as error:
            self._refuse(create.label, "BadRequest", str(error))
            return
        self._peer.submit(CreateQueue(name, _settings(create)), partial(self._created, name, create.label))

    def _created(self, name: str, label: int, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self._refused(label, answer, name)
        else:
            self.notify(label, "ready")

    # ── Replies ─────────────────────────────────────────────────────────────────────────────────────────────

    def notify(self, label: int, notice: Notice) -> None:
        if self._connected:
            codec = self._codec
            self._peer.send(codec.notice(label, notice), binary=codec.binary)
        else:
            self._keep("notice", (label, notice), None)

    def _notify_all(self, labels: list[int], notice: Notice) -> None:
        if self._connected:
            codec = self._codec
            self._peer.send_all(codec.notices(labels, notice), binary=codec.binary)
        else:
            for label in labels:
                self._keep("notice", (label, notice), None)

    def _refused(self, label: int, refused: Refused, key: str) -> None:
        code = CODES[refused.reason]
        if code == "Unavailable":
            key = refused.sentence
        self._refuse(label, code, key)

    def _refuse(self, label: int, code: Code, key: str) -> None:
        self._reply("error", label, self._sessions.codes.get(code, code), key)

    def _reply(self, kind: str, *facts: Any) -> None:
        if self._connected:
            codec = self._codec
            self._peer.send(getattr(codec, kind)(*facts), binary=codec.binary)
        else:
            self._keep(kind, facts, None)

    def _keep(self, kind: str, facts: tuple[Any, ...], place: _Place | None) -> None:
        """Put a reply by for a client that is away, if it may come back; the oldest ones make room."""
        if not self.durable or self._ended:
            return
        if self._kept is None:
            self._kept = deque()
        size = _KEPT_OVERHEAD_BYTES + sum(len(fact) for fact in facts if isinstance(fact, bytes | str))
        self._kept.append(_Kept(kind, facts, size, place))
        self._kept_bytes += size
        settings = self._sessions.settings
        while self._kept and (
            len(self._kept) > settings.session_replies_max or self._kept_bytes > settings.session_bytes_max
        ):
            self._drop_oldest(self._kept)
        self._sessions.kept(size)

    def _drop_oldest(self, kept: deque[_Kept]) -> None:
        oldest = kept.popleft()
        self._kept_bytes -= oldest.size
        self._sessions.kept_bytes -= oldest.size
        if oldest.place in self._held:
            assert oldest.place is not None
            self._give_back(oldest.place)

    # ── Connections come and go ─────────────────────────────────────────────────────────────────────────────

    def attach(self, peer: FramePeer, codec: Codec) -> None:
        """Talk to the client through this peer from now on."""
        if self._connected:
            old = self._peer
            self._let_go()
            old.close("another connection took this session over")
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        self._peer, self._codec, self._connected = peer, codec, True
        self._sessions.found(self)
        self._reply("hello", self.id)
        kept, self._kept = self._kept or (), None
        self._sessions.kept_bytes -= self._kept_bytes
        self._kept_bytes = 0
        for kind, facts, _, _ in kept:
            self._reply(kind, *facts)

    def detach(self, peer: FramePeer) -> None:
        """The connection is gone. A session that is not durable goes with it; its leases run out in their time."""
        if not self._connected or peer is not self._peer:
            return
        self._let_go()
        if self.durable:
            self._expiry = peer.after(self._sessions.settings.session_seconds, self.end)
            self._sessions.lost(self)
        else:
            self.end()

    def _let_go(self) -> None:
        self.settle()
        self._connected = False
        self._short = []
        waits, self._waits = self._waits, set()
        for wait in waits:
            if wait.handle:
                wait.handle.cancel()

    def end(self) -> None:
        """Nobody will come back to this session."""
        self._ended = True
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        while self._kept:
            self._drop_oldest(self._kept)
        for followed in list(self._followed):
            self.unfollow(followed)
        self._held.clear()
        self._sessions.forget(self)


def _settings(create: Create) -> QueueSettings:
    given: dict[str, Any] = {
        "retries": create.retries,
        "visibility_ns": _nanos_or_none(create.visibility_timeout),
        "retention_ns": _nanos_or_none(create.retention_timeout),
        "delay_ns": _nanos_or_none(create.message_delay),
        "deduplication": create.message_deduplication,
    }
    return QueueSettings(**{name: value for name, value in given.items() if value is not None})


def _nanos(seconds: float) -> Nanos:
    return round(seconds * SECOND_NS)


def _nanos_or_none(seconds: float | None) -> Nanos | None:
    return None if seconds is None else _nanos(seconds)


def _ignore(_: Answer) -> None:
    """A lease that could not be given back is gone already."""
