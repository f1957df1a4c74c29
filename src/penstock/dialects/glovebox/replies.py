"""What one client is sent: at once while it is connected. Replies to the client of a durable session are kept while
it is away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.dialects.glovebox.codec import JSON, Code, Codec, Notice
from penstock.dialects.wire.conversation import Peer
from penstock.errors import Reason
from penstock.model.answers import Answer, Refused
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
