"""Searches the queues over several turns of the event loop, and reads bodies for them in threads.

Each turn examines a bounded number of messages. Everything found is durable: every turn waits until what it has seen
is durable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple

from msgspec.structs import replace

from penstock.broker.quotas.work import begin_bill, current_bill
from penstock.broker.room import Taken
from penstock.broker.services.contract import Service, resolve, unrefused
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.questions import Answers
from penstock.broker.turns import Turns
from penstock.broker.writer.port import ServicePort
from penstock.errors import DamagedLogError, EventsRemovedError, Fault, RequestError
from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, SEARCH_ROWS_CROWDED, SEARCH_SECONDS_MAX
from penstock.model.answers import Candidates, Found, Held
from penstock.model.client import Client
from penstock.model.commands import Command, Criteria, ListCandidates, ListHeld, ListScheduled, Search
from penstock.model.lifecycle import DAMAGED
from penstock.model.searches import Messages, ReadScheduled, SearchMessages, WrongCursor, moment_of
from penstock.model.values import Place, Position
from penstock.storage.log.view import Extents

_TRIES_MAX = 3


class Sifted(NamedTuple):
    """The places of the messages that match. `after`: the place of the last one examined, if there are more."""

    places: list[Place]
    after: Place | None
    damaged: Sequence[Position] = ()  # The positions of messages that could not be read.


class Read(NamedTuple):
    """Messages with their bodies. `after`: the place of the last one, if there was no room for more."""

    messages: list[Held]
    after: Place | None
    damaged: Sequence[Position] = ()  # As in `Sifted`.


class Searches(Service):
    """All searches of one broker."""

    def __init__(self, writer: ServicePort, reads: LogReads, turns: Turns) -> None:
        super().__init__(writer)
        self._reads = reads
        self._turns = turns
        self.answers: Answers = {SearchMessages: self.search, ReadScheduled: self.scheduled}

    async def search(self, client: Client, query: SearchMessages) -> Messages | WrongCursor:
        if query.afters is not None:
            return WrongCursor()
        begin_bill("search_seconds_per_minute")
        queue, sequence = query.after or (0, 0)
        criteria = replace(query.criteria, access=client.access)
        async with self._room(bodies=query.bodies):
            found = await self.walk(criteria, (queue, sequence), query.limit, bodies=query.bodies)
            return Messages(self._named(found.messages), found.after)

    @asynccontextmanager
    async def _room(self, *, bodies: bool) -> AsyncGenerator[None, None]:
        """For the bodies of a page, until who asked for it has them."""
        taken = Taken(self.writer.room)
        try:
            if bodies:
                await taken.take(2 * FETCH_BYTES_MAX)
            yield
        finally:
            taken.end()

    async def scheduled(self, client: Client, query: ReadScheduled) -> Messages | WrongCursor:
        """One page of the delayed messages: examines all of them, turn after turn, and keeps those that are due
        next."""
        if query.afters is not None:
            return WrongCursor()
        begin_bill("search_seconds_per_minute")
        kept: list[Held] = []
        time, queue, sequence = query.after or (0, 0, 0)
        wanted = ListScheduled(query.queue, (time, queue, sequence), limit=query.limit, access=client.access)
        place: Place | None = (0, 0)
        while place is not None:
            before = kept[-1].visible_at if len(kept) == query.limit else NEVER_NS
            found = await self.ask(replace(wanted, before=before, place=place))
            kept = nsmallest(query.limit, kept + found.messages, key=moment_of)
            place = found.after
        async with self._room(bodies=query.bodies):
            read = await self._read(kept, FETCH_BYTES_MAX) if query.bodies and kept else Read(kept, None)
            has_more = len(kept) == query.limit or read.after is not None
            return Messages(self._named(read.messages), moment_of(read.messages[-1]) if has_more else None)

    async def walk(self, criteria: Criteria, after: Place, limit: int, *, bodies: bool) -> Found:
        """One page of a search: turn after turn, until it is full, all messages were examined, or its time is
        over."""
        running = asyncio.get_running_loop()
        until = running.time() + SEARCH_SECONDS_MAX
        messages: list[Held] = []
        room, tries = FETCH_BYTES_MAX, _TRIES_MAX
        place: Place | None = after
        while place is not None:
            try:
                found = await self._step(criteria, place, limit - len(messages))
                read = Read(found.messages, None)
                if bodies and found.messages:
                    read = await self._read(found.messages, room)
            except EventsRemovedError as error:
                tries -= 1
                if tries < 0:
                    raise RequestError(Fault.UNREADABLE, str(error)) from error
                continue  # Messages were just carried forward, and their old position is gone: read again.
            messages += read.messages
            room -= _size(read.messages)
            place = read.after or found.after
            if len(messages) >= limit or room <= 0 or read.after is not None or running.time() >= until:
                break
        return Found(messages, place)

    async def _step(self, criteria: Criteria, after: Place, limit: int) -> Found:
        """Examine the messages of one turn."""
        if not criteria.reads:
            found: Found = await self.ask(Search(criteria, after, limit))
            return found
        candidates: Candidates = await self.ask(ListCandidates(criteria, after))
        if not candidates.queues:
            return Found([], candidates.after)
        sifted = await self._sift(candidates, criteria, limit)
        held = await self.ask(ListHeld(sifted.places))
        return Found(held.messages, sifted.after or candidates.after)

    async def ask(self, command: Command) -> Any:
        """Submit a command when it is the search's turn. Raises `RequestError` if it is refused."""
        question = _Question(self.writer, command)
        self._turns.join(question)
        return unrefused(await question.answered)

    async def _read(self, messages: Sequence[Held], room: int) -> Read:
        """Read messages in order, as many as there is room for, but at least one."""
        read = await self._reads.in_thread(partial(_read, messages, self._reads.extents(), room))
        self._examine(read.damaged)
        return read

    async def _sift(self, candidates: Candidates, criteria: Criteria, most: int) -> Sifted:
        """Find the candidates that match, at most `most`."""
        sifted = await self._reads.in_thread(partial(_sift, candidates, self._reads.extents(), criteria, most))
        self._examine(sifted.damaged)
        return sifted

    def _examine(self, positions: Sequence[Position]) -> None:
        """Let the log check what could not be read, so that it is set aside."""
        for position in positions:
            self.writer.examine(position)

    def _named(self, messages: Sequence[Held]) -> list[tuple[Held, str]]:
        """Messages with the names of their queues, without those of queues that were just removed."""
        queues = self.writer.engine.queues
        return [(message, queues[message.queue].name) for message in messages if message.queue in queues]


