"""Message documents: everything that was logged of a message, read in a thread beside the event loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Raw

from penstock.dialects.native.document import Told, document, is_queued
from penstock.dialects.native.events import EventWriter
from penstock.dialects.wire.http import Awaited, Response, Stream, error_response, json_response, refusal
from penstock.errors import Fault
from penstock.ids import MessageIds
from penstock.limits import TRACES_MAX
from penstock.model.answers import Answer, Found, Held, Refused
from penstock.model.commands import ListHeld, LookUp
from penstock.model.events import Logged
from penstock.model.story import fold
from penstock.model.values import Place
from penstock.server.services.event_reader import as_events, next_index_of
from penstock.server.services.search import read_extent
from penstock.server.services.spectators import Spectators
from penstock.server.writer.port import ServicePort
from penstock.storage.log.traces import Trace, Tracer, Traces
from penstock.storage.log.view import Extents

logger = logging.getLogger(__name__)


_WORK_SECONDS = 0.01  # In a thread at a time: then readers rest, if the broker is at work.


class Tracing:
    def __init__(self, loop: ServicePort, spectators: Spectators, ids: MessageIds) -> None:
        self._loop = loop
        self._spectators = spectators
        self._ids = ids
        self._traces = Traces()
        self._open = 0

    def message(self, place: Place, *, raw: bool) -> Response | Awaited:
        if self._open >= TRACES_MAX:
            return error_response(Fault.LOOKUP_LIMIT, str(TRACES_MAX))
        self._open += 1

        def begin(respond: Callable[[Response | Stream], None]) -> None:
            def done(response: Response) -> None:
                self._open -= 1
                respond(response)

            self._loop.submit(LookUp(*place), partial(self._trace, place, {place}, raw, done))

        return Awaited(begin)

    def _trace(
        self, place: Place, asked: set[Place], raw: bool, done: Callable[[Response], None], answer: Answer
    ) -> None:
        """Queues are asked first and the log is read then, so that it tells how what they hold came to be. If it
        tells of further places, that is done once more for all of them."""
        if isinstance(answer, Refused):
            done(refusal(answer))
            return
        assert isinstance(answer, Found)
        held = {(message.queue, message.sequence): message for message in answer.messages}
        self._spectators.queues.remember()
        view = self._spectators.view()
        tracer = Tracer(self._traces, view, place, min([message.created for message in held.values()], default=0))
        extents = Extents(view)

        def go_on(result: Any) -> None:
            if isinstance(result, Response):
                done(result)
            elif isinstance(result, set):
                self._loop.submit(ListHeld(sorted(result)), partial(self._trace, place, result, raw, done))
            elif isinstance(result, BaseException):
                logger.error("trace_failed", exc_info=result)
                done(error_response(Fault.UNREADABLE, str(result)))
            else:
                self._spectators.submit(work, go_on)

        def work() -> Response | set[Place] | None:
            until = time.monotonic() + _WORK_SECONDS
            while tracer.step():
                if time.monotonic() > until:
                    return None
            trace = tracer.trace()
            places = asked.union(held, trace.places)
            return self._told(place, trace, held, extents, raw=raw) if places == asked.union(held) else places

        go_on(None)

    # ── In a thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _told(self, place: Place, trace: Trace, held: dict[Place, Held], extents: Extents, *, raw: bool) -> Response:
        if not trace.events and not held:
            return error_response(Fault.MESSAGE_REMOVED)
        queued = [where for where, message in held.items() if is_queued(message)]
        story = fold((event for _, event in trace.events), queued)
        content = trace.content if isinstance(trace.content, Logged) else None
        if held and content is None and not isinstance(story.content, Logged):
            read_extent(next(iter(held.values())), extents)
        spectators = self._spectators
        writer = EventWriter(self._ids, spectators.name, spectators.queues.name, raw=raw)
        # The end of a queue is told of messages that were still in it.
        left = {stay.changed for stay in story.stays.values() if stay.letter == "D"}
        events = [
            Raw(line)
            for rows in trace.rows
            for line in writer.lines(
                event
                for event in as_events(rows, next_index_of(rows.column("offset").to_numpy()))
                if event.sequence is not None or event.time in left
            )
        ]
        told = Told(place, content, held, events, trace.whole, raw)
        return json_response(200, document(story, told, self._ids, spectators.name, spectators.queues.name))
