"""Streams of the Event Log, each at the pace of its client.

A reader has only a position in the log: no event is buffered for it. It reads from disk (mostly from the page cache),
a bounded piece each time the client has taken the last one. It sees only durable events. A reader that follows the
log waits at its end for the next commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, closing, contextmanager
from functools import partial
from typing import Any

from penstock.broker.figures.measures import Samples, one
from penstock.broker.quotas.work import begin_bill
from penstock.broker.room import Taken
from penstock.broker.services.contract import Service, accepted
from penstock.broker.services.event_encoders import Encoder, EventTexts, TextEncoder, TextOf
from penstock.broker.services.event_reader import EventReader
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.pieces import LogClosedError, PieceSource
from penstock.broker.services.questions import Answers
from penstock.broker.writer.port import ServicePort
from penstock.config.config import EventsConfig
from penstock.errors import Fault, RequestError
from penstock.limits import FOLLOW_SECONDS, PIECE_BYTES
from penstock.model.access import Access, Verb
from penstock.model.client import Client
from penstock.model.commands import ListQueues
from penstock.model.event_log import DescribeLog, From, LogDescription, LogRange, ReadEvents, ReadLog
from penstock.model.permissions import READ_THE_LOG, require
from penstock.model.streams import Flow
from penstock.model.values import Nanos, Position
from penstock.storage.directory import Identity
from penstock.storage.log.batch import FORMAT, Point
from penstock.storage.log.view import Cursor, View

_RAW_PIECE_BYTES = 4 * PIECE_BYTES


class EventStreams(Service):
    """All readers of one broker's Event Log."""

    def __init__(
        self,
        writer: ServicePort,
        reads: LogReads,
        event_writer: Callable[..., EventTexts],
        settings: EventsConfig,
        identity: Identity,
    ) -> None:
        super().__init__(writer)
        self._identity = identity
        self.reads = reads
        self.heartbeat_seconds = settings.heartbeat_seconds
        self.open = 0
        self.bytes_sent = 0
        self.waiting: set[asyncio.Event] = set()  # Followers at the end of the log.
        self.is_over = False  # The log is closed. If another process serves it, clients continue there.
        self._event_writer = event_writer
        self._readers_max = settings.readers_max
        self.answers: Answers = {
            ReadEvents: self.events,
            DescribeLog: self.describe,
            ReadLog: self.batches,
        }
        writer.on_commit.append(self._after_commit)

    def state(self) -> Iterable[tuple[str, Samples]]:
        yield "penstock_event_readers", one(self.open)
        yield "penstock_event_bytes_total", one(self.bytes_sent)

    async def close(self) -> None:
        self.is_over = True
        for follower in self.waiting:
            follower.set()
        await super().close()

    # ── Questions ───────────────────────────────────────────────────────────────────────────────────────────

    async def events(self, client: Client, query: ReadEvents) -> Flow:
        access = client.access
        require(access, *[((Verb.READ,), queue) for queue in query.queues])
        begin_bill("replay_seconds_per_minute", pauses=True)
        with self._admitted():
            view = self.reads.view()
            reader = await self.reads.in_thread(partial(self._open_events, query, access, view))
            taken = Taken(self.writer.room)
            if query.follow:
                return Flow(FollowedSource(self, reader, taken))
            return Flow(PieceSource(self, _all_events(self, reader, view, taken), taken))

    async def batches(self, client: Client, query: ReadLog) -> Flow:
        require(client.access, READ_THE_LOG)
        begin_bill("replay_seconds_per_minute", pauses=True)
        with self._admitted():
            view = self.reads.view()
            start, end = await self.reads.in_thread(partial(_bounds, query, view))
            pieces = _raw(self, view, Cursor(start.position), end.position)
            source = PieceSource(self, pieces, Taken(self.writer.room), _RAW_PIECE_BYTES)
            size = end.position - start.position
            return Flow(source, LogRange(start.offset, end.offset, view.end.offset, size))

    async def describe(self, client: Client, query: DescribeLog) -> LogDescription:
        """Describe the log. Waits until every name in the answer is durable."""
        require(client.access, READ_THE_LOG)
        view, queues, names_from = self.reads.view(), self.writer.engine.queue_numbers, query.names_from
        names, names_to = self.reads.names.since(names_from)
        self.reads.queues.remember()
        await accepted(self.writer, ListQueues(0, 0))
        return await self.reads.in_thread(partial(self._description, view, names_from, names, names_to, queues))

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Count one more reader until its source is closed, if there is room."""
        if self.open >= self._readers_max:
            raise RequestError(Fault.READER_LIMIT, str(self._readers_max))
        self.open += 1
        try:
            yield
        except BaseException:
            self.open -= 1
            raise

    def look(self) -> tuple[View, Nanos]:
        """What is durable, and a time that no later event is before; 0 if it is not known, because more than that has
        happened."""
        view, log = self.reads.view(), self.writer.log
        return view, self.writer.now() if log.appended.offset == view.end.offset else 0

    # ── In a thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _open_events(self, query: ReadEvents, access: Access, view: View) -> EventReader:
        first = view.earliest()
        if query.start == "latest":
            start = From(view.end.offset)
        elif query.start == "earliest":
            start = From(first.offset)
        else:
            start = query.start
        _check_offset(start.offset, view)
        if query.since:
            start = max(start, From(view.offset_at(query.since)))
        point = first if start.offset == first.offset else view.point_of(start.offset)
        names, queues = self.reads.names.name, self.reads.queues.name
        return EventReader(query, access, start, point.position, names, queues, self._encoder(query, access))

    def _encoder(self, query: ReadEvents, access: Access) -> Encoder:
        names, queues = self.reads.names.name, partial(self._visible_name, access)
        if query.form != "text":
            return _arrow_encoder(names, queues, query)
        writer = self._event_writer(names, queues, raw=query.raw)
        return TextEncoder(writer, self._identity.shard, bodies=query.bodies)

    def _visible_name(self, access: Access, queue: int) -> str | None:
        name = self.reads.queues.name(queue)
        return name if access.reads(name) else None

    def _description(
        self, view: View, names_from: int, names: dict[int, str], names_to: int, queues: range
    ) -> LogDescription:
        first, identity = view.earliest(), self._identity
        return LogDescription(
            log=identity.message_ids().log_id,
            ancestors=identity.lineage,
            shard=identity.shard,
            shards=identity.shards,
            format=FORMAT,
            earliest=first.offset,
            end=view.end.offset,
            bytes=view.end.position - first.position,
            parts=[(part.base_offset, part.created) for part in view.parts if part.base_offset >= first.offset],
            names_from=names_from,
            names_to=names_to,
            texts=self.reads.names.with_forgotten(names, names_from, names_to),
            queues=self.reads.queues.all(queues),
        )

    # ── Followers ───────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Wake the readers that wait at the end of the log after a commit, at most some dozens of times a second."""
        while True:
            await self.rest()
            for follower in self.waiting:
                follower.set()
            await asyncio.sleep(FOLLOW_SECONDS)

    def _after_commit(self) -> None:
        if self.waiting:
            self.wake()