class _Question:
    """One step of a search, which waits for its turn."""

    meter = None  # The bill counts its time.
    was_cheap = False

    @property
    def client(self) -> Hashable:
        return id(self)

    def __init__(self, writer: ServicePort, command: Command) -> None:
        self._writer = writer
        self._command = command
        self._bill = current_bill()
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def take_turn(self, *, crowded: bool) -> bool:
        command = self._command
        if crowded and isinstance(command, Search | ListCandidates | ListScheduled):
            command = replace(command, rows=SEARCH_ROWS_CROWDED)
        began = time.perf_counter()
        self._writer.submit(command, partial(resolve, self.answered))
        if self._bill:
            self._bill.add(time.perf_counter() - began)
        return False


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
    """The candidates that match. A batch that does not contain the text at all is skipped as a whole."""
    found: list[Place] = []
    damaged: list[Position] = []
    text, key = criteria.text, criteria.key
    known, empty = range(0), False  # The last batch examined, and whether it lacks the text.
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
    """Read the body, the key and the headers of a message. Returns false if they are damaged."""
    body, key = message.body_bytes, message.key_bytes
    size = body + key + message.headers_bytes
    try:
        extent = extents.read(message.position, size) if size else b""
    except DamagedLogError:
        message.state = DAMAGED
        return False
    message.body, message.key, message.headers = extent[:body], extent[body : body + key], extent[body + key :]
    return True
