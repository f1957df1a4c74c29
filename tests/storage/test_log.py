"""One suite for every log: whoever keeps these claims may serve an engine."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.model.events import Event, Kicked, NameDefined, QueueCreated
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.storage.faulty import Faults, FaultyLog
from penstock.storage.log.segments import SegmentLog
from penstock.storage.memory import MemoryLog
from penstock.storage.port import Log
from tests.support.samples import close_log, logged, open_log, recover

EVENTS: list[Event] = [
    QueueCreated(1, 1, "work", QueueSettings()),
    NameDefined(2, 1, "text/plain"),
    logged(1, b"one", key=b"key", headers=b"headers"),
    logged(2, b""),
    logged(3, b"three" * 400),
    Kicked(3000, 1, 1, 1001, 1, 0),
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
        self.log = MemoryLog(self.log.durable)
        return self.log


class FaultyBench(Bench):
    def __init__(self, _: Path) -> None:
        self.planned: list[tuple[int, int, Callable[[], None]]] = []
        self.now = 0
        self.random = Random(1)
        self.log: FaultyLog = self.open([])

    def open(self, durable: list[bytes]) -> FaultyLog:
        return FaultyLog(self.after, self.random, Faults(), durable)

    def after(self, delay_ns: int, callback: Callable[[], None]) -> None:
        heapq.heappush(self.planned, (self.now + delay_ns, len(self.planned), callback))

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self.now, _, callback = heapq.heappop(self.planned)
            callback()

    def again(self) -> Log:
        self.log.crash()
        self.log = self.open(self.log.durable)
        return self.log


class SegmentBench(Bench):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: SegmentLog = open_log(path, segment_bytes=1024)

    def wait(self, until: Callable[[], bool]) -> None:
        # The writer takes its jobs in order, and stops behind the last one.
        self.log._writer.jobs.put(None)
        assert self.log._writer._thread is not None
        self.log._writer._thread.join(30)
        assert until()
        self.log._writer.start(self.log.end.position)

    def again(self) -> Log:
        close_log(self.log)
        self.log = open_log(self.path, segment_bytes=1024)
        return self.log

    def close(self) -> None:
        close_log(self.log)


LOGS: dict[str, Callable[[Path], Bench]] = {"memory": MemoryBench, "faulty": FaultyBench, "segments": SegmentBench}


@pytest.fixture(params=LOGS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
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
