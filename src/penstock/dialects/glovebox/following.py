"""Posts whose sender wants to know more than that the message is stored: a notice at every stage it asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from penstock.dialects.glovebox.codec import Notice, Post
from penstock.dialects.glovebox.replies import Replies
from penstock.model.answers import Answer, Receipt, Refused
from penstock.model.client import Cancelable
from penstock.model.commands import NewMessage, Publish
from penstock.model.happening import Happening
from penstock.model.kinds import Kind, kinds_where
from penstock.model.values import Stage

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
