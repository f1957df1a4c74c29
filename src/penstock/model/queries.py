"""Questions as values. A service of a shard answers each; it changes nothing.

A question crosses to the shards that it is about as a command does, and says there who asks: what its client may not
do is refused there, what it does not see is left out, and it pays for what is done. The types of questions and of
their answers stand beside what they are about, such as `model/consumers.py`, with the function that joins the answers
of several shards. `cluster/routing/questions.py` has a row for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from msgspec import field
from msgspec.structs import replace

from penstock.errors import ErrorCode, EventsRemovedError, Fault, PenstockError, ProtocolError, Reason, RequestError
from penstock.limits import PAGE_MAX, QUESTION_SECONDS_MAX
from penstock.model.answers import Refused
from penstock.model.client import Client, Pending
from penstock.model.commands import Command
from penstock.model.values import Packed


class Query(Packed, frozen=True):
    """A question."""

    seconds_max: ClassVar[float | None] = QUESTION_SECONDS_MAX  # Then nobody works on it any more.
    waits_for_log: ClassVar[bool] = True  # Until what it has seen is durable. Else it is about the process itself.

    def needs(self) -> Command | None:
        """The client needs what this command does; None: the answer shows what the client sees."""
        return None


class Reading(Query, frozen=True):
    """A question about what is on the disk: it takes as long as the disk does, and its client."""

    seconds_max: ClassVar[float | None] = None
    waits_for_log: ClassVar[bool] = False


class Act(Query, frozen=True):
    """What a service does for a client: once it is begun, it goes on to its end, whoever waits for it."""

    seconds_max: ClassVar[float | None] = None


class Pages(Query, frozen=True):
    """A question whose answer has rows. One shard is asked for a page at a time."""

    offset: int = 0
    limit: int = PAGE_MAX


class Page(Packed, frozen=True):
    """Some rows of an answer, of a number that is known."""

    total: int
    rows: list[Any]

    @property
    def shown(self) -> int:
        return len(self.rows)

    @property
    def all(self) -> int:
        return self.total

    def extend(self, page: Any) -> None:
        """With the page that follows this one."""
        self.rows.extend(page.rows)


class Failed(Packed, frozen=True):
    """Why a question has no answer."""

    code: str  # Of an error.
    sentence: str
    retry_seconds: float = 1
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> ErrorCode:
        return _ERRORS[self.code]


class Absent(Packed, frozen=True):
    """A shard that has not answered, where that is part of the answer."""

    state: str  # Of the process that has it, in words.
    is_away: bool  # Else it is only late.


class Heard(NamedTuple):
    """What a process has heard of a shard."""

    shard: int
    process: int | None  # Who has it; None where nobody counts them.
    answer: Any


NoAnswer = Refused | Failed
Ask = Callable[[Client, Query, Callable[[Any], None]], Pending | None]
"""Asks for a client, and calls back once with the answer or a `NoAnswer`; not if what it returns is cancelled."""

_ERRORS: dict[str, ErrorCode] = {each.code: each for each in (*Reason, *Fault)}
INTERNAL = Failed(Fault.INTERNAL.code, Fault.INTERNAL.explain())


def failure(error: PenstockError) -> Failed:
    """What a question is answered with if it ends with this error."""
    if isinstance(error, RequestError):
        return Failed(error.error.code, str(error), error.retry_seconds, error.facts)
    if isinstance(error, ProtocolError):
        return Failed(error.fault.code, str(error))
    if isinstance(error, EventsRemovedError):
        detail = f"the earliest is {error.earliest}"
        return Failed(
            Fault.EVENTS_REMOVED.code, Fault.EVENTS_REMOVED.explain(detail), facts={"earliest": error.earliest}
        )
    return Failed(Fault.UNREADABLE.code, Fault.UNREADABLE.explain(str(error)))


def first_page(query: Pages) -> Pages:
    """What each of several shards is asked, so that together they have the rows that are wanted."""
    return replace(query, offset=0, limit=min(query.offset + query.limit, PAGE_MAX))


def next_page(query: Pages, known: int) -> Pages | None:
    """What comes after so many rows of a shard; None if enough are known."""
    left = query.offset + query.limit - known
    return replace(query, offset=known, limit=min(left, PAGE_MAX)) if left > 0 else None


def following(query: Pages, page: Page) -> int | None:
    """Where the page after this one begins; None if it was the last one."""
    end = query.offset + page.shown
    return end if page.shown and end < page.all else None
