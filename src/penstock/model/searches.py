"""Searches, and lists of delayed messages: in pages that are bounded by messages and by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from penstock.limits import FETCH_BYTES_MAX, SEARCH_PAGE_DEFAULT
from penstock.model.access import is_own
from penstock.model.answers import Held
from penstock.model.commands import Command, Criteria, ListScheduled, Search
from penstock.model.queries import Query
from penstock.model.values import Packed

Cursor = tuple[int, ...]  # The place of a message, or nothing: the beginning.


class _Search(Query, frozen=True):
    queue: str = ""  # Absent: all queues.
    after: Cursor = ()
    afters: dict[int, Cursor] | None = None  # By shard, for those that have more; None: all begin with `after`.
    limit: int = SEARCH_PAGE_DEFAULT
    bodies: bool = True


class SearchMessages(_Search, frozen=True):
    """In the order of queues and sequences."""

    criteria: Criteria = Criteria()

    def needs(self) -> Command:
        return Search(self.criteria)


class ReadScheduled(_Search, frozen=True):
    """Delayed messages, in the order of their times."""

    def needs(self) -> Command:
        return ListScheduled(self.queue)


class Messages(Packed, frozen=True):
    """Messages with the names of their queues, and the place after which the next page begins, or those in several
    shards. Without a place there is no more."""

    messages: list[tuple[Held, str]]
    after: Cursor | None = None
    afters: dict[int, Cursor] | None = None


class WrongCursor(Packed, frozen=True):
    """The cursor is not of this store."""


def place_of(message: Held) -> Cursor:
    return message.queue, message.sequence


def moment_of(message: Held) -> Cursor:
    return message.visible_at, message.queue, message.sequence


def parts(query: _Search, shards: int) -> dict[int, Query] | WrongCursor:
    """What to ask which shard."""
    if query.after or (query.afters and max(query.afters) >= shards):
        return WrongCursor()
    begun = dict.fromkeys(range(shards), ()) if query.afters is None else query.afters
    return {shard: replace(query, after=after, afters=None) for shard, after in begun.items()}


def joined(query: _Search, pages: Mapping[int, Messages]) -> Messages:
    """In order, as far as every shard has looked. A queue that every shard has is shown by time."""
    cursor_of, by_time = moment_of if isinstance(query, ReadScheduled) else place_of, is_own(query.queue)

    def key(message: Held) -> tuple[Any, ...]:
        return (message.created, cursor_of(message)) if by_time else (cursor_of(message),)

    def bound(page: Messages) -> tuple[Any, ...]:
        return (key(page.messages[-1][0]) if page.messages else ()) if by_time else (page.after,)

    last = min([bound(page) for page in pages.values() if page.after], default=None)
    found = sorted(
        [(key(each[0]), shard, each) for shard, page in pages.items() for each in page.messages], key=itemgetter(0)
    )
    shown: list[tuple[Held, str]] = []
    reached: dict[int, Cursor] = {}
    room = FETCH_BYTES_MAX
    for order, shard, each in found:
        size = each[0].body_bytes if query.bodies else 0
        if len(shown) == query.limit or (last is not None and order > last) or (room < size and shown):
            break
        shown.append(each)
        room -= size
        reached[shard] = cursor_of(each[0])
    begun = {shard: (query.afters or {}).get(shard, ()) for shard in pages}
    following = {
        shard: after
        for shard, page in pages.items()
        if (after := _following(page, reached.get(shard, begun[shard]), cursor_of)) is not None
    }
    return Messages(shown, None, following or None)


def _following(page: Messages, reached: Cursor, cursor_of: Any) -> Cursor | None:
    """Where the next page of a shard begins; None if it has nothing more."""
    if page.messages and reached != cursor_of(page.messages[-1][0]):
        return reached
    return page.after
