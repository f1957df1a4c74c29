"""Reading the log while it is written: every offset and every time is found, in every way of cutting the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from penstock.errors import DamagedLogError, EventsRemovedError
from penstock.model.events import Event
from penstock.storage.log import index, parts
from penstock.storage.log.batch import HEADER_BYTES, Header, Point, read_header
from penstock.storage.log.decode import events_of
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.view import Cursor, View
from tests.support.samples import close_log, commit, logged, open_log, recover

SEGMENT_BYTES = 4096
FIRST_TIME = 1_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    opened = open_log(tmp_path, SEGMENT_BYTES)
    recover(opened)
    yield opened
    close_log(opened)


@pytest.fixture(params=[1, 500, 1 << 20])
def density(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index with an entry for every batch, for some, and for the first of each segment only."""
    monkeypatch.setattr(index, "_INDEX_EVERY_BYTES", request.param)
    monkeypatch.setattr(parts, "_WALK_BYTES", 200)


def fill(log: SegmentLog, batches: int, random: Random) -> list[Event]:
    """Batches of one to five messages of any size. Two events in a row may have the same time."""
    written: list[Event] = []
    time = FIRST_TIME
    for _ in range(batches):
        for _ in range(random.randint(1, 5)):
            time += random.choice((0, 1, 1, 7))
            event = msgspec.structs.replace(
                logged(len(written) + 1, random.randbytes(random.randint(0, 700))), time=time
            )
            log.append(event)
            written.append(event)
        commit(log)
    return written


def batches_of(log: SegmentLog) -> list[Header]:
    return [header for header, _ in everything(log.view())]


def everything(view: View, bytes_max: int = 1 << 20) -> list[tuple[Header, bytes]]:
    cursor = Cursor(view.earliest().position)
    found = []
    while batches := cursor.read(view, bytes_max):
        found += batches
    cursor.close()
    return found


@pytest.mark.parametrize("bytes_max", [1, 300, 3000, 1 << 20])
def test_a_cursor_reads_every_event_however_small_the_pieces(log: SegmentLog, bytes_max: int) -> None:
    written = fill(log, 60, Random(1))
    assert len(log.segments) > 5
    batches = everything(log.view(), bytes_max)
    assert [event for batch in batches for event, _ in events_of(*batch)] == written


def test_a_cursor_sees_nothing_beyond_its_view_and_goes_on_with_the_next(log: SegmentLog) -> None:
    written = fill(log, 10, Random(2))
    view, cursor = log.view(), Cursor(0)
    read = [event for batch in cursor.read(view, 1 << 20) for event, _ in events_of(*batch)]
    more = fill(log, 30, Random(3))
    while batches := cursor.read(view, 1 << 20):
        read += [event for batch in batches for event, _ in events_of(*batch)]
    assert read == written
    while batches := cursor.read(log.view(), 1 << 20):
        read += [event for batch in batches for event, _ in events_of(*batch)]
    assert read == written + more
    cursor.close()


@pytest.mark.usefixtures("density")
def test_every_offset_is_found_in_its_batch(log: SegmentLog) -> None:
    fill(log, 60, Random(4))
    view = log.view()
    for header in batches_of(log):
        for offset in range(header.base_offset, header.base_offset + header.records):
            assert view.point_of(offset) == Point(header.base_offset, header.base_position)
    assert view.point_of(view.end.offset) == view.end


@pytest.mark.usefixtures("density")
def test_an_index_made_early_knows_what_came_later(log: SegmentLog) -> None:
    for seed in range(20):
        fill(log, 3, Random(seed))
        last = batches_of(log)[-1]
        assert log.view().point_of(log.end.offset - 1) == Point(last.base_offset, last.base_position)


