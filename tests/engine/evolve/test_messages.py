"""Runs of messages that are fetched and finished together: the same state as one by one, in two events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN, SECOND_NS
from penstock.model.answers import Delivery, Done, Refused
from penstock.model.commands import CreateQueue, Finish, FinishMany, NewMessage, Settle
from penstock.model.events import (
    Event,
    FetchedRun,
    HandedOverRun,
    MessageRun,
    SucceededRun,
)
from penstock.model.kinds import State
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.effort import effort
from tests.support.engine_rig import Rig, state_of

BODIES = st.lists(st.binary(max_size=40), min_size=RUN_MESSAGES_MIN, max_size=90)
SETTINGS = st.builds(
    QueueSettings,
    delay_ns=st.sampled_from([0, 5_000]),
    retention_ns=st.sampled_from([NEVER_NS, 1_000_000]),
)


def filled(count: int = 100, **settings: Any) -> Rig:
    rig = Rig()
    rig.create("work", **settings)
    rig.publish("work", *[b"%d" % index for index in range(count)])
    rig.events.clear()
    return rig


def runs(rig: Rig) -> list[type[Event]]:
    """The kinds of runs that were applied, and none of anything else."""
    assert all(isinstance(event, MessageRun) for event in rig.events), rig.events
    return [type(event) for event in rig.events]


def check(rig: Rig) -> None:
    """The log, which knows no runs, and a snapshot give the same state."""
    assert state_of(rig.replayed()) == state_of(rig.engine) == state_of(rig.restored())
    queue = rig.engine.queues[1]
    lined_up = sum(line.live for line in queue._ready.values())
    assert lined_up == queue.ready
    assert queue.rows.count == queue.ready + queue.leases.live + queue.delayed.live


@pytest.mark.parametrize("retention_ns", [NEVER_NS, 10**15])
def test_many_are_fetched_and_finished_in_two_events(retention_ns: int) -> None:
    rig = filled(retention_ns=retention_ns)
    deliveries = rig.fetch("work", 100)
    assert [delivery.body for delivery in deliveries] == [b"%d" % index for index in range(100)]
    assert {delivery.receives for delivery in deliveries} == {1}
    check(rig)
    answers = rig.do(FinishMany([Finish(each.queue, each.sequence, delivery=1) for each in deliveries[::-1]]))
    assert answers == [Done()] * 100
    assert runs(rig) == [FetchedRun, SucceededRun]
    assert rig.counts("work") == (0, 0, 0)
    assert rig.engine.queues[1].lifetimes.live == rig.engine.queues[1].lifetimes.entries == 0
    check(rig)


def test_many_are_popped_in_one_event() -> None:
    rig = filled(retention_ns=10**15)
    assert rig.bodies("work", 60, confirm=False) == [b"%d" % index for index in range(60)]
    assert runs(rig) == [HandedOverRun]
    assert rig.counts("work") == (40, 0, 0)
    check(rig)


def test_a_lease_of_a_run_ends_at_its_time() -> None:
    rig = filled(visibility_ns=5 * SECOND_NS)
    rig.fetch("work", 50)
    rig.fetch("work", 50, lease_ns=60 * SECOND_NS)
    rig.wait(6)
    assert rig.counts("work") == (50, 50, 0)
    assert [delivery.receives for delivery in rig.fetch("work", 50)] == [2] * 50
    check(rig)


def test_a_run_takes_the_lease_that_its_messages_have_in_common() -> None:
    rig = Rig()
    rig.create("work")
    rig.publish("work", *[NewMessage(b"x", lease_ns=7 * SECOND_NS)] * 20, *[NewMessage(b"y")] * 20)
    rig.events.clear()
    (leases,) = {delivery.visible_at - rig.engine.time for delivery in rig.fetch("work", 20)}
    assert leases == 7 * SECOND_NS
    assert runs(rig) == [FetchedRun]


def test_messages_with_different_leases_are_fetched_one_by_one() -> None:
    rig = Rig()
    rig.create("work", visibility_ns=9 * SECOND_NS)
    rig.publish("work", *[NewMessage(b"x", lease_ns=7 * SECOND_NS)] * 20, *[NewMessage(b"y")] * 20)
    rig.events.clear()
    deliveries = rig.fetch("work", 40)
    assert [delivery.visible_at - rig.engine.time for delivery in deliveries] == [7 * SECOND_NS] * 20 + [
        9 * SECOND_NS
    ] * 20
    assert len(rig.events) == 40
    check(rig)


def test_the_last_receive_before_the_dead_letters_is_never_part_of_a_run() -> None:
    rig = Rig()
    rig.create("dead")
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"))
    rig.publish("work", *[b"x"] * 30)
    assert len(rig.fetch("work", 30)) == 30
    assert rig.describe("dead").messages == 30


@pytest.mark.parametrize("gone", [0, 13, 29])
def test_finishing_many_tells_each_what_became_of_it(gone: int) -> None:
    rig = filled(30)
    deliveries = rig.fetch("work", 30)
    rig.finish(deliveries[gone])
    twice = [*deliveries, deliveries[(gone + 1) % 30]]
    answers = rig.do(FinishMany([Finish(each.queue, each.sequence) for each in twice]))
    assert isinstance(answers, list)
    refused = [index for index, answer in enumerate(answers) if isinstance(answer, Refused)]
    assert refused == [gone, 30]
    assert rig.counts("work") == (0, 0, 0)
    check(rig)


def test_a_lease_that_ran_out_cannot_finish_among_many() -> None:
    rig = filled(30, visibility_ns=SECOND_NS)
    first = rig.fetch("work", 30)
    rig.wait(2)
    rig.fetch("work", 15)
    answers = rig.do(FinishMany([Finish(each.queue, each.sequence, delivery=each.receives) for each in first]))
    assert answers == [Refused(Reason.LEASE_GONE)] * 30
    assert rig.counts("work") == (15, 15, 0)


class Traffic(RuleBasedStateMachine):
    """Any mix of runs and single steps leaves what the log alone leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.held: list[Delivery] = []

    @initialize(settings=st.builds(QueueSettings, retention_ns=st.sampled_from([NEVER_NS, 3 * SECOND_NS])))
    def create(self, settings: QueueSettings) -> None:
        self.rig.do(CreateQueue("work", settings))

    @rule(count=st.integers(1, 70), priority=st.integers(0, 1), lease=st.sampled_from([None, SECOND_NS]))
    def publish(self, count: int, priority: int, lease: int | None) -> None:
        self.rig.publish("work", *[NewMessage(b"m", priority=priority, lease_ns=lease)] * count)

    @rule(count=st.integers(1, 90), confirm=st.booleans())
    def fetch(self, count: int, confirm: bool) -> None:
        ready = self.rig.describe("work").ready
        deliveries = self.rig.fetch("work", count, confirm=confirm)
        assert len(deliveries) == min(count, ready)
        self.held += deliveries if confirm else []

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.held:
            start = data.draw(st.integers(0, len(self.held) - 1))
            stop = data.draw(st.integers(start, len(self.held)))
            some = data.draw(st.permutations(self.held[start:stop])) if stop - start < 40 else self.held[start:stop]
            self.rig.do(FinishMany([Finish(each.queue, each.sequence, delivery=each.receives) for each in some]))
            del self.held[start:stop]

    @rule(seconds=st.sampled_from([0.1, 1.1]))
    def wait(self, seconds: float) -> None:
        self.rig.wait(seconds)

    @invariant()
    def the_log_agrees(self) -> None:
        if self.rig.engine.queues:
            self.rig.settle()
            check(self.rig)


Traffic.TestCase.settings = effort(60)
test_any_traffic_leaves_what_the_log_leaves = Traffic.TestCase


def test_a_replay_knows_that_nobody_holds_a_dead_letter_whose_time_has_come() -> None:
    rig = Rig()
    rig.create("dead", keep="all")
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"))
    rig.publish("work", b"x")
    rig.fetch("work", consumer="me", lease_ns=SECOND_NS)
    rig.wait(2)
    rig.do(Settle(2, 1, "invalid"))
    row = rig.engine.queues[1].rows.get(1)
    assert row is not None
    assert (State(row.state), row.consumer) == (State.KEPT, 0)
    assert state_of(rig.replayed()) == state_of(rig.engine)
