"""Many schedules in virtual time, on a broker that crashes, whose disk fails and whose clock is set.

What the disk says in the end is compared with a calendar that knows nothing of the engine: it looks at every minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from penstock.broker.recovery import zone_of
from penstock.broker.writer.loop import Loop
from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.answers import Refused
from penstock.model.commands import Command, CreateQueue
from penstock.model.events import Event, Logged, NameDefined, NameForgotten
from penstock.model.schedules import CatchUp, Schedule, ScheduleRan, ScheduleSet, ScheduleSkipped, SetSchedule
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos
from penstock.server.clock import Clock
from penstock.storage.log.batch import HEADER_BYTES, read_header
from penstock.storage.log.decode import events_of
from penstock.storage.memory import MemorySnapshot
from tests.simulation.scheduler import ProcessScheduler, VirtualTime
from tests.support.faulty import Faults, FaultyLog

# Half an hour before the clocks of Berlin change.
STARTS = (datetime(2026, 3, 29, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
FAULTS = Faults(write_fails=0.0005, disk_is_full=0.0005, sync_fails=0.0005)
CATCH_UPS: tuple[CatchUp, ...] = ("all", "all", "all", "one", "none")
LIFE_SECONDS = 60  # About, from one crash to the next, and from one change of the clock to the next.
ABSENT_SECONDS_MAX = 90
JUMP_SECONDS_MAX = 300
FOLLOW_SECONDS = 1


class ScheduleWorld:
    def __init__(self, seed: int, schedules: int) -> None:
        self.random = Random(seed)
        self.time = VirtualTime(self.random, int(STARTS[seed % 2].timestamp()) * SECOND_NS)
        self.crashes = self.failures = self.jumps = 0
        self.disk: list[bytes] = []
        self._off: Nanos = 0  # How wrong the clock of the machine is.
        self._snapshot: MemorySnapshot | None = None
        self._snapshot_waits: int | None = None
        self._faults = Faults()
        self._start()
        for name, settings in (("lasting", QueueSettings()), ("short", QueueSettings(retention_ns=30 * SECOND_NS))):
            self._ask(CreateQueue(name, settings))
        for number in range(schedules):
            self._ask(SetSchedule(f"s{number}", self._any_schedule(number)))
        self._until(self.time.now + 2 * SECOND_NS)

    def _ask(self, command: Command) -> None:
        self.loop.submit(command, _accepted)

    def _any_schedule(self, number: int) -> Schedule:
        random = self.random
        catch_up = random.choice(CATCH_UPS)
        target: dict[str, Any] = {"queue": random.choice(["lasting", "short"])}
        if number % 10 == 0:
            target = {"topics": ("topical.a",), "object": "topical"}
        if random.random() < 0.6:
            timing: dict[str, Any] = {"every_ns": random.randint(7, 600) * SECOND_NS}
        else:
            zone = random.choice(["UTC", "Europe/Berlin", "Asia/Kathmandu"])
            timing = {"cron": f"*/{random.randint(1, 12)} * * * *", "time_zone": zone}
        return Schedule(body=b"%d" % number, catch_up=catch_up, **target, **timing)

    # ── The broker's life ───────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self.process = ProcessScheduler(self.time, self.random)
        self.clock = Clock(lambda: self.time.now + self._off, lambda: self.time.now)
        engine, self.log = self._recover()
        self.clock.go_on_after(engine.time)
        self.loop = Loop(engine, self.log, self.clock, self.process, wall=self.clock.wall)
        self.loop.on_failure = self._failed
        self.loop.on_commit.append(self._committed)
        self._follow()

    def _recover(self) -> tuple[Engine, FaultyLog]:
        log = FaultyLog(self.process.disk_after, self.random, self._faults, self.disk, self._snapshot)
        engine = Engine(zones=zone_of)
        recovered = log.recover()
        if recovered.sections is not None:
            engine.restore(recovered.sections)
        for event, position in recovered.events:
            engine.evolve(event, position)
        self._snapshot_waits = None
        return engine, log

    def _follow(self) -> None:
        if self.clock.follow():
            self.loop.rearm()
        self.process.after(FOLLOW_SECONDS * SECOND_NS, self._follow)

    def _committed(self) -> None:
        if self._snapshot_waits is not None and self.log.end.offset >= self._snapshot_waits:
            self.log.publish_snapshot(self._snapshot_waits)
            self._snapshot, self._snapshot_waits = self.log.snapshot, None
        if self._snapshot_waits is None and self.random.random() < 0.002:
            self._snapshot_waits = self.log.appended.offset
            self.log.write_snapshot(self.loop.engine.sections(), self.log.appended, self.time.now)

    def _failed(self, _: BaseException) -> None:
        self.failures += 1
        self.process.after(self.random.randint(1, 20 * SECOND_NS), self._revive)

    def _revive(self) -> None:
        self.log.abandon()
        engine, self.log = self._recover()
        self.loop.revive(engine, self.log)

    def _crash(self) -> None:
        """The power fails, and is back after a while. Meanwhile somebody may set the clock."""
        self.crashes += 1
        self.process.alive = False
        self.log.crash()
        self._until(self.time.now + self.random.randint(0, ABSENT_SECONDS_MAX) * SECOND_NS)
        if self.random.random() < 0.5:
            self._set_clock()
        self._start()

    def _set_clock(self) -> None:
        self.jumps += 1
        self._off = self.random.randint(-JUMP_SECONDS_MAX, JUMP_SECONDS_MAX) * SECOND_NS

    # ── Running ─────────────────────────────────────────────────────────────────────────────────────────────

    def live(self, seconds: int) -> None:
        self._faults = self.log.faults = FAULTS
        end = self.loop.now() + seconds * SECOND_NS
        while self.loop.now() < end:
            self._until(self.time.now + int(self.random.expovariate(2 / LIFE_SECONDS) * SECOND_NS))
            self.random.choice([self._crash, self._set_clock])()
        self._faults = self.log.faults = Faults()
        while self.loop.failure or self.loop.engine.schedules.next_due <= self.loop.wall() or not self.loop.idle:
            assert self.time.step()

    def _until(self, end: Nanos) -> None:
        self.time.at(end, lambda: None)
        while self.time.now < end:
            assert self.time.step()

    # ── What the disk says ──────────────────────────────────────────────────────────────────────────────────

    def check(self) -> int:
        """Each tick has one message, or is counted as missed. Returns the number of messages."""
        told = Told(self.disk)
        now, schedules = self.loop.wall(), self.loop.engine.schedules.by_name
        assert told.defined.keys() == schedules.keys()
        for name, (definition, first) in told.defined.items():
            planned = schedules[name]
            due = [tick for tick in ticks_of(definition, first, planned.next) if tick < planned.next]
            assert now < planned.next < NEVER_NS, f"{name} is late"
            published = told.published[name]
            assert (planned.runs, planned.missed) == (len(published), told.missed[name]), name
            if definition.catch_up == "all":
                assert published == due, f"{name}: {definition}"
            else:
                assert published == sorted({*published} & {*due}), f"{name}: {definition}"
                assert len(published) + told.missed[name] == len(due), f"{name}: {definition}"
        return sum(map(len, told.published.values()))


class Told:
    """What the log tells of schedules: where each began, the ticks that messages were published for, and how many
    were missed. A message and the note of its run are in one batch."""

    def __init__(self, disk: list[bytes]) -> None:
        self.defined: dict[str, tuple[Schedule, Nanos]] = {}
        self.published: dict[str, list[Nanos]] = defaultdict(list)
        self.missed: dict[str, int] = defaultdict(int)
        self._names: dict[int, str] = {}
        for events in batches_of(disk):
            noted = 0
            logged = 0
            for event in events:
                logged += isinstance(event, Logged)
                noted += event.runs if isinstance(event, ScheduleRan) else 0
                self._take(event)
            assert logged == noted, "a message without a note, or a note without a message"

    def _take(self, event: Event) -> None:
        match event:
            case NameDefined():
                self._names[event.number] = event.text
            case NameForgotten():
                del self._names[event.number]
            case ScheduleSet():
                self.defined[event.schedule] = (event.definition, event.next)
            case ScheduleRan() | ScheduleSkipped():
                self.missed[event.schedule] += event.missed
            case Logged():
                name = self._names[event.sender].removeprefix("schedule:")
                headers = msgspec.msgpack.decode(event.headers, type=dict[bytes, bytes])
                tick = datetime.fromisoformat(headers[b"timestamp"].decode())
                self.published[name].append(int(tick.timestamp()) * SECOND_NS)
            case _:
                pass


def batches_of(disk: list[bytes]) -> Iterator[list[Event]]:
    for data in disk:
        header = read_header(data)
        assert header is not None
        yield [event for event, _ in events_of(header, data[HEADER_BYTES:])]


def ticks_of(schedule: Schedule, first: Nanos, end: Nanos) -> list[Nanos]:
    if schedule.every_ns:
        return list(range(first, end, schedule.every_ns))
    step = int(schedule.cron.split()[0].removeprefix("*/"))
    last = datetime.fromtimestamp(end // SECOND_NS, UTC)
    found = [
        int(tick.timestamp()) * SECOND_NS for tick in minutes_of(step, schedule.time_zone, last.year, last.month)
    ]
    return [tick for tick in found if first <= tick < end]


@cache
def minutes_of(step: int, zone: str, year: int, month: int) -> list[datetime]:
    """The instants of the two days at the end of a test's month, by looking at every minute."""
    region, found = ZoneInfo(zone), []
    begin = next(start for start in STARTS if (start.year, start.month) == (year, month)) - timedelta(hours=12)
    before = (begin - timedelta(minutes=1)).astimezone(region)
    for number in range(2 * 1440):
        local = (begin + timedelta(minutes=number)).astimezone(region)
        wall, last = local.replace(tzinfo=None, fold=0), before.replace(tzinfo=None, fold=0)
        skipped = range(1, max(1, int((wall - last) / timedelta(minutes=1))))
        walls = [wall, *(last + timedelta(minutes=minute) for minute in skipped)]
        if not local.fold and any(each.minute % step == 0 for each in walls):
            found.append(begin + timedelta(minutes=number))
        before = local
    return found


def _accepted(answer: object) -> None:
    assert not isinstance(answer, Refused), answer