@pytest.mark.usefixtures("density")
def test_every_time_is_found_at_the_first_event_that_is_not_earlier(log: SegmentLog) -> None:
    times = [event.time for event in fill(log, 60, Random(5))]
    view = log.view()
    for time in range(FIRST_TIME - 2, times[-1] + 3):
        expected = next((offset for offset, each in enumerate(times) if each >= time), view.end.offset)
        assert view.offset_at(time) == expected


@pytest.mark.usefixtures("density")
def test_a_range_ends_with_the_last_batch_that_is_wanted_and_fits(log: SegmentLog) -> None:
    fill(log, 40, Random(6))
    view, headers = log.view(), batches_of(log)
    random = Random(7)
    for _ in range(500):
        first = random.randrange(len(headers))
        start = Point(headers[first].base_offset, headers[first].base_position)
        stop = random.randint(start.offset + 1, view.end.offset + 5)
        bytes_max = random.choice((1, 500, 3000, 5000, 20_000, 1 << 30))
        end = headers[first]
        for header in headers[first + 1 :]:
            after = header.base_position + header.total_bytes
            if header.base_offset >= stop or after > start.position + bytes_max:
                break
            end = header
        expected = Point(end.base_offset + end.records, end.base_position + end.total_bytes)
        assert view.batch_end(start, stop, bytes_max) == expected


def test_raw_bytes_are_the_batches_one_after_the_other(log: SegmentLog) -> None:
    written = fill(log, 40, Random(8))
    view, cursor = log.view(), Cursor(0)
    data = b"".join(iter(lambda: cursor.read_raw(view, view.end.position, 333), b""))
    cursor.close()
    events: list[Event] = []
    while data:
        header = read_header(data[:HEADER_BYTES])
        assert header is not None
        events += [event for event, _ in events_of(header, data[HEADER_BYTES : header.total_bytes])]
        data = data[header.total_bytes :]
    assert events == written


# Holes


@pytest.mark.usefixtures("density")
def test_the_earliest_offset_is_the_one_behind_the_last_hole(log: SegmentLog) -> None:
    fill(log, 60, Random(9))
    old = log.view()
    first, second, third = log.segments[:3]
    assert log.view().earliest() == Point(0, 0)
    log.remove(second)
    assert log.view().earliest() == Point(third.base_offset, third.base_position)
    log.remove(first)
    assert log.view().earliest() == Point(third.base_offset, third.base_position)
    assert old.earliest() == Point(third.base_offset, third.base_position), "also for one who looked before"
    for view in (old, log.view()):
        with pytest.raises(EventsRemovedError) as removed:
            view.point_of(third.base_offset - 1)
        assert removed.value.earliest == third.base_offset
        assert view.point_of(third.base_offset).offset == third.base_offset
        assert view.offset_at(0) == third.base_offset


def test_a_cursor_before_a_hole_is_told_where_the_log_goes_on(log: SegmentLog) -> None:
    fill(log, 60, Random(10))
    cursor = Cursor(0)
    cursor.read(log.view(), 1)
    before = batches_of(log)
    _, second, third = log.segments[:3]
    log.remove(second)
    for _ in range(sum(header.base_position < second.base_position for header in before) - 1):
        cursor.read(log.view(), 1)
    with pytest.raises(EventsRemovedError) as removed:
        cursor.read(log.view(), 1)
    cursor.close()
    assert removed.value.earliest == third.base_offset


def test_a_cursor_in_a_segment_that_was_removed_is_told_so(log: SegmentLog) -> None:
    fill(log, 60, Random(11))
    view, cursor = log.view(), Cursor(0)
    assert len(cursor.read(view, 1)) == 1
    following = log.segments[1].base_offset
    log.remove(log.segments[0])
    for each in (view, log.view()):
        with pytest.raises(EventsRemovedError) as removed:
            cursor.read(each, 1)
        assert removed.value.earliest == following
    cursor.close()


# Damage


def test_a_flipped_bit_is_not_read_as_an_event(log: SegmentLog) -> None:
    fill(log, 10, Random(12))
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedLogError):
        everything(log.view())
