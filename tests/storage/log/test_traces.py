"""The trace of a message against reading the whole log, over random histories with moves and removed queues."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.limits import NEVER_NS, TRACE_RECORDS_MAX
from penstock.model.events import (
    DeadLettered,
    Event,
    Fetched,
    Logged,
    MessageEvent,
    Moved,
    NameDefined,
    NameForgotten,
    Queued,
    QueueRemoved,
    Succeeded,
    Unchanged,
)
from penstock.model.kinds import LETTERS, Kind
from penstock.model.values import Place
from penstock.storage.directory import DataDirectory
from penstock.storage.log.decode import events_of
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.trace_index import Traces
from penstock.storage.log.traces import Tracer, find_name
from penstock.storage.log.view import Cursor, View
from tests.engine.test_model import EngineMachine, random_settings, random_step
from tests.storage.golden.make import commit

TOLD = {*LETTERS, Kind.CARRIED, Kind.EXTENDED, Kind.RESCHEDULED} - {Kind.QUEUE_REMOVED}


def all_events(view: View) -> list[tuple[int, Event]]:
    cursor = Cursor(view.parts[0].base_position)
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
        assert len(view.parts) > 3
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
            letters = {offset for rows in trace.rows for offset in rows["offset"]}
            assert letters == {offset for offset, event in trace.events if event.kind in LETTERS}
    finally:
        machine.teardown()


# ── Copies ────────────────────────────────────────────────────────────────────────────────────────────────────


def copied(tmp_path: Path) -> tuple[SegmentLog, DataDirectory]:
    """A message in queue 1 with copies in 2 and 3, among others; one of them moves on. And one that says the same."""
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    log = SegmentLog(directory, segment_bytes=2048)
    assert not list(log.recover().events)
    for time in range(1, 61):
        others = [logged(time * 10, queue, time + 5) for queue in (1, 2, 3)]
        steps: dict[int, list[Event]] = {
            10: [logged(100, 1, 5, body=b"the one")],
            11: [queued(110, 2, 5)],
            12: [queued(120, 3, 5)],
            20: [Fetched(200, 2, 5, 100, 1, 0, visible_at=999)],
            30: [Succeeded(300, 3, 5, 100, 0, 0, complete=True, result=b"")],
            40: [DeadLettered(400, 2, 5, 100, 1, 0, False, 0, NEVER_NS, 4, 1)],
            50: [Succeeded(500, 4, 1, 100, 0, 0, complete=True, result=b"")],
            55: [Unchanged(550, 1, 99, 0, 0, 0, 0, 0, 1, 5, b"k")],
        }
        for event in (*others, *steps.get(time, [])):
            log.append(event)
        commit(log, time * 10 + 5)
    return log, directory


def logged(time: int, queue: int, sequence: int, body: bytes = b"x" * 30) -> Logged:
    return Logged(time, queue, sequence, time, NEVER_NS, 0, 0, 0, 0, 0, 0, b"", b"", b"", body)


def queued(time: int, queue: int, sequence: int) -> Queued:
    return Queued(time, queue, sequence, 100, time, NEVER_NS, 0, 0, 0, 0, 0, 1, 5)


@pytest.mark.parametrize(
    ("place", "places", "times", "content"),
    [
        ((1, 5), {(1, 5), (2, 5), (3, 5), (4, 1)}, [100, 110, 120, 200, 300, 400, 500], None),
        ((2, 5), {(2, 5), (4, 1)}, [110, 200, 400, 500], b"the one"),
        ((4, 1), {(2, 5), (4, 1)}, [110, 200, 400, 500], b"the one"),
        ((3, 5), {(3, 5)}, [120, 300], b"the one"),
        ((1, 99), {(1, 99)}, [550], b"the one"),
    ],
)
def test_copies_are_followed_from_the_original_and_share_its_content(
    tmp_path: Path, place: Place, places: set[Place], times: list[int], content: bytes | None
) -> None:
    log, directory = copied(tmp_path)
    view = log.view()
    assert len(view.parts) > 5
    for traces in (Traces(block_bytes=500), Traces()):
        tracer = Tracer(traces, view, place)
        while tracer.step():
            pass
        trace = tracer.trace()
        assert set(trace.places) == places
        assert [event.time for _, event in trace.events] == times
        assert (trace.content.body if isinstance(trace.content, Logged) else None) == content
        assert trace.whole
    log.close()
    directory.close()


def test_the_end_of_a_queue_belongs_to_its_messages_and_not_to_copies_of_them(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    log = SegmentLog(directory, segment_bytes=65536)
    assert not list(log.recover().events)
    for event in (logged(100, 1, 5), queued(110, 2, 5), QueueRemoved(120, 1)):
        log.append(event)
    commit(log, 130)
    for place, times in (((1, 5), [100, 110, 120]), ((2, 5), [110])):
        tracer = Tracer(Traces(), log.view(), place)
        while tracer.step():
            pass
        assert [event.time for _, event in tracer.trace().events] == times
    log.close()
    directory.close()


def test_too_many_records_are_cut_and_the_first_stays(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    log = SegmentLog(directory, segment_bytes=65536)
    assert not list(log.recover().events)
    log.append(logged(10, 1, 1))
    for number in range(TRACE_RECORDS_MAX):
        log.append(Fetched(20 + number, 1, 1, 10, number, 0, visible_at=0))
        if number % 50 == 49:
            commit(log, 20 + number)
    for number in range(100):
        log.append(Fetched(9000 + number, 1, 1, 10, number, 0, visible_at=0))
    commit(log, 10_000)
    tracer = Tracer(Traces(), log.view(), (1, 1))
    while tracer.step():
        pass
    trace = tracer.trace()
    assert TRACE_RECORDS_MAX <= len(trace.events) <= TRACE_RECORDS_MAX + 50
    assert (type(trace.events[0][1]), trace.events[-1][1].time, trace.whole) == (Logged, 9099, False)
    log.close()
    directory.close()


def test_a_name_is_found_by_the_newest_event_about_it(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    log = SegmentLog(directory, segment_bytes=2048)
    assert not list(log.recover().events)
    for number in range(1, 301):
        log.append(NameDefined(number, number, f"name {number}"))
        if number % 5 == 0:
            commit(log, number)
    log.append(NameForgotten(400, 7, "another"))
    commit(log, 401)
    view, traces = log.view(), Traces(block_bytes=1024)
    assert len(view.parts) > 3
    found = [find_name(traces, view, number) for number in (1, 7, 123, 300, 301)]
    assert found == ["name 1", "another", "name 123", "name 300", None]
    log.close()
    directory.close()