def _check_offset(offset: int, view: View) -> None:
    if offset > view.end.offset:
        raise RequestError(Fault.PAST_END, str(view.end.offset), end=view.end.offset)


def _arrow_encoder(names: TextOf, queues: TextOf, query: ReadEvents) -> Encoder:
    """Raises `RequestError` where pyarrow is not installed."""
    try:
        from penstock.broker.services.arrow_encoder import ArrowEncoder, ArrowRows
    except ModuleNotFoundError as error:
        raise RequestError(Fault.NO_ARROW) from error
    return (ArrowRows if query.form == "rows" else ArrowEncoder)(names, queues, bodies=query.bodies)


def _bounds(query: ReadLog, view: View) -> tuple[Point, Point]:
    """The first and last point of the batches of a range."""
    _check_offset(query.start, view)
    start = view.point_of(query.start)
    if start.position < view.end.position and query.stop > query.start:
        return start, view.batch_end(start, query.stop, query.bytes_max)
    return start, start


# ── Pieces ────────────────────────────────────────────────────────────────────────────────────────────────────


async def _raw(streams: EventStreams, view: View, cursor: Cursor, until: Position) -> AsyncGenerator[bytes, None]:
    """The bytes of the log from the cursor to a position."""
    with closing(cursor):
        read = partial(cursor.read_raw, view, until, _RAW_PIECE_BYTES)
        while data := await streams.reads.in_thread(read):
            yield data


async def _read(streams: EventStreams, reader: EventReader, view: View, taken: Taken) -> AsyncGenerator[Any, None]:
    """The events of a reader up to the end of a view. While a client does not take its pieces, what they are made of
    is in memory."""
    with closing(reader.read(view)) as pieces:
        while True:
            if not reader.held_bytes:
                await taken.take(await streams.reads.in_thread(partial(reader.next_bytes, view)))
            piece = await streams.reads.in_thread(partial(next, pieces, None))
            taken.note(reader.held_bytes)
            if piece is None:
                return
            yield piece


async def _all_events(
    streams: EventStreams, reader: EventReader, view: View, taken: Taken
) -> AsyncGenerator[Any, None]:
    """The events of a reader up to the end of a view."""
    with closing(reader):
        yield reader.begin()
        async with aclosing(_read(streams, reader, view, taken)) as pieces:
            async for piece in pieces:
                yield piece
        yield await streams.reads.in_thread(reader.end)


class FollowedSource(PieceSource):
    """Feeds the events of a reader as long as the client is connected."""

    def __init__(self, streams: EventStreams, reader: EventReader, taken: Taken) -> None:
        super().__init__(streams, self._follow(reader), taken)
        self._streams = streams
        self._news = asyncio.Event()  # Set by a commit, or when it is time to end.
        self._ending = asyncio.Event()

    def finish(self) -> None:
        self._ending.set()
        self._news.set()

    async def _follow(self, reader: EventReader) -> AsyncGenerator[Any, None]:
        reads = self._streams.reads
        with closing(reader):
            yield reader.begin()
            while not (self._ending.is_set() or reader.exhausted):
                view, passed = self._streams.look()
                async with aclosing(_read(self._streams, reader, view, self._taken)) as pieces:
                    async for piece in pieces:
                        yield piece
                        if self._ending.is_set():
                            break
                    else:
                        if mark := reader.catch_up(passed):
                            yield mark
                is_there_more = await self._more(reader)
                if self._streams.is_over:
                    raise LogClosedError("the log is closed")
                if not is_there_more:
                    yield await reads.in_thread(reader.beat)
            yield await reads.in_thread(reader.end)

    async def _more(self, reader: EventReader) -> bool:
        """Wait for more events. Returns false if there are none and it is time for a heartbeat."""
        waiting = self._streams.waiting
        self._news.clear()
        waiting.add(self._news)
        try:
            at_end = self._streams.reads.view().end.offset <= reader.next.offset
            if not at_end or self._ending.is_set() or reader.exhausted:
                return True
            async with asyncio.timeout(self._streams.heartbeat_seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        finally:
            waiting.discard(self._news)
        return True
