"""One suite for every log: whoever keeps these claims may serve an engine."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.errors import EventsRemovedError
from penstock.model.events import Event, HandedOver, NameDefined, QueueCreated
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.storage.log.decode import events_of
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.trace_index import Traces
from penstock.storage.log.traces import Tracer
from penstock.storage.log.view import Cursor, View
from penstock.storage.memory import MemoryLog, MemorySnapshot
from penstock.storage.port import Log, Section
from penstock.storage.postgres.log import StoredLog
from tests.support.faulty import Faults, FaultyLog
from tests.support.postgres import Postgres
from tests.support.samples import close_log, logged, open_log, recover, section
from tests.support.stored_logs import StoreUser

EVENTS: list[Event] = [
    QueueCreated(1, 1, "work", QueueSettings()),
    NameDefined(2, 1, "text/plain"),
    logged(1, b"one", key=b"key", headers=b"headers"),
    logged(2, b""),
    logged(3, b"three" * 400),
    HandedOver(3000, 1, 1, 1001, 1, 0),
]


class Bench:
    """A kind of log under test: how to open it, open it again on what it left, and let commits happen."""

    log: Log

    def again(self) -> Log:
        """What the next process finds."""
        raise NotImplementedError

    def commit(self) -> list[Stage | BaseException]:
        reported: list[Stage | BaseException] = []
        self.log.commit(5000, reported.append)
        self.wait(lambda: Stage.SYNC in reported)
        return reported

    def wait(self, until: Callable[[], bool]) -> None:
        assert until()

    def close(self) -> None:
        self.log.close()


class MemoryBench(Bench):
    def __init__(self, _: Path) -> None:
        self.log: MemoryLog = MemoryLog()

    def again(self) -> Log:
        self.log = MemoryLog(self.log.durable, self.log.snapshot)
        return self.log


class FaultyBench(Bench):
    def __init__(self, _: Path) -> None:
        self.planned: list[tuple[int, int, Callable[[], None]]] = []
        self.now = 0
        self.random = Random(1)
        self.log: FaultyLog = self.open([])

    def open(self, durable: list[bytes], snapshot: MemorySnapshot | None = None) -> FaultyLog:
        return FaultyLog(self.after, self.random, Faults(), durable, snapshot)

    def after(self, delay_ns: int, callback: Callable[[], None]) -> None:
        heapq.heappush(self.planned, (self.now + delay_ns, len(self.planned), callback))

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self.now, _, callback = heapq.heappop(self.planned)
            callback()

    def again(self) -> Log:
        self.log.crash()
        self.log = self.open(self.log.durable, self.log.snapshot)
        return self.log


def stop_writer(log: SegmentLog) -> None:
    """The writer takes its jobs in order, and stops after the last one."""
    log._writer.jobs.put(None)
    assert log._writer._thread is not None
    log._writer._thread.join(30)


class SegmentBench(Bench):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: SegmentLog = open_log(path, segment_bytes=1024)

    def wait(self, until: Callable[[], bool]) -> None:
        stop_writer(self.log)
        assert until()
        self.log._writer.start(self.log.end.position)

    def again(self) -> Log:
        close_log(self.log)
        self.log = open_log(self.path, segment_bytes=1024)
        return self.log

    def close(self) -> None:
        close_log(self.log)


class StoreBench(Bench):
    """A new broker each time, on a directory that has no copy of the log yet."""

    def __init__(self, path: Path, postgres: Postgres) -> None:
        self._url, self._shard = postgres.new_shard()
        self._path = path
        self._opened = 0
        self.log: StoredLog = self._open()

    def _open(self) -> StoredLog:
        self._opened += 1
        self.broker = StoreUser(self._url, self._shard, self._path / str(self._opened))
        return self.broker.log

    def wait(self, until: Callable[[], bool]) -> None:
        stop_writer(self.log)
        assert until()
        self.log._writer.start(self.log.end.position)

    def again(self) -> Log:
        self.close()
        self.log = self._open()
        return self.log

    def close(self) -> None:
        self.broker.close()


LOGS: dict[str, Callable[[Path], Bench]] = {"memory": MemoryBench, "faulty": FaultyBench, "segments": SegmentBench}


@pytest.fixture(params=[*LOGS, "postgres"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "postgres":
        made: Bench = StoreBench(tmp_path, request.getfixturevalue("postgres"))
    else:
        made = LOGS[request.param](tmp_path)
    yield made
    made.close()


def test_a_new_log_is_empty(bench: Bench) -> None:
    assert recover(bench.log) == []
    assert bench.log.collecting == 0


def test_what_was_committed_is_recovered_in_order_with_its_positions(bench: Bench) -> None:
    recover(bench.log)
    written = []
    for event in EVENTS:
        written.append((event, bench.log.append(event)))
        if event.time % 2:
            bench.commit()
    bench.commit()
    assert recover(bench.again()) == written


def test_what_was_not_committed_is_not_there(bench: Bench) -> None:
    recover(bench.log)
    position = bench.log.append(EVENTS[0])
    bench.commit()
    bench.log.append(EVENTS[1])
    assert recover(bench.again()) == [(EVENTS[0], position)]


def test_a_recovered_log_goes_on_where_it_ended(bench: Bench) -> None:
    written: list[tuple[Event, int]] = []
    for event in EVENTS:
        assert recover(bench.again()) == written
        written.append((event, bench.log.append(event)))
        bench.commit()
    assert recover(bench.again()) == written


def test_stages_are_reported_in_order(bench: Bench) -> None:
    recover(bench.log)
    for _ in range(3):
        bench.log.append(logged(1, b"one"))
        assert bench.commit() == [Stage.WRITE, Stage.SYNC]


def test_collecting_grows_with_each_event_and_ends_with_the_commit(bench: Bench) -> None:
    recover(bench.log)
    sizes = []
    for event in EVENTS:
        bench.log.append(event)
        sizes.append(bench.log.collecting)
    assert sizes == sorted(set(sizes))
    assert sizes[0] > 0
    bench.commit()
    assert bench.log.collecting == 0


def test_the_next_batch_collects_while_one_is_committed(bench: Bench) -> None:
    recover(bench.log)
    first = bench.log.append(logged(1, b"first"))
    reported: list[Stage | BaseException] = []
    bench.log.commit(5000, reported.append)
    second = bench.log.append(logged(2, b"second"))
    assert bench.log.collecting > 0
    assert (bench.log.read(first, 5), bench.log.read(second, 6)) == (b"first", b"second")
    bench.wait(lambda: Stage.SYNC in reported)
    bench.commit()
    assert [position for _, position in recover(bench.again())] == [first, second]


def test_an_extent_is_read_at_every_age(bench: Bench) -> None:
    recover(bench.log)
    event = logged(1, b"body", key=b"key", headers=b"headers")
    empty = logged(2, b"")
    positions = [(bench.log.append(event), bench.log.append(empty))]
    reported: list[Stage | BaseException] = []
    for age in ("collecting", "committing", "committed", "recovered"):
        if age == "committing":
            bench.log.commit(5000, reported.append)
        elif age == "committed":
            bench.wait(lambda: Stage.SYNC in reported)
        elif age == "recovered":
            recover(bench.again())
        for full, nothing in positions:
            assert bench.log.read(full, 14) == b"bodykeyheaders", age
            assert bench.log.read(full + 4, 3) == b"key", age
            assert bench.log.read(nothing, 0) == b"", age


def test_many_batches_are_each_read_from_their_own_place(bench: Bench) -> None:
    recover(bench.log)
    bodies = {bench.log.append(logged(1, b"first")): b"first"}
    for number in range(40):
        body = b"%d" % number * (number + 1)
        bodies[bench.log.append(logged(number + 2, body))] = body
        bench.commit()
    for _ in range(2):
        for position, body in bodies.items():
            assert bench.log.read(position, len(body)) == body
        recover(bench.again())


# Readers


def fill(bench: Bench, commits: int = 12) -> list[Event]:
    """So many batches, each of two events and larger than a segment."""
    written: list[Event] = []
    for number in range(commits):
        written += [logged(2 * number + 1, b"%d" % number * 600), logged(2 * number + 2, b"")]
        for event in written[-2:]:
            bench.log.append(event)
        bench.commit()
    return written


def seen(view: View, start: int = 0) -> list[Event]:
    cursor, found = Cursor(start), []
    for batches in cursor.read_on(view):
        found += [event for batch in batches for event, _ in events_of(*batch)]
    return found


def test_a_log_ends_where_the_durable_batches_end(bench: Bench) -> None:
    recover(bench.log)
    assert bench.log.start == bench.log.end == bench.log.appended == (0, 0)
    bench.log.append(EVENTS[0])
    assert bench.log.end == (0, 0)
    assert bench.log.appended > bench.log.end
    expected = bench.log.appended
    bench.commit()
    assert bench.log.end == bench.log.appended == expected
    recover(bench.again())
    assert bench.log.end == bench.log.appended == expected
    assert bench.log.start == (0, 0)


def test_a_view_shows_what_was_durable_when_it_was_taken(bench: Bench) -> None:
    recover(bench.log)
    empty = bench.log.view()
    written = fill(bench, 3)
    view = bench.log.view()
    bench.log.append(EVENTS[0])
    assert seen(empty) == []
    assert seen(bench.log.view()) == written
    bench.commit()
    assert seen(view) == written
    assert seen(bench.log.view(), view.end.position) == [EVENTS[0]]


def test_readers_find_batches_by_offset_time_and_position(bench: Bench) -> None:
    recover(bench.log)
    written = fill(bench)
    view = bench.log.view()
    assert view.earliest() == (0, 0)
    assert view.point_of(len(written)) == view.end
    for offset, event in enumerate(written):
        point = view.point_of(offset)
        assert point.offset == offset - offset % 2
        assert view.offset_at(event.time) == offset
        assert view.batch_at(point.position)[0].base_offset == point.offset
        assert view.batch_end(point, offset + 1, 1).offset == point.offset + 2
    assert view.batch_end(view.earliest(), 7, 1 << 20).offset == 8


def test_a_message_is_traced(bench: Bench) -> None:
    recover(bench.log)
    fill(bench)
    bench.log.append(HandedOver(9000, 1, 5, 1005, 1, 0))
    bench.commit()
    tracer = Tracer(Traces(), bench.log.view(), (1, 5))
    while tracer.step():
        pass
    assert [offset for offset, _ in tracer.trace().events] == [4, 24]


def test_a_part_that_is_removed_is_gone_for_readers(bench: Bench) -> None:
    recover(bench.log)
    written = fill(bench)
    old = bench.log.view()
    first, second = old.parts[:2]
    bench.log.remove(first)
    assert bench.log.start == (second.base_offset, second.base_position)
    assert not bench.log.holds(first.base_position)
    assert bench.log.holds(second.base_position)
    for view in (bench.log.view(), old) if isinstance(bench, SegmentBench) else (bench.log.view(),):
        assert seen(view) == written[second.base_offset :]
        with pytest.raises(EventsRemovedError) as removed:
            view.point_of(0)
        assert removed.value.earliest == second.base_offset
    with pytest.raises(AssertionError):
        bench.log.remove(bench.log.view().parts[-1])


# Snapshots


def test_a_snapshot_counts_when_it_is_published_and_only_what_follows_is_replayed(bench: Bench) -> None:
    recover(bench.log)
    fill(bench, 2)
    at = bench.log.appended
    bench.log.write_snapshot([section("engine", b"facts", b"one", b"two")], at, 7000)
    assert not bench.log.snapshots
    bench.log.publish_snapshot(at.offset)
    position = bench.log.append(EVENTS[0])
    bench.commit()
    for _ in range(2):
        (facts,) = bench.log.snapshots
        assert (facts.offset, facts.position, facts.time) == (*at, 7000)
        assert facts.bytes >= len(b"factsonetwo")
        recovered = bench.again().recover()
        assert recovered.sections is not None
        assert [as_bytes(each) for each in recovered.sections] == [("engine", b"facts", [b"one", b"two"])]
        assert list(recovered.events) == [(EVENTS[0], position)]


def as_bytes(found: Section) -> tuple[str, bytes, list[bytes]]:
    kind, facts, columns = found
    return kind, facts, [column.tobytes() for column in columns]


def test_the_newest_snapshot_is_used(bench: Bench) -> None:
    recover(bench.log)
    for number in range(4):
        fill(bench, 1)
        bench.log.write_snapshot([section("engine", b"%d" % number)], bench.log.appended, number)
        bench.log.publish_snapshot(bench.log.appended.offset)
        assert bench.log.snapshots[0].time == number
    recovered = bench.again().recover()
    assert recovered.sections is not None
    assert [facts for _, facts, _ in recovered.sections] == [b"3"]
    assert list(recovered.events) == []


def test_a_log_without_damage_says_so(bench: Bench) -> None:
    recover(bench.log)
    fill(bench)
    assert bench.log.damaged == []
