"""Spectators: those who read the log while it is written, each at its own pace.

A spectator has a place in the log and nothing else: no event is kept for it. It reads from the disk (mostly from what
the system still has of it in memory), in one of a few threads, a bounded piece each time the client has taken the
last one. Only what is durable is ever shown. One that follows waits at the end for the next commit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, Protocol

from penstock.dialects.native.events import EventWriter
from penstock.dialects.native.queues import EventQuery, From, RangeQuery
from penstock.dialects.wire.http import Awaited, Response, Sink, Stream, error_response, json_response, refusal
from penstock.dialects.wire.times import rfc3339_nanos
from penstock.errors import DamagedLogError, EventsRemovedError, Fault
from penstock.ids import MessageIds
from penstock.limits import FOLLOW_SECONDS, PIECE_BYTES, QUEUES_REMEMBERED_MAX
from penstock.model.answers import Answer, Refused
from penstock.model.commands import ListQueues
from penstock.model.values import Position
from penstock.server.measures import Samples, one
from penstock.server.services.event_reader import ArrowEncoder, Encoder, EventReader, TextEncoder
from penstock.server.services.log_names import LogNames
from penstock.server.writer.port import ServicePort
from penstock.storage.log.batch import FORMAT
from penstock.storage.log.names import queues_created
from penstock.storage.log.view import Cursor, View

logger = logging.getLogger(__name__)

_THREADS = 2
_REST = 8  # Times as long as the work.
_REST_SECONDS_MIN = 0.001
_AT_WORK_SECONDS = 0.02  # A broker that has committed something in this time.
_RAW_PIECE_BYTES = 4 * PIECE_BYTES
_CONTENT_TYPES = {
    "json": b"application/x-ndjson",
    "sse": b"text/event-stream",
    "arrow": b"application/vnd.apache.arrow.stream",
}
_RAW = b"application/vnd.penstock.log"


class SpectatorSettings(Protocol):
    @property
    def readers_max(self) -> int: ...
    @property
    def heartbeat_seconds(self) -> float: ...


class Spectators:
    """All readers of one broker's log."""

    def __init__(self, loop: ServicePort, ids: MessageIds, settings: SpectatorSettings) -> None:
        self.open = 0  # Readers there are.
        self.bytes_sent = 0
        self.heartbeat_seconds = settings.heartbeat_seconds
        self._loop = loop
        self._ids = ids
        self._readers_max = settings.readers_max
        self.queues = QueueNames(loop, self.view)
        self.names = LogNames(loop, self.view)
        self.name = self.names.name
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spectator")
        self._closed = False
        self._rest_until = 0.0
        self._committed_at = 0.0
        self._waiting: set[EventSource] = set()  # Followers at the end of the log.
        self._waking: asyncio.TimerHandle | None = None
        self._woke_at = 0.0
        loop.on_commit.append(self._after_commit)

    def state(self) -> Iterator[tuple[str, Samples]]:
        yield "penstock_event_readers", one(self.open)
        yield "penstock_event_bytes_total", one(self.bytes_sent)

    def view(self) -> View:
        """What can be read now. Called in any thread."""
        return self._loop.log.view()

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    # ── What can be asked ───────────────────────────────────────────────────────────────────────────────────

    def events(self, query: EventQuery) -> Response | Awaited:
        view = self.view()
        return self._admitted(
            partial(self._open_events, query, view), lambda reader: self._stream(reader, query, view)
        )

    def batches(self, query: RangeQuery) -> Response | Awaited:
        return self._admitted(partial(self._open_range, query, self.view()), lambda stream: stream)

    def describe(self, names_from: int) -> Response | Awaited:
        """What there is to read. The tables of names are told once every name in them is durable."""
        view, engine = self.view(), self._loop.engine
        names = self.names.since(names_from)
        self.queues.remember()

        def when_ready(respond: Callable[[Response | Stream], None]) -> None:
            def told(answer: Answer) -> None:
                if isinstance(answer, Refused):
                    respond(refusal(answer))
                else:
                    described = partial(self._description, view, names_from, *names, engine.last_queue)
                    self.submit(described, lambda result: respond(_response_of(result)))

            self._loop.submit(ListQueues(0, 0), told)

        return Awaited(when_ready)

    def _admitted(self, opened: Callable[[], Any], stream_of: Callable[[Any], Stream]) -> Response | Awaited:
        """Open a reader in a thread, if there is room for one more."""
        if self.open >= self._readers_max:
            return error_response(Fault.READER_LIMIT, str(self._readers_max))
        self.open += 1

        def when_ready(respond: Callable[[Response | Stream], None]) -> None:
            def done(result: Any) -> None:
                if isinstance(result, Response | BaseException):
                    self.open -= 1
                    respond(_response_of(result))
                else:
                    respond(stream_of(result))

            self.submit(opened, done)

        return Awaited(when_ready)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do something in a thread; `done` is called with the result, or with the exception.

        All threads share one interpreter with the event loop: so while the broker is at work, readers rest eight
        times as long as they have worked, all of them together.
        """
        running = asyncio.get_running_loop()

        def begin() -> None:
            if self._closed:
                return  # Nobody is left to be told.
            running.run_in_executor(self._threads, _timed, work).add_done_callback(tell)

        def tell(future: asyncio.Future[tuple[Any, float]]) -> None:
            if not future.cancelled():
                result, seconds = future.result()
                self._rest_until = max(self._rest_until, running.time()) + _REST * seconds
                done(result)

        now = running.time()
        if now >= self._committed_at + _AT_WORK_SECONDS:
            self._rest_until = 0.0
        # A timer cannot wait for less than a millisecond, so shorter rests add up until they are worth one.
        if self._rest_until - now >= _REST_SECONDS_MIN:
            running.call_at(self._rest_until, begin)
        else:
            begin()

    # ── In a thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _open_events(self, query: EventQuery, view: View) -> EventReader | Response:
        first = view.earliest()
        if query.start == "latest":
            start = From(view.end.offset)
        elif query.start == "earliest":
            start = From(first.offset)
        else:
            start = query.start
        if start.offset > view.end.offset:
            return _beyond(view)
        if query.since:
            start = max(start, From(view.offset_at(query.since)))
        point = first if start.offset == first.offset else view.point_of(start.offset)
        encoder = self._encoder(query)
        return EventReader(query, start, point.position, self.name, self.queues.name, encoder)

    def _encoder(self, query: EventQuery) -> Encoder:
        if query.format == "arrow":
            return ArrowEncoder(self.name, self.queues.name, bodies=query.bodies)
        writer = EventWriter(self._ids, self.name, self.queues.name, raw=query.raw)
        return TextEncoder(writer, sent_events=query.format == "sse")

    def _open_range(self, query: RangeQuery, view: View) -> Stream | Response:
        if query.start > view.end.offset:
            return _beyond(view)
        start = view.point_of(query.start)
        end = start
        if start.position < view.end.position and query.stop > query.start:
            end = view.batch_end(start, query.stop, query.bytes_max)
        headers = (
            b"Content-Type: %b\r\nCache-Control: no-store\r\nX-Penstock-First-Offset: %d\r\n"
            b"X-Penstock-Next-Offset: %d\r\nX-Penstock-End-Offset: %d\r\n"
        ) % (_RAW, start.offset, end.offset, view.end.offset)
        source = RangeSource(self, view, Cursor(start.position), end.position)
        return Stream(200, headers, source, length=end.position - start.position)

    def _description(
        self, view: View, names_from: int, names: dict[int, str], names_to: int, last_queue: int
    ) -> Response:
        first = view.earliest()
        return json_response(
            200,
            {
                "log": self._ids.log_id,
                "shard": self._ids.shard,
                "format": FORMAT,
                "earliest": first.offset,
                "end": view.end.offset,
                "bytes": view.end.position - first.position,
                "segments": [
                    {"first": part.base_offset, "created": rfc3339_nanos(part.created).decode()}
                    for part in view.parts
                    if part.base_offset >= first.offset
                ],
                "names_from": names_from,
                "names_to": names_to,
                "texts": self.names.with_forgotten(names, names_from, names_to),
                "queues": self.queues.all(last_queue),
            },
        )

    def _stream(self, reader: EventReader, query: EventQuery, view: View) -> Stream:
        headers = b"Content-Type: " + _CONTENT_TYPES[query.format] + b"\r\nCache-Control: no-store\r\n"
        if query.format == "sse":
            headers += b"X-Accel-Buffering: no\r\n"  # Asks a proxy in front to pass events on as they come.
        source = EventSource(self, reader, None if query.follow else view)
        return Stream(200, headers, source, endless=query.follow)

    # ── Followers ───────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, source: EventSource) -> None:
        self._waiting.add(source)

    def forget(self, source: EventSource) -> None:
        self._waiting.discard(source)

    def _after_commit(self) -> None:
        self.queues.remember()
        running = asyncio.get_running_loop()
        self._committed_at = running.time()
        if self._waiting and self._waking is None:
            self._waking = running.call_at(self._woke_at + FOLLOW_SECONDS, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._woke_at = asyncio.get_running_loop().time()
        waiting, self._waiting = self._waiting, set()
        for source in waiting:
            source.wake()


class QueueNames:
    """Names of queues by their numbers, also of queues that are gone. Those that the broker has seen since its start
    are remembered; others are looked for in the log, each part of which is searched once."""

    def __init__(self, loop: ServicePort, view: Callable[[], View]) -> None:
        self._loop = loop
        self._view = view
        self._engine = loop.engine
        self._seen: dict[int, str] = {}  # In the engine.
        self._seen_to = 0
        self._found: dict[int, str] = {}  # In the log.
        self._lost: set[int] = set()  # Searched for in vain.
        self._search = Cursor(0)
        self._lock = Lock()

    def remember(self) -> None:
        """Note what is new. Called in the thread of the event loop."""
        engine = self._loop.engine
        if engine is not self._engine:
            # The log has failed and was replayed: a queue that was not durable is gone, and its number free again.
            self._engine, self._seen, self._seen_to = engine, {}, 0
        if engine.last_queue == self._seen_to:
            return
        fresh = range(self._seen_to + 1, engine.last_queue + 1)
        known = engine.queues if len(fresh) > len(engine.queues) else fresh
        self._seen |= {number: engine.queues[number].name for number in known if number in engine.queues}
        self._seen_to = engine.last_queue
        _trim(self._seen)

    def name(self, number: int) -> str | None:
        """Called in any thread, for a queue that durable events tell of."""
        name = self._known(number)
        if name is None and number not in self._lost:
            with self._lock:
                self._search_to(self._view())
                name = self._known(number)
                if name is None:
                    self._lost.add(number)
        return name

    def all(self, last_queue: int) -> dict[int, str]:
        """Every name that can be had, once the creation of each of these queues is durable."""
        names = {number: self.name(number) for number in range(1, last_queue + 1)}
        return {number: name for number, name in names.items() if name is not None}

    def _known(self, number: int) -> str | None:
        queue = self._loop.engine.queues.get(number)
        return queue.name if queue else self._seen.get(number) or self._found.get(number)

    def _search_to(self, view: View) -> None:
        for batches in self._search.read_on(view):
            for batch in batches:
                self._found |= queues_created(*batch)
        _trim(self._found)


def _trim(names: dict[int, str]) -> None:
    while len(names) > QUEUES_REMEMBERED_MAX:
        del names[next(iter(names))]  # The oldest. The engine still knows those that are there.


# ── Sources of streams ────────────────────────────────────────────────────────────────────────────────────────


class _ThreadedSource:
    """A source whose pieces are made in a thread, one at a time."""

    def __init__(self, spectators: Spectators) -> None:
        self._spectators = spectators
        self._sink: Sink | None = None
        self._busy = False
        self._closed = False

    def pull(self, sink: Sink) -> None:
        self._sink = sink
        self._work()

    def finish(self) -> None:
        """Ends by itself."""

    def close(self) -> None:
        self._closed = True
        self._spectators.open -= 1
        if not self._busy:
            self._let_go()

    def _do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._busy = True

        def done(result: Any) -> None:
            self._busy = False
            if self._closed:
                self._let_go()
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                then(result)

        self._spectators.submit(work, done)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, EventsRemovedError):
            logger.info("reader_overtaken", extra={"earliest": error.earliest})
        elif isinstance(error, DamagedLogError):
            logger.error("reader_failed", extra={"reason": str(error)})
        else:
            logger.error("reader_failed", exc_info=error)
        assert self._sink is not None
        self._sink.fail()

    def _give(self, data: bytes) -> None:
        assert self._sink is not None
        self._spectators.bytes_sent += len(data)
        self._sink.give(data)

    def _work(self) -> None:
        raise NotImplementedError

    def _let_go(self) -> None:
        raise NotImplementedError


class RangeSource(_ThreadedSource):
    """Raw bytes of the log, from the cursor to a position."""

    def __init__(self, spectators: Spectators, view: View, cursor: Cursor, until: Position) -> None:
        super().__init__(spectators)
        self._view = view
        self._cursor = cursor
        self._until = until

    def _work(self) -> None:
        self._do(lambda: self._cursor.read_raw(self._view, self._until, _RAW_PIECE_BYTES), self._then)

    def _then(self, data: bytes) -> None:
        assert self._sink is not None
        if data:
            self._give(data)
        else:
            self._sink.end()

    def _let_go(self) -> None:
        self._cursor.close()


class EventSource(_ThreadedSource):
    """The events of a reader, up to the end of a view; without one, for as long as the client listens."""

    def __init__(self, spectators: Spectators, reader: EventReader, view: View | None) -> None:
        super().__init__(spectators)
        self._reader = reader
        self._view = view
        self._finishing = False
        self._ended = False
        self._beating: asyncio.TimerHandle | None = None

    def finish(self) -> None:
        if self._view is None and not self._finishing:
            self._finishing = True
            if self._beating:
                self.wake()

    def wake(self) -> None:
        """There is more, or it is time to end."""
        self._stop_waiting()
        if not self._closed:
            self._work()

    def _work(self) -> None:
        if self._ended:
            asyncio.get_running_loop().call_soon(self._end)
        elif self._finishing:
            self._do(self._reader.end, self._give_last)
        else:
            view = self._view or self._spectators.view()
            self._do(lambda: self._reader.read(view), self._then)

    def _then(self, data: bytes | None) -> None:
        if data is not None:
            self._give(data)
        elif self._view is None and not self._reader.exhausted and not self._finishing:
            self._wait()
        else:
            self._do(self._reader.end, self._give_last)

    def _give_last(self, data: bytes) -> None:
        self._ended = True
        self._give(data)

    def _end(self) -> None:
        if not self._closed:
            assert self._sink is not None
            self._sink.end()

    def _wait(self) -> None:
        """At the end of the log. A commit may have come since the view was taken."""
        if self._spectators.view().end.offset > self._reader.next.offset:
            self._work()
            return
        self._spectators.wait(self)
        running = asyncio.get_running_loop()
        self._beating = running.call_later(self._spectators.heartbeat_seconds, self._beat)

    def _beat(self) -> None:
        self._stop_waiting()
        self._do(self._reader.beat, self._give)

    def _stop_waiting(self) -> None:
        self._spectators.forget(self)
        if self._beating:
            self._beating.cancel()
            self._beating = None

    def _let_go(self) -> None:
        self._stop_waiting()
        self._reader.close()


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, or the exception, and how long it took."""
    began = time.perf_counter()
    try:
        result = work()
    except Exception as error:
        result = error
    return result, time.perf_counter() - began


# ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────


def _beyond(view: View) -> Response:
    return error_response(Fault.PAST_END, str(view.end.offset), end=view.end.offset)


def _response_of(result: Response | BaseException) -> Response:
    if isinstance(result, Response):
        return result
    if isinstance(result, EventsRemovedError):
        return error_response(Fault.EVENTS_REMOVED, f"the earliest is {result.earliest}", earliest=result.earliest)
    if isinstance(result, DamagedLogError):
        logger.error("reader_failed", extra={"reason": str(result)})
        return error_response(Fault.UNREADABLE, str(result))
    logger.error("reader_failed", exc_info=result)
    return error_response(Fault.UNREADABLE)
