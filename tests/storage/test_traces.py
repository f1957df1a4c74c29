"""The trace of a message against reading the whole log, over random histories with moves and removed queues."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model import (
    LETTERS,
    DeadLettered,
    Event,
    Kind,
    Logged,
    MessageEvent,
    Moved,
    Queued,
    QueueRemoved,
    Unchanged,
)
from penstock.storage.batch import events_of
from penstock.storage.reader import BatchCursor, View
from penstock.storage.traces import Place, Tracer, Traces
from tests.engine.test_model import EngineMachine, random_settings, random_step

TOLD = {*LETTERS, Kind.CARRIED, Kind.EXTENDED, Kind.RESCHEDULED}


def all_events(view: View) -> list[tuple[int, Event]]:
    cursor = BatchCursor(view.segments[0].base_position)
    found = []
    while batches := cursor.read(view, 1 << 20):
        for header, payload in batches:
            offsets = range(header.base_offset, header.base_offset + header.records)
            found += list(zip(offsets, [event for event, _ in events_of(header, payload)], strict=True))
    cursor.close()
    return found


def expected_of(events: list[tuple[int, Event]], place: Place) -> tuple[set[int], set[Place]]:
    """Offsets and places, the slow way."""
    places: set[Place] = {place}
    size = 0
    while size < len(places):
        size = len(places)
        for _, event in events:
            if isinstance(event, DeadLettered | Moved) and {own(event), there(event)} & places:
                places |= {own(event), there(event)}
            elif isinstance(event, Queued) and there(event) in places:
                places.add(own(event))
    offsets = set()
    for offset, event in events:
        if event.kind in TOLD:
            joined = there(event) if isinstance(event, DeadLettered | Moved | Queued) else own(event)
            if own(event) in places or joined in places:
                offsets.add(offset)
    return offsets, places


def own(event: Event) -> Place:
    assert isinstance(event, MessageEvent | Logged | Queued | Unchanged)
    return event.queue, event.sequence


def there(event: DeadLettered | Moved | Queued) -> Place:
    return event.to_queue, event.to_sequence


@pytest.mark.parametrize("seed", range(6))
def test_a_trace_finds_what_a_reader_of_everything_finds(seed: int) -> None:
    random = Random(seed)
    machine = EngineMachine()
    try:
        machine.begin([random_settings(random) for _ in range(3)])
        for _ in range(400):
            random_step(machine, random)
        machine.commit()
        view = machine.log.view()
        assert len(view.segments) > 3
        events = all_events(view)
        traces = Traces(block_bytes=600)
        for place in {own(event) for _, event in events if event.kind in TOLD}:
            tracer = Tracer(traces, view, place)
            while tracer.step():
                pass
            trace = tracer.trace()
            offsets, places = expected_of(events, place)
            # The end of a queue is told where the message may still have been there.
            told = [(offset, event) for offset, event in trace.events if not isinstance(event, QueueRemoved)]
            assert told == [(offset, event) for offset, event in events if offset in offsets]
            assert set(trace.places) == places
            assert trace.whole
            letters = {offset for rows in trace.rows for offset in rows.column("offset").to_pylist()}
            assert letters == {offset for offset, event in trace.events if event.kind in LETTERS}
    finally:
        machine.teardown()
