"""What the engine promises, one claim a test."""

from __future__ import annotations

import pytest

from penstock.engine.engine import DECIDE, EVOLVE, Engine
from penstock.errors import Reason
from penstock.limits import NEVER_NS, QUEUES_MAX, SECOND_NS, TICK_EVENTS_MAX
from penstock.model.answers import Done, QueueDescription, QueueList, Refused
from penstock.model.commands import (
    Carry,
    Command,
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    Fetch,
    Finish,
    ListQueues,
    NewMessage,
    Publish,
    PublishInTurn,
    Release,
    Settle,
    Tick,
    UpdateQueue,
)
from penstock.model.events import (
    DeadLettered,
    Event,
    Expired,
    Failed,
    Fetched,
    HandedOver,
    Logged,
    NameDefined,
    QueueChanged,
    QueueRemoved,
    Rescheduled,
    Retried,
    Succeeded,
    TimedOut,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.engine_rig import Rig, state_of

DONE = Done()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def with_dead_letters(rig: Rig, *, max_receives: int = 1, **settings: object) -> None:
    """A queue `work` whose dead letters go to `dead`."""
    rig.create("dead")
    rig.create("work", redrive_policy=RedrivePolicy(max_receives, "dead"), **settings)


# ── Dispatch ──────────────────────────────────────────────────────────────────────────────────────────────


def subclasses(base: type) -> set[type]:
    below: set[type] = set(base.__subclasses__())
    return below.union(*map(subclasses, below))


def test_every_command_has_a_decision() -> None:
    assert DECIDE.keys() == subclasses(Command) - {PublishInTurn}  # The writer decides its parts one by one.


def test_every_event_has_a_change() -> None:
    assert EVOLVE.keys() == {event for event in subclasses(Event) if "kind" in vars(event)}


# ── Queues ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_queue_is_empty(rig: Rig) -> None:
    seen = rig.create("work", retries=3)
    assert (seen.name, seen.settings.retries, seen.messages, seen.last_sequence) == ("work", 3, 0, 0)
    assert rig.describe("work") == seen


def test_a_name_is_given_to_one_queue(rig: Rig) -> None:
    rig.create("work", retries=1)
    assert rig.do(CreateQueue("work", QueueSettings())) == Refused(Reason.QUEUE_EXISTS, "work")
    assert rig.describe("work").settings.retries == 1


def test_every_setting_survives_creation_change_replay_and_snapshot(rig: Rig) -> None:
    rig.create("dead")
    first = QueueSettings(
        redrive_policy=RedrivePolicy(7, "dead"),
        retention_ns=11,
        visibility_ns=12,
        delay_ns=13,
        deduplication=True,
        retries=14,
        confirmations=15,
        detect_unchanged=True,
        keep="all",
    )
    rig.do(CreateQueue("work", first))
    assert rig.describe("work").settings == first
    second = QueueSettings(retention_ns=21, visibility_ns=22, delay_ns=23, retries=24, confirmations=25)
    rig.do(UpdateQueue("work", second))
    rig.do(CreateQueue("other", first))
    for engine in (rig.engine, rig.replayed(), rig.restored()):
        assert [queue.settings for queue in engine.queues.values()] == [QueueSettings(), second, first]


def test_an_update_answers_with_the_queue_as_it_is_now(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one", b"two")
    answer = rig.do(UpdateQueue("work", QueueSettings(retries=2)))
    assert isinstance(answer, QueueDescription)
    assert (answer.messages, answer.ready, answer.last_sequence, answer.settings.retries) == (2, 2, 2, 2)


def test_an_update_may_change_some_settings_and_leave_the_others(rig: Rig) -> None:
    rig.create("work", keep="all", retries=3, visibility_ns=5)
    answer = rig.do(UpdateQueue("work", QueueSettings(visibility_ns=9, retries=1), ("visibility_ns",)))
    assert isinstance(answer, QueueDescription)
    assert answer.settings == rig.describe("work").settings == QueueSettings(keep="all", retries=3, visibility_ns=9)


def test_a_changed_visibility_timeout_counts_for_the_next_delivery_only(rig: Rig) -> None:
    rig.create("work", visibility_ns=10 * SECOND_NS)
    rig.publish("work", b"one", b"two")
    rig.fetch("work")
    rig.do(UpdateQueue("work", QueueSettings(visibility_ns=1 * SECOND_NS)))
    rig.fetch("work")
    rig.wait(2)
    assert rig.bodies("work") == [b"two"]


@pytest.mark.parametrize("command", [CreateQueue, UpdateQueue])
def test_a_policy_needs_a_dead_letter_queue_that_exists(rig: Rig, command: type[CreateQueue | UpdateQueue]) -> None:
    if command is UpdateQueue:
        rig.create("work")
    settings = QueueSettings(redrive_policy=RedrivePolicy(1, "nowhere"))
    assert rig.do(command("work", settings)) == Refused(Reason.NO_DEAD_LETTER_QUEUE, "nowhere")


@pytest.mark.parametrize(
    "command",
    [
        UpdateQueue("none", QueueSettings()),
        DeleteQueue("none"),
        DescribeQueue("none"),
        Publish("none", [NewMessage(b"")]),
        Fetch("none"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_queue_that_is_not_there_is_refused_by_name(rig: Rig, command: Publish) -> None:
    assert rig.do(command) == Refused(Reason.NO_QUEUE, "none")
    assert not rig.events


def test_a_deleted_queue_answers_with_what_it_was_and_is_gone(rig: Rig) -> None:
    rig.create("work")
    receipts = rig.publish("work", b"one", b"two")
    before = rig.describe("work")
    assert rig.do(DeleteQueue("work")) == before
    assert isinstance(rig.events[-1], QueueRemoved)
    assert rig.do(DescribeQueue("work")) == Refused(Reason.NO_QUEUE, "work")
    assert rig.finish(receipts[0]) == Refused(Reason.NO_MESSAGE)


def test_a_queue_made_again_is_another_queue(rig: Rig) -> None:
    rig.create("work")
    [old] = rig.publish("work", b"old")
    rig.do(DeleteQueue("work"))
    rig.create("work")
    [new] = rig.publish("work", b"new")
    assert new.queue != old.queue
    assert new.sequence == 1
    assert rig.finish(old) == Refused(Reason.NO_MESSAGE)
    assert rig.bodies("work") == [b"new"]


def test_deleting_a_dead_letter_queue_clears_the_policies_that_name_it(rig: Rig) -> None:
    rig.create("dead")
    rig.create("other")
    policy = RedrivePolicy(1, "dead")
    rig.create("first", redrive_policy=policy, retries=3, delay_ns=0, keep="all")
    rig.create("second", redrive_policy=policy)
    rig.create("third", redrive_policy=RedrivePolicy(1, "other"))
    rig.do(DeleteQueue("dead"))
    assert [type(event) for event in rig.events[-3:]] == [QueueChanged, QueueChanged, QueueRemoved]
    assert rig.describe("first").settings == QueueSettings(retries=3, keep="all")
    assert rig.describe("second").settings.redrive_policy is None
    assert rig.describe("third").settings.redrive_policy == RedrivePolicy(1, "other")
    rig.publish("first", b"one")
    rig.fetch("first", lease_ns=SECOND_NS)
    rig.wait(2)
    assert rig.bodies("first") == [b"one"]


def test_queues_are_listed_oldest_first_in_pages(rig: Rig) -> None:
    for name in ("c", "a", "b"):
        rig.create(name)
    rig.publish("a", b"one")
    whole = rig.do(ListQueues())
    assert isinstance(whole, QueueList)
    assert [queue.name for queue in whole.queues] == ["c", "a", "b"]
    assert [queue.messages for queue in whole.queues] == [0, 1, 0]
    page = rig.do(ListQueues(offset=1, limit=1))
    assert isinstance(page, QueueList)
    assert (page.total, [queue.name for queue in page.queues]) == (3, ["a"])
    assert rig.do(ListQueues(offset=3, limit=5)) == QueueList(3, [])
    assert rig.do(ListQueues(offset=0, limit=0)) == QueueList(3, [])


def test_there_are_no_more_queues_than_the_limit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QUEUES_MAX == 100_000
    monkeypatch.setattr("penstock.engine.decide.administer.QUEUES_MAX", 2)
    rig.create("one")
    rig.create("two")
    assert rig.do(CreateQueue("three", QueueSettings())) == Refused(Reason.TOO_MANY_QUEUES, "2")
    rig.do(DeleteQueue("one"))
    rig.create("three")


def test_a_description_tells_the_age_of_the_oldest_message(rig: Rig) -> None:
    rig.create("work")
    first, _ = rig.publish("work", b"one", b"two")
    rig.wait(5)
    rig.publish("work", b"three")
    assert rig.describe("work").oldest_age_ns >= 5 * SECOND_NS
    rig.finish(first)
    assert rig.describe("work").oldest_age_ns >= 5 * SECOND_NS
    for delivery in rig.fetch("work", 3):
        rig.finish(delivery)
    assert rig.describe("work").oldest_age_ns == 0
    assert rig.describe("work").last_sequence == 3


# ── Publishing ────────────────────────────────────────────────────────────────────────────────────────────


def test_sequences_count_from_one_without_gaps_in_each_queue(rig: Rig) -> None:
    rig.create("a")
    rig.create("b")
    assert [receipt.sequence for receipt in rig.publish("a", b"1", b"2")] == [1, 2]
    assert [receipt.sequence for receipt in rig.publish("b", b"1")] == [1]
    rig.fetch("a", 2, confirm=False)
    assert [receipt.sequence for receipt in rig.publish("a", b"3")] == [3]
    assert rig.replayed().queues[1].last_sequence == 3


def test_a_message_is_delivered_as_it_was_published(rig: Rig) -> None:
    rig.create("work")
    message = NewMessage(
        b"body", content_type="text/plain", priority=7, sender="till", key=b"key", headers=b"h: 1", topics=("a", "b")
    )
    rig.publish("work", message, b"")
    whole, empty = rig.fetch("work", 2)
    assert (whole.body, whole.key, whole.headers) == (b"body", b"key", b"h: 1")
    assert (whole.content_type, whole.priority, whole.sender) == ("text/plain", 7, "till")
    [first, _] = [event for event in rig.events if isinstance(event, Logged)]
    assert (whole.receives, whole.created) == (1, first.time)
    assert (empty.body, empty.content_type, empty.sender) == (b"", "", "")


def test_a_name_is_defined_once_also_within_one_batch(rig: Rig) -> None:
    rig.create("work")
    new = [NewMessage(b"", content_type=kind, sender="me") for kind in ("text/a", "text/b", "text/a")]
    rig.publish("work", *new)
    rig.publish("work", *new)
    defined = [event.text for event in rig.events if isinstance(event, NameDefined)]
    assert defined == ["text/a", "me", "text/b"]
    assert [each.content_type for each in rig.fetch("work", 9)] == ["text/a", "text/b", "text/a"] * 2


def test_ready_messages_leave_by_priority_then_time_then_sequence(rig: Rig) -> None:
    rig.create("work")
    for body, priority in [(b"low1", 1), (b"high1", 9), (b"low2", 1), (b"high2", 9), (b"mid", 5)]:
        rig.publish("work", NewMessage(body, priority=priority))
    rig.publish("work", b"zero1", b"zero2")
    assert rig.bodies("work", 3) == [b"high1", b"high2", b"mid"]
    assert [rig.bodies("work", 1) for _ in range(4)] == [[b"low1"], [b"low2"], [b"zero1"], [b"zero2"]]


def test_a_delayed_message_rejoins_by_the_time_it_became_visible(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", NewMessage(b"late", delay_ns=10 * SECOND_NS), NewMessage(b"soon", delay_ns=5 * SECOND_NS))
    rig.publish("work", b"now")
    rig.wait(7)
    rig.publish("work", b"after soon")
    rig.wait(7)
    rig.publish("work", b"last")
    assert rig.bodies("work") == [b"now", b"soon", b"after soon", b"late", b"last"]


def test_a_queue_delays_its_messages_unless_they_say_otherwise(rig: Rig) -> None:
    rig.create("work", delay_ns=10 * SECOND_NS)
    rig.publish("work", b"slow", NewMessage(b"at once", delay_ns=0))
    assert rig.counts("work") == (1, 0, 1)
    assert rig.bodies("work") == [b"at once"]
    rig.wait(9)
    assert rig.bodies("work") == []
    rig.wait(1)
    assert rig.bodies("work") == [b"slow"]


def test_the_same_content_is_kept_once_where_the_queue_asks_for_it(rig: Rig) -> None:
    rig.create("work", deduplication=True)
    [first] = rig.publish("work", b"same")
    [again] = rig.publish("work", b"same")
    assert first.fresh
    assert not again.fresh
    assert (again.queue, again.sequence) == (first.queue, first.sequence)
    assert rig.describe("work").messages == 1


def test_the_same_content_is_kept_once_within_one_batch(rig: Rig) -> None:
    rig.create("work", deduplication=True)
    receipts = rig.publish("work", b"a", b"b", b"a", b"c", b"b")
    assert [(each.sequence, each.fresh) for each in receipts] == [
        (1, True),
        (2, True),
        (1, False),
        (3, True),
        (2, False),
    ]
    assert rig.bodies("work") == [b"a", b"b", b"c"]


def test_the_empty_message_is_deduplicated_too(rig: Rig) -> None:
    rig.create("work", deduplication=True)
    assert [each.fresh for each in rig.publish("work", b"", b"")] == [True, False]


@pytest.mark.parametrize("end", ["finish", "hand over", "expire"])
def test_content_may_come_again_once_its_message_has_gone(rig: Rig, end: str) -> None:
    rig.create("work", deduplication=True, retention_ns=100 * SECOND_NS)
    [first] = rig.publish("work", b"same")
    if end == "finish":
        rig.finish(rig.fetch("work")[0])
    elif end == "hand over":
        rig.fetch("work", confirm=False)
    else:
        rig.wait(101)
    [again] = rig.publish("work", b"same")
    assert (again.sequence, again.fresh) == (first.sequence + 1, True)


def test_a_leased_message_still_counts_as_there(rig: Rig) -> None:
    rig.create("work", deduplication=True)
    rig.publish("work", b"same")
    rig.fetch("work")
    assert not rig.publish("work", b"same")[0].fresh


def test_deduplication_survives_replay_and_snapshot(rig: Rig) -> None:
    rig.create("work", deduplication=True)
    rig.publish("work", b"a", b"b", b"c")
    rig.fetch("work", confirm=False)
    for engine in (rig.replayed(), rig.restored()):
        decision = engine.decide(Publish("work", [NewMessage(b"a"), NewMessage(b"b")]), now=rig.now())
        assert [receipt.fresh for receipt in decision.answer] == [True, False]  # type: ignore[union-attr]


def test_without_deduplication_the_same_content_is_stored_twice(rig: Rig) -> None:
    rig.create("work")
    assert [each.fresh for each in rig.publish("work", b"same", b"same")] == [True, True]
    assert all(event.digest == b"" for event in rig.events if isinstance(event, Logged))


# ── Fetching and leases ───────────────────────────────────────────────────────────────────────────────────


def test_a_leased_message_is_not_delivered_again_before_its_time(rig: Rig) -> None:
    rig.create("work", visibility_ns=30 * SECOND_NS)
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert delivery.visible_at == rig.engine.time + 30 * SECOND_NS
    assert rig.counts("work") == (0, 1, 0)
    rig.wait(29)
    assert rig.bodies("work") == []


def test_a_lease_that_ran_out_is_retried_and_counted(rig: Rig) -> None:
    rig.create("work", visibility_ns=30 * SECOND_NS)
    rig.publish("work", b"one", b"two")
    rig.fetch("work")
    rig.wait(31)
    assert isinstance(rig.events[-1], TimedOut)
    again = rig.fetch("work", 2)
    assert [(each.body, each.receives) for each in again] == [(b"two", 1), (b"one", 2)]


def test_a_client_may_choose_the_length_of_its_lease(rig: Rig) -> None:
    rig.create("work", visibility_ns=30 * SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work", lease_ns=2 * SECOND_NS)
    rig.wait(3)
    assert rig.bodies("work") == [b"one"]


def test_two_leases_that_end_at_the_same_moment_are_settled_once(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"first", b"one")
    rig.fetch("work", lease_ns=5 * SECOND_NS)
    [delivery] = rig.fetch("work", lease_ns=60 * SECOND_NS)
    rig.release(delivery)
    [again] = rig.fetch("work", lease_ns=delivery.visible_at - rig.now())
    assert again.visible_at == delivery.visible_at
    rig.wait(70)
    returned = [type(event) for event in rig.events if isinstance(event, Retried)]
    assert returned == [Retried, TimedOut, TimedOut]  # The first was given back.
    assert rig.counts("work") == (2, 0, 0)


def test_a_fetch_takes_as_many_as_there_are_and_no_more_than_asked(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", *[b"%d" % number for number in range(5)])
    assert len(rig.fetch("work", 3)) == 3
    assert len(rig.fetch("work", 3)) == 2
    assert rig.do(Fetch("work", 3)) == ()


def test_a_kicked_message_is_gone_without_a_confirmation(rig: Rig) -> None:
    rig.create("work", redrive_policy=None)
    rig.publish("work", b"one", b"two")
    deliveries = rig.fetch("work", 1, confirm=False)
    assert [each.body for each in deliveries] == [b"one"]
    assert isinstance(rig.events[-1], HandedOver)
    assert rig.finish(deliveries[0]) == Refused(Reason.NO_MESSAGE)
    assert rig.counts("work") == (1, 0, 0)


def test_a_kick_never_moves_a_message_to_the_dead_letters(rig: Rig) -> None:
    with_dead_letters(rig, max_receives=1)
    rig.publish("work", b"one")
    rig.fetch("work", confirm=False)
    assert rig.describe("dead").last_sequence == 0


# ── Finishing ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_finished_message_is_gone(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.finish(delivery, result=b"42") == DONE
    event = rig.events[-1]
    assert isinstance(event, Succeeded)
    assert (event.result, event.receives, rig.engine.names.texts[event.consumer]) == (b"42", 1, "me")
    assert rig.describe("work").messages == 0
    assert rig.finish(delivery) == Refused(Reason.NO_MESSAGE)
    rig.wait(100)
    assert rig.bodies("work") == []


def test_without_a_consumer_anyone_finishes_in_any_state(rig: Rig) -> None:
    rig.create("work")
    ready, delayed = rig.publish("work", b"ready", NewMessage(b"delayed", delay_ns=SECOND_NS))
    assert rig.finish(ready) == DONE
    assert rig.finish(delayed) == DONE
    rig.wait(2)
    assert rig.counts("work") == (0, 0, 0)


def test_only_the_consumer_with_the_lease_finishes_in_its_own_name(rig: Rig) -> None:
    rig.create("work", visibility_ns=10 * SECOND_NS)
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.finish(delivery, consumer="you") == Refused(Reason.LEASE_GONE)
    rig.wait(11)
    assert rig.finish(delivery, consumer="me") == Refused(Reason.LEASE_GONE)
    rig.fetch("work", consumer="you")
    assert rig.finish(delivery, consumer="me") == Refused(Reason.LEASE_GONE)
    assert rig.finish(delivery, consumer="you") == DONE


def test_a_message_nobody_has_taken_is_finished_in_nobodys_name(rig: Rig) -> None:
    rig.create("work")
    ready, delayed = rig.publish("work", b"ready", NewMessage(b"delayed", delay_ns=SECOND_NS))
    for receipt in (ready, delayed):
        assert rig.finish(receipt, consumer="me") == Refused(Reason.LEASE_GONE)
        assert rig.finish(receipt, consumer="") == Refused(Reason.LEASE_GONE)


def test_what_was_never_published_cannot_be_finished_or_released(rig: Rig) -> None:
    rig.create("work")
    for command in (Finish(1, 1), Finish(9, 1), Release(1, 1), Release(9, 1)):
        assert rig.do(command) == Refused(Reason.NO_MESSAGE)


# ── Releasing and retries ─────────────────────────────────────────────────────────────────────────────────


def test_a_released_message_is_ready_at_once_behind_those_that_wait(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one", b"two")
    [delivery] = rig.fetch("work")
    assert rig.release(delivery) == DONE
    assert rig.bodies("work") == [b"two", b"one"]


def test_a_message_released_with_a_delay_waits(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one")
    rig.release(rig.fetch("work")[0], delay_ns=5 * SECOND_NS)
    assert rig.counts("work") == (0, 0, 1)
    rig.wait(4)
    assert rig.bodies("work") == []
    rig.wait(1)
    assert rig.bodies("work") == [b"one"]


def test_only_a_leased_message_can_be_released(rig: Rig) -> None:
    rig.create("work")
    [receipt] = rig.publish("work", b"one")
    assert rig.release(receipt) == Refused(Reason.LEASE_GONE)
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.release(delivery, consumer="you") == Refused(Reason.LEASE_GONE)
    assert rig.release(delivery, consumer="me") == DONE
    assert rig.release(delivery) == Refused(Reason.LEASE_GONE)


@pytest.mark.parametrize("by", ["time", "release"])
def test_a_message_is_dropped_when_its_retries_are_used_up(rig: Rig, by: str) -> None:
    rig.create("work", retries=2, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    for _ in range(2):
        [delivery] = rig.fetch("work")
        if by == "time":
            rig.wait(2)
        else:
            rig.release(delivery)
    assert isinstance(rig.events[-1], Failed)
    assert rig.describe("work").messages == 0


def test_a_message_finished_on_its_last_try_is_not_dropped(rig: Rig) -> None:
    rig.create("work", retries=1, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    assert rig.finish(rig.fetch("work")[0]) == DONE
    rig.wait(5)
    assert isinstance(rig.events[-1], Succeeded)


def test_used_up_retries_lead_to_the_dead_letters_where_there_is_a_policy(rig: Rig) -> None:
    with_dead_letters(rig, max_receives=100, retries=1, visibility_ns=SECOND_NS)
    rig.publish("work", b"one", b"two")
    rig.fetch("work", 2)
    rig.wait(2)
    moves = [event for event in rig.events if isinstance(event, DeadLettered)]
    assert [(event.fetched, event.to_sequence) for event in moves] == [(False, 1), (False, 2)]
    assert rig.counts("work") == (0, 0, 0)
    assert rig.bodies("dead") == [b"one", b"two"]


# ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_delivery_and_the_move_are_one_event(rig: Rig) -> None:
    with_dead_letters(rig, max_receives=2, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work")
    rig.wait(2)
    before = len(rig.events)
    [delivery] = rig.fetch("work")
    [event] = rig.events[before:]
    assert isinstance(event, DeadLettered)
    assert event.fetched
    assert (delivery.receives, delivery.visible_at) == (2, event.visible_at)
    assert rig.describe("work").messages == 0
    assert rig.counts("dead") == (0, 0, 1)


def test_a_moved_message_shows_only_after_its_last_lease(rig: Rig) -> None:
    with_dead_letters(rig, visibility_ns=10 * SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work")
    rig.wait(9)
    assert rig.bodies("dead") == []
    rig.wait(1)
    [delivery] = rig.fetch("dead")
    assert (delivery.body, delivery.receives) == (b"one", 1)


def test_a_message_finished_during_its_last_lease_never_shows_in_the_dead_letters(rig: Rig) -> None:
    with_dead_letters(rig)
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.finish(delivery, consumer="you") == Refused(Reason.LEASE_GONE)
    assert rig.finish(delivery, consumer="me") == DONE
    rig.wait(100)
    assert rig.describe("dead").messages == 0
    assert not rig.engine.moved
    assert not rig.engine.origins


@pytest.mark.parametrize("command", [Release, Settle])
def test_a_message_given_back_during_its_last_lease_is_ready_in_the_dead_letters(
    rig: Rig, command: type[Release | Settle]
) -> None:
    with_dead_letters(rig)
    options = {} if command is Release else {"outcome": "retry"}
    for body, delay_ns in ((b"at once", 0), (b"later", 5 * SECOND_NS)):
        rig.publish("work", body)
        [delivery] = rig.fetch("work", consumer="me")
        told = [type(event) for event in rig.events]
        place = (delivery.queue, delivery.sequence)
        assert rig.do(command(*place, consumer="you", **options)) == Refused(Reason.LEASE_GONE)  # type: ignore[arg-type]
        given = {"consumer": "me", "delivery": 1, "delay_ns": delay_ns, **options}
        assert rig.do(command(*place, **given)) == DONE  # type: ignore[arg-type]
        assert [type(event) for event in rig.events] == [*told, Rescheduled]  # Its failure was told before.
        assert rig.do(command(*place, consumer="me", **options)) == Refused(Reason.LEASE_GONE)  # type: ignore[arg-type]
    assert rig.bodies("dead") == [b"at once"]
    rig.wait(5)
    assert rig.bodies("dead") == [b"later"]
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_the_id_of_a_moved_message_finds_it_in_either_queue(rig: Rig) -> None:
    with_dead_letters(rig, visibility_ns=SECOND_NS)
    [receipt] = rig.publish("work", b"one")
    rig.publish("dead", b"other")
    rig.fetch("work")
    rig.wait(2)
    other, delivery = rig.fetch("dead", 2)
    assert other.body == b"other"
    assert (delivery.queue, delivery.sequence) == (receipt.queue, receipt.sequence)
    found = rig.engine.find(receipt.queue, receipt.sequence)
    assert found is not None
    assert (found[0].name, found[1]) == ("dead", 2)
    assert rig.finish(receipt) == DONE
    assert rig.finish(receipt) == Refused(Reason.NO_MESSAGE)
    assert rig.describe("dead").messages == 1


def test_dead_letters_of_dead_letters_keep_their_id(rig: Rig) -> None:
    rig.create("last")
    rig.create("dead", redrive_policy=RedrivePolicy(1, "last"), visibility_ns=SECOND_NS)
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"), visibility_ns=SECOND_NS)
    [receipt] = rig.publish("work", b"one")
    place = (receipt.queue, receipt.sequence)
    for name in ("work", "dead", "last"):
        [delivery] = rig.fetch(name)
        assert (delivery.body, delivery.queue, delivery.sequence) == (b"one", *place)
        rig.wait(2)
    for engine in (rig.engine, rig.replayed(), rig.restored()):
        found = engine.find(*place)
        assert found is not None
        assert found[0].name == "last"
        assert engine.moved == {place: (1, 1)}
        assert engine.origins == {(1, 1): place}


def test_a_queue_may_be_its_own_dead_letter_queue(rig: Rig) -> None:
    rig.create("work", visibility_ns=SECOND_NS)
    rig.do(UpdateQueue("work", QueueSettings(visibility_ns=SECOND_NS, redrive_policy=RedrivePolicy(1, "work"))))
    [receipt] = rig.publish("work", b"one")
    for round_number in range(1, 4):
        [delivery] = rig.fetch("work")
        assert (delivery.sequence, rig.describe("work").last_sequence) == (1, 1 + round_number)
        rig.wait(2)
    assert rig.finish(receipt) == DONE
    assert rig.describe("work").messages == 0
    rig.do(DeleteQueue("work"))


def test_several_queues_may_share_their_dead_letters_in_one_tick(rig: Rig) -> None:
    rig.create("dead")
    for name in ("a", "b", "c"):
        rig.create(name, redrive_policy=RedrivePolicy(9, "dead"), retries=1, visibility_ns=SECOND_NS)
        rig.publish(name, b"1", b"2")
        rig.fetch(name, 2)
    rig.wait(5)
    assert sorted(event.to_sequence for event in rig.events if isinstance(event, DeadLettered)) == [1, 2, 3, 4, 5, 6]
    assert rig.counts("dead") == (6, 0, 0)


def test_a_dead_letter_lives_as_long_as_its_new_queue_says(rig: Rig) -> None:
    rig.create("dead", retention_ns=50 * SECOND_NS)
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"), retention_ns=10 * SECOND_NS, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work")
    rig.wait(30)
    assert rig.describe("dead").messages == 1
    rig.wait(30)
    assert isinstance(rig.events[-1], Expired)
    assert rig.describe("dead").messages == 0


def test_deleting_the_dead_letter_queue_loses_what_has_moved_there(rig: Rig) -> None:
    with_dead_letters(rig)
    [receipt] = rig.publish("work", b"one")
    rig.fetch("work")
    rig.do(DeleteQueue("dead"))
    assert rig.finish(receipt) == Refused(Reason.NO_MESSAGE)
    assert not rig.engine.moved
    assert not rig.engine.origins
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_deleting_the_first_queue_leaves_its_dead_letters_findable(rig: Rig) -> None:
    with_dead_letters(rig)
    [receipt] = rig.publish("work", b"one")
    rig.fetch("work")
    rig.do(DeleteQueue("work"))
    assert rig.finish(receipt) == DONE
    assert rig.describe("dead").messages == 0


def test_a_dead_letter_counts_as_content_of_its_new_queue(rig: Rig) -> None:
    rig.create("dead", deduplication=True)
    rig.create("work", deduplication=True, redrive_policy=RedrivePolicy(1, "dead"))
    [receipt] = rig.publish("work", b"same")
    rig.fetch("work")
    [again] = rig.publish("dead", b"same")
    assert (again.queue, again.sequence, again.fresh) == (receipt.queue, receipt.sequence, False)
    assert rig.publish("work", b"same")[0].fresh


def test_a_dead_letter_that_is_there_already_does_not_shadow_the_first(rig: Rig) -> None:
    rig.create("dead", deduplication=True)
    rig.create("work", deduplication=True, redrive_policy=RedrivePolicy(1, "dead"))
    [first] = rig.publish("dead", b"same")
    [moved] = rig.publish("work", b"same")
    rig.fetch("work")
    assert rig.finish(moved) == DONE
    for engine in (rig.replayed(), rig.restored(), rig.engine):
        rig.engine = engine
        [receipt] = rig.publish("dead", b"same")
        assert (receipt.queue, receipt.sequence, receipt.fresh) == (first.queue, first.sequence, False)


# ── Lifetimes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_past_its_retention_expires(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS)
    rig.publish("work", b"one", NewMessage(b"short", expires_ns=SECOND_NS), NewMessage(b"long", expires_ns=NEVER_NS))
    rig.wait(2)
    assert rig.describe("work").messages == 2
    rig.wait(10)
    assert [event.sequence for event in rig.events if isinstance(event, Expired)] == [2, 1]
    assert rig.bodies("work") == [b"long"]


def test_a_message_expires_while_it_is_leased(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS, visibility_ns=60 * SECOND_NS)
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work")
    rig.wait(11)
    assert isinstance(rig.events[-1], Expired)
    assert rig.finish(delivery) == Refused(Reason.NO_MESSAGE)
    rig.wait(100)
    assert rig.describe("work").messages == 0


def test_a_message_expires_while_it_is_delayed(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS, delay_ns=20 * SECOND_NS)
    rig.publish("work", b"one")
    rig.wait(11)
    assert rig.describe("work").messages == 0
    rig.wait(20)
    assert rig.bodies("work") == []


def test_a_message_whose_lease_and_life_end_together_only_expires(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work", lease_ns=5 * SECOND_NS)
    rig.clock += 60 * SECOND_NS
    rig.settle()
    assert [type(event) for event in rig.events[-2:]] == [Fetched, Expired]


def test_an_expired_message_is_not_delivered_even_before_the_tick(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", NewMessage(b"short", expires_ns=SECOND_NS), b"other")
    rig.clock += 2 * SECOND_NS
    decision = rig.engine.decide(Fetch("work", 1), now=rig.now())
    assert [delivery.sequence for delivery in decision.answer] == [2]  # type: ignore[union-attr]


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tick_settles_a_bounded_number_and_the_rest_follows(rig: Rig) -> None:
    rig.create("work", visibility_ns=SECOND_NS)
    count = TICK_EVENTS_MAX + 500
    rig.publish("work", *[b""] * count)
    rig.fetch("work", count)
    rig.clock += 2 * SECOND_NS
    assert len(rig.engine.decide(Tick(), now=rig.now()).events) == TICK_EVENTS_MAX
    rig.settle()
    assert rig.engine.next_deadline <= rig.now()
    rig.settle()
    assert rig.counts("work") == (count, 0, 0)
    assert rig.engine.next_deadline == NEVER_NS


def test_many_delays_that_end_together_mature_in_bounded_steps(rig: Rig) -> None:
    rig.create("work", delay_ns=SECOND_NS)
    count = TICK_EVENTS_MAX + 500
    rig.publish("work", *[b""] * count)
    rig.clock += 2 * SECOND_NS
    assert rig.engine.advance(rig.clock) == [1]
    assert rig.engine.next_deadline <= rig.clock
    assert rig.engine.advance(rig.clock) == [1]
    assert rig.counts("work") == (count, 0, 0)


def test_nothing_is_due_when_nothing_waits(rig: Rig) -> None:
    assert rig.engine.next_deadline == NEVER_NS
    rig.create("work")
    [first, _] = rig.publish("work", b"one", b"two")
    assert rig.engine.next_deadline == NEVER_NS
    rig.release(rig.fetch("work")[0])
    rig.finish(first)
    rig.wait(100)
    assert rig.engine.next_deadline == NEVER_NS


def test_a_decision_is_later_than_the_last_event(rig: Rig) -> None:
    rig.create("work")
    with pytest.raises(AssertionError, match="a decision is later than the last event"):
        rig.engine.decide(Tick(), now=rig.engine.time)


# ── Carrying ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_carried_message_is_read_from_its_new_place(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one", NewMessage(b"two", key=b"k", headers=b"h"), b"three")
    rows = {sequence: rig.engine.queues[1].rows.get(sequence) for sequence in (1, 2)}
    carried = []
    for sequence, row in rows.items():
        assert row is not None
        extent = rig.log.read(row.position, row.body_bytes + row.key_bytes + row.headers_bytes)
        carried.append((1, sequence, row.position, extent))
    rig.do(Carry(carried))
    for sequence, row in rows.items():
        moved = rig.engine.queues[1].rows.get(sequence)
        assert moved is not None
        assert row is not None
        assert moved.position > row.position
        assert moved._replace(position=row.position) == row
    deliveries = rig.fetch("work", 3)
    assert [(each.body, each.key, each.headers) for each in deliveries] == [
        (b"one", b"", b""),
        (b"two", b"k", b"h"),
        (b"three", b"", b""),
    ]
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_what_left_or_moved_in_the_meantime_is_not_carried(rig: Rig) -> None:
    with_dead_letters(rig)
    finished, _ = rig.publish("work", b"finished", b"moved")
    old = [(2, 1, 0, b"finished"), (2, 2, 0, b"moved"), (7, 1, 0, b"no queue")]
    rig.finish(finished)
    rig.fetch("work")
    before = len(rig.events)
    assert rig.do(Carry(old)) == DONE
    assert len(rig.events) == before


# ── Purity, replay and snapshots ──────────────────────────────────────────────────────────────────────────


def busy(rig: Rig) -> None:
    """A bit of everything."""
    with_dead_letters(rig, max_receives=2, visibility_ns=SECOND_NS, retention_ns=60 * SECOND_NS)
    rig.create("unique", deduplication=True, delay_ns=3 * SECOND_NS)
    rig.create("gone")
    rig.publish("work", *[NewMessage(b"%d" % n, priority=n % 3, sender=f"s{n % 2}") for n in range(40)])
    rig.publish("unique", b"a", b"b", b"a", b"c")
    rig.publish("gone", b"x")
    for _ in range(3):
        rig.fetch("work", 10, consumer="me")
        rig.wait(2)
    rig.release(rig.fetch("work", consumer="you")[0], delay_ns=5 * SECOND_NS)
    rig.finish(rig.fetch("dead")[0])
    rig.fetch("unique", confirm=False)
    rig.do(DeleteQueue("gone"))


def test_deciding_changes_nothing(rig: Rig) -> None:
    busy(rig)
    commands = [
        Tick(),
        Publish("work", [NewMessage(b"new", content_type="new/type", sender="new")]),
        Publish("unique", [NewMessage(b"b"), NewMessage(b"z"), NewMessage(b"z")]),
        Fetch("work", 5, consumer="somebody new"),
        Fetch("work", 5, confirm=False),
        Fetch("dead", 5),
        Finish(2, 3),
        Release(2, 3),
        CreateQueue("more", QueueSettings()),
        UpdateQueue("work", QueueSettings()),
        DeleteQueue("dead"),
        DescribeQueue("work"),
        ListQueues(),
    ]
    before = state_of(rig.engine)
    for command in commands:
        first = rig.engine.decide(command, now=rig.now())
        assert state_of(rig.engine) == before, command
        assert rig.engine.decide(command, now=rig.now()) == first, command


def test_replay_and_snapshot_give_the_state_byte_for_byte(rig: Rig) -> None:
    busy(rig)
    replayed, restored = rig.replayed(), rig.restored()
    assert state_of(replayed) == state_of(rig.engine)
    assert state_of(restored) == state_of(rig.engine)


def test_a_restored_engine_goes_on_as_the_live_one_would(rig: Rig) -> None:
    busy(rig)
    for engine in (rig.replayed(), rig.restored()):
        later = rig.now() + 100 * SECOND_NS
        assert engine.decide(Fetch("work", 99), now=rig.now()) == rig.engine.decide(Fetch("work", 99), now=rig.now())
        mine, theirs = (
            sorted(repr(event) for event in each.decide(Tick(), now=later).events if isinstance(event, Expired))
            for each in (engine, rig.engine)
        )
        assert mine == theirs


def test_an_empty_engine_survives_a_snapshot() -> None:
    engine = Engine()
    engine.restore(list(Engine().sections()))
    assert state_of(engine) == state_of(Engine())
