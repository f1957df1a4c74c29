"""Schedules that are set, paused, run and removed at random, compared with a model that counts ticks one by one.

Now and then the engine is made anew, from the log or from a snapshot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from penstock.engine.engine import Engine
from penstock.limits import SCHEDULE_LATE_SECONDS, SECOND_NS
from penstock.model.answers import Refused, ScheduleDescription
from penstock.model.commands import DeleteQueue
from penstock.model.events import Logged
from penstock.model.schedules import DeleteSchedule, DescribeSchedule, RunSchedule, Schedule, SetSchedule
from tests.support.effort import effort
from tests.support.engine_rig import Rig, state_of

names = st.sampled_from(["one", "two", "three"])
definitions = st.builds(
    Schedule,
    queue=st.sampled_from(["stays", "goes"]),
    body=st.sampled_from([b"a", b"b"]),
    every_ns=st.integers(1, 40).map(lambda seconds: seconds * SECOND_NS),
    start=st.sampled_from([None, 0, 500 * SECOND_NS, 1_100 * SECOND_NS]),
    catch_up=st.sampled_from(["one", "all", "none"]),
    paused=st.booleans(),
)


@dataclass
class Expected:
    definition: Schedule
    next: int
    runs: int = 0
    missed: int = 0

    def until(self, now: int, *, has_queue: bool) -> int:
        """Count the ticks up to now; how many messages that brings."""
        due, last = 0, 0
        while self.next <= now and not self.definition.paused:
            due, last, self.next = due + 1, self.next, self.next + self.definition.every_ns
        if not due:
            return 0
        is_late = now - last > SCHEDULE_LATE_SECONDS * SECOND_NS
        new = {"all": due, "one": 1, "none": int(not is_late)}[self.definition.catch_up] if has_queue else 0
        self.runs += new
        self.missed += due - new
        return new


@dataclass
class Model:
    schedules: dict[str, Expected] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)


class Schedules(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.rig = Rig()
        self.model = Model()
        self.queues = {"stays", "goes"}
        for name in self.queues:
            self.rig.create(name)

    def do(self, command: Any) -> Any:
        """What is due comes first, as in the broker."""
        self.settle()
        return self.rig.do(command)

    def settle(self) -> None:
        now = self.rig.now()
        for name, expected in self.model.schedules.items():
            new = expected.until(now, has_queue=expected.definition.queue in self.queues)
            self.model.messages[name] += new
        if self.rig.next_due <= now:
            self.rig.settle()

    @rule(name=names, definition=definitions)
    def put(self, name: str, definition: Schedule) -> None:
        answer = self.do(SetSchedule(name, definition))
        before = self.model.schedules.get(name)
        if before and before.definition == definition:
            return
        if definition.queue not in self.queues:
            assert isinstance(answer, Refused)
            return
        expected = self.model.schedules.setdefault(name, Expected(definition, 0))
        if before is None or before.definition.timing != definition.timing:
            expected.next = first_tick(definition, self.rig.engine.time)
        expected.definition = definition

    @rule(name=names, paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        if name in self.model.schedules:
            self.put(name, replace(self.model.schedules[name].definition, paused=paused))

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.do(DeleteSchedule(name))
        self.model.schedules.pop(name, None)

    @rule(name=names)
    def run(self, name: str) -> None:
        answer = self.do(RunSchedule(name))
        if not isinstance(answer, Refused):
            self.model.schedules[name].runs += 1
            self.model.messages[name] += 1

    @rule(seconds=st.integers(0, 100))
    def wait(self, seconds: int) -> None:
        self.rig.clock = self.rig.now() + seconds * SECOND_NS
        self.settle()

    @rule(seconds=st.integers(1, 100))
    def set_the_clock_back(self, seconds: int) -> None:
        self.rig.clock -= seconds * SECOND_NS

    @rule()
    def a_queue_goes(self) -> None:
        if "goes" in self.queues:
            self.do(DeleteQueue("goes"))
            self.queues.discard("goes")

    @rule()
    def it_comes_back(self) -> None:
        self.settle()
        if "goes" not in self.queues:
            self.rig.create("goes")
            self.queues.add("goes")

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        engine: Engine = self.rig.restored() if from_snapshot else self.rig.replayed()
        assert state_of(engine) == state_of(self.rig.engine)
        assert engine.schedules.next_due == self.rig.engine.schedules.next_due
        self.rig.engine = engine

    @invariant()
    def the_engine_agrees_with_the_model(self) -> None:
        assert [*self.rig.engine.schedules.by_name] == [*self.model.schedules]
        for name, expected in self.model.schedules.items():
            found = self.rig.engine.decide(DescribeSchedule(name), self.rig.now()).answer
            assert isinstance(found, ScheduleDescription)
            assert (found.definition, found.next) == (expected.definition, expected.next)
            assert (found.runs, found.missed) == (expected.runs, expected.missed)
        senders = Counter(
            self.rig.engine.names.texts[event.sender] for event in self.rig.events if isinstance(event, Logged)
        )
        assert senders == {f"schedule:{name}": count for name, count in self.model.messages.items() if count}


def first_tick(definition: Schedule, now: int) -> int:
    """The first one after now, found by counting."""
    every_ns = definition.every_ns
    tick = now // SECOND_NS * SECOND_NS + every_ns if definition.start is None else definition.start
    while tick <= now:
        tick += every_ns
    return tick


TestSchedules = Schedules.TestCase
TestSchedules.settings = effort(60)
