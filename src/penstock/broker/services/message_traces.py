"""Everything that was logged about a message, read in threads beside the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from penstock.broker.quotas.work import begin_bill
from penstock.broker.services.contract import Service, accepted
from penstock.broker.services.event_encoders import events_in
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.search import read_extent
from penstock.broker.writer.port import ServicePort
from penstock.errors import Fault, RequestError
from penstock.limits import TRACES_MAX
from penstock.model.answers import Found, Held
from penstock.model.client import Client
from penstock.model.commands import ListHeld, LookUp
from penstock.model.events import Logged
from penstock.model.message_reports import MessageReport, TraceMessage, report_of
from penstock.model.story import fold
from penstock.model.traces import Event, Traced, is_queued
from penstock.model.values import Place
from penstock.storage.log.trace_index import Traces
from penstock.storage.log.traces import Trace, Tracer
from penstock.storage.log.view import Extents, View

_WORK_SECONDS = 0.01  # In a thread at a time. Then readers pause, if the broker is busy.

_Rendered = TypeVar("_Rendered")
_Found = dict[Place, Held]


class MessageTraces(Service):
    def __init__(self, writer: ServicePort, reads: LogReads) -> None:
        super().__init__(writer)
        self._reads = reads
        self._traces = Traces()
        self._open = 0

    async def report(self, client: Client, query: TraceMessage) -> MessageReport:
        begin_bill("search_seconds_per_minute")
        if self._open >= TRACES_MAX:
            raise RequestError(Fault.LOOKUP_LIMIT, str(TRACES_MAX))
        self._open += 1
        try:
            access = client.access
            return await self.look_up(query.place, lambda traced: report_of(traced, access), at_once=True)
        finally:
            self._open -= 1

    async def look_up(
        self, place: Place, render: Callable[[Traced], _Rendered], *, at_once: bool = False
    ) -> _Rendered:
        """For a caller that has a limit of its own; `render` runs in a thread. Ask the queues first, then read the
        log, so that the log includes everything that led to their state. If the log shows further places of the
        message, repeat this once for all of them."""
        places = {place}
        found: Found = await accepted(self.writer, LookUp(*place))
        while True:
            held = {(message.queue, message.sequence): message for message in found.messages}
            self._reads.queues.remember()
            view = self._reads.view()
            trace = await self._trace(view, place, held, at_once=at_once)
            known = places.union(held)
            places = known.union(trace.places)
            if places == known:
                break
            found = await accepted(self.writer, ListHeld(sorted(places)))
        traced = partial(self._traced, place, trace, held, view)
        return await self._reads.in_thread(lambda: render(traced()), at_once=at_once)

    async def _trace(self, view: View, place: Place, held: _Found, *, at_once: bool) -> Trace:
        oldest = min([message.created for message in held.values()], default=0)
        tracer = Tracer(self._traces, view, place, oldest)
        while await self._reads.in_thread(partial(_go_on, tracer), at_once=at_once):
            pass
        return await self._reads.in_thread(tracer.trace, at_once=at_once)

    def _traced(self, place: Place, trace: Trace, held: _Found, view: View) -> Traced:
        if not trace.events and not held:
            raise RequestError(Fault.MESSAGE_REMOVED)
        queued = [where for where, message in held.items() if is_queued(message)]
        story = fold((event for _, event in trace.events), queued)
        content = trace.content if isinstance(trace.content, Logged) else None
        if held and content is None and not isinstance(story.content, Logged):
            read_extent(next(iter(held.values())), Extents(view))
        names = partial(self._reads.names.look_up, traces=self._traces, view=view)
        queues = self._reads.queues.name
        return Traced(place, story, content, held, trace.events, _events(trace), trace.whole, names, queues)


def _go_on(tracer: Tracer) -> bool:
    """Trace for some milliseconds. Returns whether there is more to read."""
    until = time.monotonic() + _WORK_SECONDS
    while tracer.step():
        if time.monotonic() > until:
            return True
    return False


def _events(trace: Trace) -> Iterator[Event]:
    for columns in trace.rows:
        yield from events_in(columns)
