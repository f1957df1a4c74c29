"""What crosses shards arrives once, whatever crashes in between."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Delivery, Discarded, Done, Location, Parcels, Redriven, Refused
from penstock.model.commands import (
    CreateQueue,
    Criteria,
    Delete,
    DeleteQueue,
    Fetch,
    Finish,
    NewMessage,
    PublishTopics,
    Redrive,
    Search,
    Settle,
    UpdateQueue,
)
from penstock.model.courier_commands import CheckDeadLetterQueue, Locate
from penstock.model.kinds import Kind
from penstock.model.schedules import Schedule, SetSchedule
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Cursor
from tests.support.courier_rig import NEW_QUEUE, CourierRig
from tests.support.effort import effort
from tests.support.engine_rig import copied_sections

HOMES = {"a": 0, "b": 1, "all": 1, "dead": 1, "sweet": 2, "far": 2, "_audit": 0}


def rig() -> CourierRig:
    """Queues `a` and `b`, channels `all` and `sweet`, and `dead` for messages of `a` that failed, in three shards."""
    made = CourierRig(HOMES)
    made.create("dead")
    made.create("a", redrive_policy=RedrivePolicy(1, "dead"), visibility_ns=SECOND_NS)
    made.create("b")
    made.create("all", topics=("*",))
    made.create("sweet", topics=("a.sweet", "b.sweet.*"))
    return made


def about(body: bytes, *topics: str, **more: Any) -> NewMessage:
    return NewMessage(body, topics=topics, **more)


def fail(shards: CourierRig, queue: str = "a") -> Delivery:
    """Deliver a message, and give it back."""
    [delivery] = shards.of(queue).fetch(queue)
    shards.of(queue).do(Settle(delivery.queue, delivery.sequence, "retry"))
    return delivery


def only(body: bytes) -> Counter[bytes]:
    return Counter([body])


# ── Copies ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_channel_of_another_shard_has_each_message_once() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.sweet"), about(b"2", "a.sour"), about(b"3", "b.sweet.very"))
    shards.run_all()
    assert shards.bodies("sweet") == Counter([b"1", b"3"])
    assert shards.bodies("all") == Counter([b"1", b"2", b"3"])


def test_a_further_queue_of_another_shard_is_created_and_has_the_message() -> None:
    shards = rig()
    [answer] = cast("Any", shards.do("a", PublishTopics([about(b"1", "a.x", "b.y", "far.z")], NEW_QUEUE)))
    assert answer.queues == ("a", "b", "far")
    shards.run_all()
    assert shards.bodies("b") == shards.bodies("far") == only(b"1")


def test_a_copy_has_everything_that_its_original_has() -> None:
    shards = rig()
    names = {"content_type": "text/plain", "sender": "me", "object": "apple", "key": b"7", "headers": b"{}"}
    shards.publish(about(b"1", "a.sweet", **names, priority=3, lease_ns=5 * SECOND_NS))
    shards.run_all()
    [copy] = shards.of("sweet").fetch("sweet")
    found = (copy.content_type, copy.sender, copy.object, copy.key, copy.headers)
    assert found == tuple(names.values())
    [original] = shards.of("a").fetch("a")
    assert (copy.topics, copy.priority, copy.created) == ("a.sweet", 3, original.created)
    assert copy.visible_at - shards.of("sweet").engine.time == 5 * SECOND_NS


def test_many_messages_of_one_publish_are_one_promise() -> None:
    shards = rig()
    messages = [about(b"%d" % each, "a.sweet") for each in range(100)]
    shards.do("a", PublishTopics(messages, NEW_QUEUE))
    assert [event.kind for event in shards.of("a").events].count(Kind.ROUTED) == 1
    shards.run_all()
    assert shards.bodies("sweet") == Counter(b"%d" % each for each in range(100))


@pytest.mark.parametrize("ahead", [0, 3600, -500])
def test_a_delay_and_a_lifetime_of_the_message_hold_for_its_copies_whatever_the_clock_there(ahead: int) -> None:
    shards = rig()
    shards.of("late").clock += ahead * SECOND_NS
    shards.create("late", topics=("a.late",), delay_ns=50 * SECOND_NS)
    shards.publish(about(b"own", "a.late", delay_ns=10 * SECOND_NS, expires_ns=20 * SECOND_NS), about(b"2", "a.late"))
    shards.run_all()
    late = shards.of("late")
    late.wait(11)
    assert late.bodies("late") == [b"own"]
    late.wait(10)
    assert shards.has("late") == 1
    late.wait(30)
    assert late.bodies("late") == [b"2"]


def test_unchanged_content_goes_only_to_queues_that_want_it() -> None:
    shards = rig()
    same = about(b"same", "a.sweet", "b.sweet", object="o", key=b"k")
    shards.publish(same, same)
    shards.run_all()
    assert shards.bodies("sweet") == shards.bodies("all") == only(b"same")
    assert shards.bodies("b") == Counter({b"same": 2})


def test_a_queue_that_deduplicates_has_each_content_once() -> None:
    shards = rig()
    shards.create("once", topics=("a.*",), deduplication=True)
    shards.publish(about(b"1", "a.x"), about(b"1", "a.y"))
    shards.run_all()
    shards.publish(about(b"1", "a.z"))
    shards.run_all()
    assert shards.bodies("once") == only(b"1")


def test_an_answer_for_channels_that_have_changed_is_discarded() -> None:
    shards = rig()
    source, target = shards.of("a"), shards.of("sweet")
    asked = target.question(0)
    shards.create("new", topics=("a.new",))
    shards.publish(about(b"1", "a.new"))
    answer = source.owes(2, asked[0], asked[1])
    expected = Done if shards.of("new") is not target else Discarded
    assert isinstance(target.admit(0, asked, answer), expected)
    shards.run_all()
    assert shards.bodies("new") == only(b"1")


def test_a_publish_to_one_queue_alone_goes_nowhere_else() -> None:
    shards = rig()
    shards.do("a", PublishTopics([about(b"1", "a.sweet")], NEW_QUEUE, "a"))
    shards.run_all()
    assert not shards.bodies("sweet")


def test_a_store_with_one_shard_logs_nothing_for_others() -> None:
    shards = CourierRig({}, shards=1)
    shards.create("all", topics=("*",))
    shards.publish(about(b"1", "a.sweet", "b.sweet"))
    kinds = {event.kind for event in shards.of("a").events}
    assert not kinds & {Kind.ROUTED, Kind.SENT, Kind.COLLECTED}
    assert "couriers" not in [kind for kind, *_ in copied_sections(shards.of("a").engine)]


# ── Messages that are moved ───────────────────────────────────────────────────────────────────────────────────


def test_a_dead_letter_goes_to_another_shard_and_keeps_its_id() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x", sender="me"))
    failed = fail(shards)
    assert not shards.has("a")
    shards.run_all()
    [dead] = shards.of("dead").fetch("dead")
    assert (dead.queue, dead.sequence, dead.body, dead.sender) == (failed.queue, failed.sequence, b"1", "me")
    assert (dead.receives, dead.created) == (1, failed.created)


def test_the_reason_of_a_dead_letter_goes_with_it() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x"))
    [delivery] = shards.of("a").fetch("a")
    shards.do("a", Settle(delivery.queue, delivery.sequence, "retry", reason=b"no such account\nTraceback"))
    shards.run_all()
    found = cast("Any", shards.do("dead", Search(Criteria(queue="dead", reason="no such*"))))
    assert [each.reason for each in found.messages] == ["no such account"]


def test_a_message_whose_last_consumer_holds_it_can_still_be_finished() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x"))
    [delivery] = shards.of("a").fetch("a")
    shards.run_all()
    assert isinstance(shards.do("a", Finish(delivery.queue, delivery.sequence)), Done)
    shards.run_all()
    assert not shards.has("a") + shards.has("dead")


def test_a_lease_that_runs_out_makes_a_dead_letter_elsewhere() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x"))
    shards.of("a").fetch("a")
    shards.of("a").wait(2)
    shards.run_all()
    assert shards.bodies("dead") == only(b"1")


def test_a_dead_letter_is_moved_back_to_its_queue_in_another_shard() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x"))
    failed = fail(shards)
    shards.run_all()
    assert shards.do("dead", Redrive("dead", [1])) == Redriven(1, 0)
    shards.run_all()
    [again] = shards.of("a").fetch("a")
    assert (again.queue, again.sequence, again.body) == (failed.queue, failed.sequence, b"1")
    assert isinstance(shards.do("a", Finish(again.queue, again.sequence)), Done)
    assert not shards.has("a") + shards.has("dead")


def test_messages_are_moved_to_a_queue_of_another_shard() -> None:
    shards = rig()
    shards.create("far")
    shards.of("b").publish("b", b"1", b"2")
    assert shards.do("b", Redrive("b", [1, 2], to="far")) == Redriven(2, 0)
    shards.run_all()
    assert shards.bodies("far") == Counter([b"1", b"2"])


def test_a_message_is_found_where_it_has_gone() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x"))
    failed = fail(shards)
    where = Locate(failed.queue, failed.sequence)
    assert shards.do("a", where) == Location(False, {1: 1})
    shards.run_all()
    assert shards.do("dead", where) == Location(True, {})
    shards.do("dead", Redrive("dead", [1], to="far"))
    shards.run_all()
    assert shards.do("dead", where) == Location(False, {2: 1})
    assert shards.do("far", where) == Location(True, {})
    assert isinstance(shards.do("far", Delete(failed.queue, failed.sequence)), Done)


def test_a_dead_letter_queue_that_was_deleted_is_created_again_when_one_arrives() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x"))
    fail(shards)
    shards.do("dead", DeleteQueue("dead"))
    shards.run_all()
    assert shards.bodies("dead") == only(b"1")


def test_a_queue_forgets_a_dead_letter_queue_elsewhere() -> None:
    shards = rig()
    wait_a_second(shards)
    shards.do("dead", DeleteQueue("dead"))
    assert policy_of(shards) == "dead"
    shards.run_all()
    assert policy_of(shards) == ""


def test_a_queue_that_names_it_again_before_it_hears_of_that_is_left_alone() -> None:
    shards = rig()
    wait_a_second(shards)
    shards.do("dead", DeleteQueue("dead"))
    wait_a_second(shards)
    shards.do("dead", CreateQueue("dead", QueueSettings()))
    shards.do("a", UpdateQueue("a", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    shards.run_all()
    assert policy_of(shards) == "dead"


def policy_of(shards: CourierRig) -> str:
    queue = shards.of("a").engine.queue("a")
    assert queue is not None
    policy = queue.settings.redrive_policy
    return policy.dead_letter_queue if policy else ""


def test_a_schedule_that_moved_is_forgotten_where_it_was_whatever_crashes() -> None:
    shards = rig()
    shards.do("a", SetSchedule("nightly", Schedule(every_ns=SECOND_NS, queue="a")))
    shards.run_all()
    wait_a_second(shards)
    shards.do("dead", SetSchedule("nightly", Schedule(every_ns=SECOND_NS, queue="dead")))
    for shard in shards.shards:
        shard.commit()
        shard.crash()
    assert schedules_of(shards) == {"a", "dead"}
    shards.run_all()
    assert schedules_of(shards) == {"dead"}


def test_a_schedule_that_moved_back_stays_there() -> None:
    shards = rig()
    here, there = Schedule(every_ns=SECOND_NS, queue="a"), Schedule(every_ns=SECOND_NS, queue="dead")
    shards.do("a", SetSchedule("nightly", here))
    shards.run_all()
    for wanted in (there, here):
        wait_a_second(shards)
        shards.do(wanted.queue, SetSchedule("nightly", wanted))
    shards.run_all()
    assert schedules_of(shards) == {"a"}


def wait_a_second(shards: CourierRig) -> None:
    for shard in shards.shards:
        shard.clock = shard.now() + SECOND_NS


def schedules_of(shards: CourierRig) -> set[str]:
    """The queues in whose shards it is."""
    return {name for name in ("a", "dead") if "nightly" in shards.of(name).engine.schedules.by_name}


def test_a_dead_letter_queue_is_checked_where_it_is() -> None:
    shards = rig()
    assert shards.do("dead", CheckDeadLetterQueue("dead")) == Done()
    refused = shards.do("dead", CheckDeadLetterQueue("none"))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.NO_DEAD_LETTER_QUEUE


def test_an_outbox_is_emptied_when_the_target_has_the_messages() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x"), about(b"2", "a.x"))
    fail(shards)
    shards.run_all()
    fail(shards)
    outbox = shards.of("a").engine.couriers.outboxes[1]
    assert [each.serial for each in outbox.messages.values()] == [2]
    shards.run_all()
    assert not shards.of("a").engine.couriers.outboxes[1].messages


def test_the_names_of_a_message_that_has_left_are_not_needed_any_more() -> None:
    shards = rig()
    shards.publish(about(b"1", "a.x", sender="somebody", content_type="text/plain"))
    fail(shards)
    owed = shards.of("a").engine.couriers.outboxes[1].messages[1]
    assert (owed.sender, owed.content_type, owed.topics, owed.origin) == ("somebody", "text/plain", "a.x", "a")


# ── Crashes ───────────────────────────────────────────────────────────────────────────────────────────────────


def busy(shards: CourierRig) -> Counter[str]:
    """Copies, a dead letter and a moved message, all of them still owed. How often each queue is to have one."""
    shards.create("far")
    shards.publish(about(b"copy", "a.sweet"))
    fail(shards)
    shards.of("b").publish("b", b"moved")
    shards.do("b", Redrive("b", [1], to="far"))
    for each in shards.shards:
        each.commit()
    return Counter({"all": 1, "sweet": 1, "dead": 1, "far": 1})


def holds(shards: CourierRig, expected: Counter[str]) -> bool:
    return Counter({name: shards.has(name) for name in ("all", "sweet", "dead", "far")}) == expected


STEPS = ["asked", "answered", "admitted", "committed"]


@pytest.mark.parametrize(("step", "victim"), list(product(STEPS, ["source", "target", "both"])))
@pytest.mark.parametrize(("source", "target"), [(0, 1), (0, 2), (1, 2)])
def test_a_crash_after_any_step_loses_and_repeats_nothing(step: str, victim: str, source: int, target: int) -> None:
    shards = rig()
    expected = busy(shards)
    there, here = shards.shards[source], shards.shards[target]
    victims = {"source": [there], "target": [here], "both": [there, here]}[victim]
    asked, answer = here.question(source), Parcels(Cursor(0, 0), 0, [])
    for at, work in enumerate(("asked", "answered", "admitted", "committed")):
        if work == "answered":
            answer = there.owes(target, asked[0], asked[1])
        elif work == "admitted":
            here.admit(source, asked, answer)
        elif work == "committed":
            here.commit()
        if STEPS[at] == step:
            for each in victims:
                each.crash()
            break
    shards.run_all()
    assert holds(shards, expected)


def test_an_answer_that_comes_twice_counts_once() -> None:
    shards = rig()
    expected = busy(shards)
    asked = shards.shards[1].question(0)
    answer = shards.shards[0].owes(1, asked[0], asked[1])
    assert isinstance(shards.shards[1].admit(0, asked, answer), Done)
    assert isinstance(shards.shards[1].admit(0, asked, answer), Discarded)
    shards.run_all()
    assert holds(shards, expected)


def test_an_answer_with_a_gap_before_it_is_discarded() -> None:
    shards = rig()
    question = (Cursor(5, 0), *shards.shards[1].question(0)[1:])
    assert isinstance(shards.shards[1].admit(0, question, Parcels(Cursor(9, 0), 0, [])), Discarded)


def test_a_snapshot_holds_cursors_and_what_is_owed() -> None:
    shards = rig()
    expected = busy(shards)
    shards.run(0, 1)
    for each in shards.shards:
        each.take_snapshot()
        each.crash()
    shards.run_all()
    assert holds(shards, expected)
    for each in shards.shards:
        each.commit()
        each.take_snapshot()
        before = each.engine.couriers
        each.crash()
        after = each.engine.couriers
        assert (before.cursors, before.outboxes, before.origins, before.away) == (
            after.cursors,
            after.outboxes,
            after.origins,
            after.away,
        )


actions = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(["a.sweet", "a.sour", "b.sweet.x"])),
    st.tuples(st.just("fail"), st.just("a")),
    st.tuples(st.just("redrive"), st.sampled_from(["", "far"])),
    st.tuples(st.just("ask"), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    st.tuples(st.just("answer"), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    st.tuples(st.just("admit"), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    st.tuples(st.just("commit"), st.integers(0, 2)),
    st.tuples(st.just("crash"), st.integers(0, 2)),
    st.tuples(st.just("snapshot"), st.integers(0, 2)),
)


@effort(200)
@given(st.lists(actions, max_size=60))
def test_whatever_happens_in_whatever_order_each_channel_has_each_message_once(script: list[tuple[str, Any]]) -> None:
    """Messages are acknowledged when they are committed; every step of a courier may be repeated, or never come."""
    shards = rig()
    published: list[tuple[bytes, str]] = []
    asked: dict[tuple[int, int], Any] = {}
    answers: dict[tuple[int, int], list[tuple[Any, Parcels]]] = {}
    for each in shards.shards:
        each.commit()
    for what, which in script:
        if what == "publish":
            body = b"%d" % len(published)
            shards.publish(about(body, which))
            shards.of(which[0]).commit()
            published.append((body, which))
        elif what == "fail":
            for delivery in shards.of("a").fetch("a"):
                shards.do("a", Settle(delivery.queue, delivery.sequence, "retry"))
            shards.of("a").commit()
        elif what == "redrive":
            shards.do("dead", Redrive("dead", list(range(1, 10)), to=which))
            shards.of("dead").commit()
        elif what == "commit":
            shards.shards[which].commit()
        elif what == "crash":
            shards.shards[which].crash()
        elif what == "snapshot":
            shards.shards[which].commit()
            shards.shards[which].take_snapshot()
        elif which[0] != which[1]:
            source, target = which
            if what == "ask":
                asked[which] = shards.shards[target].question(source)
            elif what == "answer" and which in asked:
                cursor, patterns, _ = asked[which]
                answer = shards.shards[source].owes(target, cursor, patterns)
                answers.setdefault(which, []).append((asked[which], answer))
            elif what == "admit" and answers.get(which):
                shards.shards[target].admit(source, *answers[which][-1])
    shards.run_all(4)
    assert shards.bodies("all") == Counter(body for body, _ in published)
    assert shards.bodies("sweet") == Counter(body for body, topic in published if "sweet" in topic)
    wandering = shards.bodies("a") + shards.bodies("dead") + shards.bodies("far")
    assert wandering == Counter(body for body, topic in published if topic.startswith("a"))


def test_a_fetch_elsewhere_is_not_needed_for_the_settings_of_a_queue() -> None:
    """A dead-letter queue of another shard may not exist there: it is created for the first message."""
    shards = CourierRig(HOMES)
    shards.create("a", redrive_policy=RedrivePolicy(1, "dead"))
    shards.of("a").publish("a", b"1")
    fail(shards)
    shards.run_all()
    assert shards.bodies("dead") == only(b"1")
    assert isinstance(shards.do("dead", Fetch("dead")), list)
    assert shards.of("dead").describe("dead").settings == QueueSettings()
