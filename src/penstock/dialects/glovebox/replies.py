"""What one client is sent: at once while it is connected. Replies to the client of a durable session are kept while
it is away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from penstock.dialects.glovebox.codec import JSON, Code, Codec, Notice, Post
from penstock.dialects.wire.conversation import Peer
from penstock.errors import Reason
from penstock.limits import HELD_LEASES_MAX
from penstock.model.answers import Answer, Receipt, Refused
from penstock.model.client import Cancelable
from penstock.model.commands import NewMessage, Publish, Release
from penstock.model.happening import Happening
from penstock.model.kinds import Kind, kinds_where
from penstock.model.values import Stage

if TYPE_CHECKING:
    from penstock.dialects.glovebox.sessions import Sessions

_NO_OBJECT = (Reason.NO_QUEUE, Reason.NO_DEAD_LETTER_QUEUE, Reason.NO_MESSAGE, Reason.NO_OBJECT, Reason.LEASE_GONE)
CODES: dict[Reason, Code] = {
    **dict.fromkeys(Reason, "PermissionDenied"),
    **{reason: "Unavailable" for reason in Reason if reason.retry},
    **dict.fromkeys((*_NO_OBJECT, Reason.NOT_STAGED), "NoObject"),
    Reason.QUEUE_EXISTS: "ObjectAlreadyExists",
    Reason.DAMAGED: "Unavailable",
    Reason.OUTCOME_UNKNOWN: "OutcomeUnknown",
}
# The origin's clients stop with an error of their own when they read a code that is not in their document.
ORIGIN_CODES: dict[Code, Code] = dict.fromkeys(("BadRequest", "Unavailable", "OutcomeUnknown"), "PermissionDenied")
_KEPT_OVERHEAD_BYTES = 200  # What keeping a reply takes beside its body.

MessageKey = tuple[str, int, int]  # Queue, shard and sequence: how a client names a message.


class FramePeer(Peer, Protocol):
    """The shell of a session: a peer that knows whether its client keeps up."""

    def send_all(self, frames: list[bytes], *, binary: bool = False) -> None:
        """Send several frames, which costs less than one by one."""

    @property
    def choked(self) -> bool:
        """The client does not read as fast as it is written to. `settle` is called when it does again."""

    def acknowledge(self) -> None:
        """Let the client's TCP know that its requests have arrived, if nothing is sent in this turn. It may hold the
        next one back until it knows (Nagle's algorithm)."""

    def reach(self, stage: Stage, reply: Callable[[Answer], None]) -> None:
        """Call when everything decided so far has reached the stage, or with `Refused` when it is known that it never
        will."""


class _Kept(NamedTuple):
    """A reply that waits for its client to come back."""

    kind: str
    facts: tuple[Any, ...]
    size: int
    leased: MessageKey | None  # The message in it, if the client has to finish it.


class Replies:
    """`dropped` is called with every leased message that was kept and can be kept no longer."""

    __slots__ = ("_kept", "_kept_bytes", "_sessions", "codec", "connected", "dropped", "durable", "ended", "peer")

    peer: FramePeer  # The newest; while there is no connection, the last.
    dropped: Callable[[MessageKey], None]

    def __init__(self, sessions: Sessions, *, durable: bool) -> None:
        self.durable = durable
        self.connected = False
        self.ended = False
        self.codec: Codec = JSON
        self._sessions = sessions
        self._kept: deque[_Kept] | None = None
        self._kept_bytes = 0

    @property
    def are_wanted(self) -> bool:
        """The client is there, or may come back."""
        return (self.connected or self.durable) and not self.ended

    def notify(self, label: int, notice: Notice) -> None:
        self.send("notice", label, notice)

    def notify_all(self, labels: list[int], notice: Notice) -> None:
        if self.connected:
            codec = self.codec
            self.peer.send_all(codec.notices(labels, notice), binary=codec.binary)
        else:
            for label in labels:
                self.notify(label, notice)

    def refused(self, label: int, refused: Refused, key: str) -> None:
        code = CODES[refused.reason]
        explained = code == "Unavailable" or refused.reason is Reason.FORBIDDEN
        self.refuse(label, code, refused.sentence if explained else key)

    def refuse(self, label: int, code: Code, key: str) -> None:
        self.send("error", label, self._sessions.codes.get(code, code), key)

    def send(self, kind: str, *facts: Any) -> None:
        if self.connected:
            codec = self.codec
            self.peer.send(getattr(codec, kind)(*facts), binary=codec.binary)
        else:
            self.keep(kind, facts)

    def keep(self, kind: str, facts: tuple[Any, ...], leased: MessageKey | None = None) -> None:
        """Put a reply by for a client that may come back; the oldest replies make room."""
        if not self.are_wanted:
            return
        if self._kept is None:
            self._kept = deque()
        size = _KEPT_OVERHEAD_BYTES + sum(len(fact) for fact in facts if isinstance(fact, bytes | str))
        self._kept.append(_Kept(kind, facts, size, leased))
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
        if oldest.leased is not None:
            self.dropped(oldest.leased)

    def attach(self, peer: FramePeer, codec: Codec) -> None:
        self.peer, self.codec, self.connected = peer, codec, True

    def send_kept(self) -> None:
        kept, self._kept = self._kept or (), None
        self._sessions.kept_bytes -= self._kept_bytes
        self._kept_bytes = 0
        for kind, facts, _, _ in kept:
            self.send(kind, *facts)

    def end(self) -> None:
        """The client will not come back."""
        self.ended = True
        while self._kept:
            self._drop_oldest(self._kept)


# Posts whose sender wants to know more than that the message is stored: a notice at every stage it asked for.


_STORED: tuple[Notice, ...] = ("write", "sync")
_NOTICES: dict[Kind, Notice] = {kind: kind.row.notice for kind in Kind if kind.row.notice}
# After any other event a sender hears nothing more of its message.
_GOES_ON = kinds_where(lambda row: row.notice in ("assign", "retry") or not row.letters) | {Kind.MOVED, Kind.SENT}
_LATER = frozenset(("assign", "finish", "retry", "drop"))  # What happens to a message after it was stored.


class _Followed:
    """A message until its last notice. What happens to it is durable, so it is stored: notices of that come first,
    also if another process has the queue and both are on their way."""

    __slots__ = ("_following", "_label", "_wanted", "handle", "owed")

    def __init__(self, following: Following, label: int, wanted: frozenset[Notice]) -> None:
        self._following = following
        self._label = label
        self._wanted = wanted
        self.owed: list[Notice] = [stage for stage in _STORED if stage in wanted]
        self.handle: Cancelable | None = None

    def happened(self, what: Happening) -> None:
        owed, self.owed = self.owed, []
        for stage in owed:
            self._following.replies.notify(self._label, stage)
        notice = _NOTICES.get(what.kind)
        if notice in self._wanted:
            assert notice is not None
            self._following.replies.notify(self._label, notice)
        if what.kind not in _GOES_ON:
            self._following.end(self)


class Following:
    """The messages that one session follows, up to a limit."""

    __slots__ = ("_followed", "_most", "_soon", "replies")

    def __init__(self, replies: Replies, most: int) -> None:
        self.replies = replies
        self._most = most
        self._followed: set[_Followed] = set()
        self._soon = 0  # Messages that will be followed once they are stored.

    def post(self, post: Post, message: NewMessage) -> None:
        wanted = frozenset(post.notify)
        if not _LATER.isdisjoint(wanted):
            if len(self._followed) + self._soon >= self._most:
                text = f"notify: this session follows {self._most} messages already"
                self.replies.refuse(post.label, "PermissionDenied", text)
                return
            self._soon += 1
        fleeting = wanted.isdisjoint(_STORED)  # These two promise that the message is stored.
        command = Publish(post.queue, (message,), fleeting=fleeting)
        reply = partial(self._posted, post.queue, post.label, wanted)
        self.replies.peer.submit(command, reply, Stage.READY)

    def _posted(self, queue: str, label: int, wanted: frozenset[Notice], answer: Answer) -> None:
        replies = self.replies
        later = not _LATER.isdisjoint(wanted)
        if later:
            self._soon -= 1
        if isinstance(answer, Refused):
            replies.refused(label, answer, queue)
            return
        receipt = cast("Sequence[Receipt]", answer)[0]
        if not receipt.sequence:  # Handed to a pop, and stored nowhere.
            if not wanted.isdisjoint(("ready", "finish")):
                replies.notify(label, "finish")
            return
        if "ready" in wanted:
            replies.notify(label, "ready")
        followed = _Followed(self, label, wanted) if later and replies.are_wanted else None
        if "write" in wanted:
            replies.peer.reach(Stage.WRITE, partial(self._reached, queue, label, "write", followed))
        if "sync" in wanted:
            replies.peer.reach(Stage.SYNC, partial(self._reached, queue, label, "sync", followed))
        if followed:
            self._followed.add(followed)
            followed.handle = replies.peer.follow(receipt.queue, receipt.sequence, followed.happened)

    def _reached(self, queue: str, label: int, notice: Notice, followed: _Followed | None, answer: Answer) -> None:
        if followed:
            if notice not in followed.owed:
                return  # It was given when something happened to the message.
            followed.owed.remove(notice)
        if isinstance(answer, Refused):
            self.replies.refused(label, answer, queue)
        else:
            self.replies.notify(label, notice)

    def end(self, followed: _Followed) -> None:
        self._followed.discard(followed)
        if followed.handle:
            followed.handle.cancel()

    def end_all(self) -> None:
        for followed in list(self._followed):
            self.end(followed)


# The messages that a client has been given and has not finished.


Lease = tuple[int, int]  # The queue's number, and which delivery of the message it is.


class Leases(dict[MessageKey, Lease]):
    """Oldest first. When there are too many, the oldest are given back."""

    def __init__(self, replies: Replies) -> None:
        super().__init__()
        self._replies = replies

    def make_room(self, key: MessageKey, queue: int) -> MessageKey:
        """The key for one more message, which names no other message that the client holds."""
        while (other := self.get(key)) is not None:
            if other[0] == queue:
                del self[key]  # The same message again; its older lease is over.
                break
            # A dead letter has the sequence of the queue it came from: two may have the same one.
            key = (key[0], key[1] + 1, key[2])
        if len(self) >= HELD_LEASES_MAX:
            self.give_back(next(iter(self)))
        return key

    def give_back(self, key: MessageKey) -> None:
        """Let others have the message, if the client still holds it."""
        if key in self:
            queue, delivery = self.pop(key)
            self._replies.peer.submit(Release(queue, key[2], None, delivery), _ignore)


def _ignore(_: Answer) -> None:
    """A lease that cannot be given back is over already."""
