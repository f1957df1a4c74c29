"""The messages that a client has been given and has not finished."""

from __future__ import annotations

from penstock.dialects.glovebox.replies import MessageKey, Replies
from penstock.limits import HELD_LEASES_MAX
from penstock.model.answers import Answer
from penstock.model.commands import Release

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
