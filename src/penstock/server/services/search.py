"""Searches over several turns of the event loop, and bodies read for them in a thread beside it.

Each turn looks at a bounded part of what queues hold. What is told is durable: every turn waits for what it saw.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple

import msgspec

from penstock.dialects.native.search import Page
from penstock.dialects.wire.http import Awaited, Response, Stream, error_response, refusal
from penstock.errors import DamagedLogError, EventsRemovedError, Fault
from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, SEARCH_ROWS_CROWDED, SEARCH_SECONDS_MAX
from penstock.model.answers import Answer, Candidates, Found, Held, Refused
from penstock.model.commands import Command, Criteria, ListCandidates, ListHeld, ListScheduled, Search
from penstock.model.lifecycle import DAMAGED
from penstock.model.values import Place, Position
from penstock.server.services.spectators import Spectators
from penstock.server.shells.turns import Turns
from penstock.server.writer.port import ServicePort
from penstock.storage.log.view import Extents

logger = logging.getLogger(__name__)

Respond = Callable[[Response | Stream], None]

_TRIES_MAX = 3


class Sifted(NamedTuple):
    """Where those are that are meant. `after`: the place of the last one looked at, if there were more."""

    places: list[Place]
    after: Place | None
    damaged: Sequence[Position] = ()  # Where messages could not be read.


class Read(NamedTuple):
    """What was read. `after`: the place of the last one, if there was no room for more."""

    messages: list[Held]
    after: Place | None
    damaged: Sequence[Position] = ()  # As in `Sifted`.


class Searching:
    """All searches of one broker."""

    def __init__(self, loop: ServicePort, spectators: Spectators, turns: Turns) -> None:
        self._turns = turns
        self.loop = loop
        self.spectators = spectators

    def search(self, criteria: Criteria, after: Place, limit: int, tell: Page, *, bodies: bool) -> Awaited:
        def begin(respond: Respond) -> None:
            def done(found: Found | Refused | BaseException) -> None:
                if isinstance(found, Found):
                    respond(tell(self._named(found.messages), found.after))
                else:
                    respond(failed(found))

            Walk(self, criteria, after, limit, done, bodies=bodies).step()

        return Awaited(begin)

    def scheduled(self, queue: str, after: tuple[int, int, int], limit: int, tell: Page, *, bodies: bool) -> Awaited:
        def begin(respond: Respond) -> None:
            def done(found: list[Held] | Refused | BaseException, more: bool) -> None:
                if isinstance(found, list):
                    respond(tell(self._named(found), _moment(found[-1]) if more else None))
                else:
                    respond(failed(found))

            Schedule(self, queue, after, limit, done, bodies=bodies).step()

        return Awaited(begin)

    def ask(self, command: Command, reply: Callable[[Answer], None]) -> None:
        """When it is the search's turn, so that others have theirs."""
        self._turns.join(_Question(self.loop, command, reply))

    def read(self, messages: Sequence[Held], room: int, done: Callable[[Read | BaseException], None]) -> None:
        """Read messages in a thread, in order, as many as there is room for, but one at least."""
        extents = Extents(self.spectators.view())
        self.spectators.submit(lambda: _read(messages, extents, room), self._examined(done))

    def sift(
        self,
        candidates: Candidates,
        criteria: Criteria,
        most: int,
        done: Callable[[Sifted | BaseException], None],
    ) -> None:
        """Find in a thread those that are meant, so many at most."""
        extents = Extents(self.spectators.view())
        self.spectators.submit(lambda: _sift(candidates, extents, criteria, most), self._examined(done))

    def _examined(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Let the log look at what could not be read, so that it is set aside."""

        def examine(result: Read | Sifted | BaseException) -> None:
            for position in () if isinstance(result, BaseException) else result.damaged:
                self.loop.examine(position)
            done(result)

        return examine

    def _named(self, messages: Sequence[Held]) -> list[tuple[Held, str]]:
        """With the names of their queues. One that has just gone has lost its messages too."""
        queues = self.loop.engine.queues
        return [(message, queues[message.queue].name) for message in messages if message.queue in queues]


class _Question:
    """One part of a search, which waits for its turn."""

    def __init__(self, loop: ServicePort, command: Command, reply: Callable[[Answer], None]) -> None:
        self._loop = loop
        self._command = command
        self._reply = reply

    def take_turn(self, *, crowded: bool) -> bool:
        command = self._command
        if crowded and isinstance(command, Search | ListCandidates | ListScheduled):
            command = msgspec.structs.replace(command, rows=SEARCH_ROWS_CROWDED)
        self._loop.submit(command, self._reply)
        return False


def failed(failure: Refused | BaseException) -> Response:
    if isinstance(failure, Refused):
        return refusal(failure)
    logger.error("search_failed", exc_info=failure)
    return error_response(Fault.UNREADABLE, str(failure))


class Walk:
    """One page of a search: turn after turn, until it is full, everything was looked at, or its time is over."""

    def __init__(
        self,
        searching: Searching,
        criteria: Criteria,
        after: Place,
        limit: int,
        done: Callable[[Found | Refused | BaseException], None],
        *,
        bodies: bool,
    ) -> None:
        self._searching = searching
        self._criteria = criteria
        self._after: Place | None = after
        self._limit = limit
        self._done = done
        self._bodies = bodies
        self._found: list[Held] = []
        self._room = FETCH_BYTES_MAX
        self._tries = 0
        self._until = asyncio.get_running_loop().time() + SEARCH_SECONDS_MAX

    def step(self) -> None:
        assert self._after is not None
        if self._criteria.reads:
            self._searching.ask(ListCandidates(self._criteria, self._after), self._take)
        else:
            self._searching.ask(Search(self._criteria, self._after, self._left), self._take)

    @property
    def _left(self) -> int:
        return self._limit - len(self._found)

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Candidates) and answer.queues:
            self._searching.sift(answer, self._criteria, self._left, lambda sifted: self._hold(sifted, answer))
        elif isinstance(answer, Candidates):
            self._go_on(Read([], None), answer.after)
        elif not isinstance(answer, Found):
            assert isinstance(answer, Refused)
            self._done(answer)
        elif self._bodies and answer.messages:
            self._searching.read(answer.messages, self._room, lambda read: self._go_on(read, answer.after))
        else:
            self._go_on(Read(answer.messages, None), answer.after)

    def _hold(self, sifted: Sifted | BaseException, candidates: Candidates) -> None:
        """Those that are meant, as their queues hold them."""
        if isinstance(sifted, BaseException):
            self._go_on(sifted, None)
            return
        after = sifted.after or candidates.after

        def take(answer: Answer) -> None:
            self._take(Found(answer.messages, after) if isinstance(answer, Found) else answer)

        self._searching.ask(ListHeld(sifted.places), take)

    def _go_on(self, read: Read | BaseException, after: Place | None) -> None:
        if isinstance(read, EventsRemovedError) and self._tries < _TRIES_MAX:
            self._tries += 1  # Messages were carried forward just now, and their old place is gone: look again.
            self.step()
            return
        if isinstance(read, BaseException):
            self._done(read)
            return
        self._found += read.messages
        self._after = read.after or after
        self._room -= _size(read.messages)
        full = len(self._found) >= self._limit or self._room <= 0 or read.after is not None
        if full or self._after is None or asyncio.get_running_loop().time() >= self._until:
            self._done(Found(self._found, self._after))
        else:
            self.step()


class Schedule:
    """One page of what is delayed: everything is looked at, turn after turn, and the next ones are kept."""

    def __init__(
        self,
        searching: Searching,
        queue: str,
        after: tuple[int, int, int],
        limit: int,
        done: Callable[[list[Held] | Refused | BaseException, bool], None],
        *,
        bodies: bool,
    ) -> None:
        self._searching = searching
        self._queue = queue
        self._after = after
        self._limit = limit
        self._done = done
        self._bodies = bodies
        self._found: list[Held] = []

    def step(self, place: Place = (0, 0)) -> None:
        before = self._found[-1].visible_at if len(self._found) == self._limit else NEVER_NS
        self._searching.ask(ListScheduled(self._queue, self._after, before, place, self._limit), self._take)

    def _take(self, answer: Answer) -> None:
        if not isinstance(answer, Found):
            assert isinstance(answer, Refused)
            self._done(answer, False)
            return
        self._found = nsmallest(self._limit, self._found + answer.messages, key=_moment)
        if answer.after is not None:
            self.step(answer.after)
        elif self._bodies and self._found:
            self._searching.read(self._found, FETCH_BYTES_MAX, self._finish)
        else:
            self._done(self._found, len(self._found) == self._limit)

    def _finish(self, read: Read | BaseException) -> None:
        if isinstance(read, BaseException):
            self._done(read, False)
        else:
            self._done(read.messages, len(self._found) == self._limit or read.after is not None)


def _moment(message: Held) -> tuple[int, int, int]:
    return message.visible_at, message.queue, message.sequence


def _place(message: Held) -> Place:
    return message.queue, message.sequence


def _size(messages: Sequence[Held]) -> int:
    return sum([len(message.body) + len(message.key) + len(message.headers) for message in messages])


# ── In a thread ───────────────────────────────────────────────────────────────────────────────────────────────


def _read(messages: Sequence[Held], extents: Extents, room: int) -> Read:
    kept: list[Held] = []
    damaged: list[Position] = []
    for message in messages:
        if not read_extent(message, extents):
            damaged.append(message.position)
        room -= _size([message])
        if room < 0 and kept:
            return Read(kept, _place(kept[-1]), damaged)
        kept.append(message)
    return Read(kept, None, damaged)


def _sift(candidates: Candidates, extents: Extents, criteria: Criteria, most: int) -> Sifted:
    """A batch that does not contain the text at all is passed over with everything in it."""
    found: list[Place] = []
    damaged: list[Position] = []
    text, key = criteria.text, criteria.key
    known = range(0)  # The batch that was looked at last,
    empty = False  # and whether it lacks the text.
    columns = (candidates.queues, candidates.sequences, candidates.positions)
    for *place, position, body, key_bytes in zip(*columns, candidates.body_bytes, candidates.key_bytes, strict=True):
        if empty and position in known:
            continue
        try:
            base, batch = extents.batch(position)
        except DamagedLogError:
            damaged.append(position)
            continue
        if known.start != base:
            known, empty = range(base, base + len(batch)), text not in batch
            if empty:
                continue
        key_at = position - base + body
        if key is not None and batch[key_at : key_at + key_bytes] != key:
            continue
        if batch.find(text, position - base, key_at) >= 0:
            found.append((place[0], place[1]))
            if len(found) == most:
                return Sifted(found, found[-1], damaged)
    return Sifted(found, None, damaged)


def read_extent(message: Held, extents: Extents) -> bool:
    """Read the body, the key and the headers of a message. False if they are damaged."""
    body, key = message.body_bytes, message.key_bytes
    size = body + key + message.headers_bytes
    try:
        extent = extents.read(message.position, size) if size else b""
    except DamagedLogError:
        message.state = DAMAGED
        return False
    message.body, message.key, message.headers = extent[:body], extent[body : body + key], extent[body + key :]
    return True
