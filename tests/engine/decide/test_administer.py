"""Queues that are created, changed, removed, described and listed."""

from __future__ import annotations

import pytest

from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.limits import QUEUES_MAX, SECOND_NS
from penstock.model.answers import QueueDescription, QueueList, Refused
from penstock.model.commands import (
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    Fetch,
    ListQueues,
    NewMessage,
    Publish,
    PublishTopics,
    UpdateQueue,
)
from penstock.model.events import (
    QueueChanged,
    QueueRemoved,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.engine_rig import Rig, copied_sections


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


def test_several_shards_remember_when_queues_were_created(rig: Rig) -> None:
    rig.engine = Engine(shard=1, shards=2)
    rig.create("a")
    rig.create("b")
    created = rig.describe("a").created, rig.describe("b").created
    assert 0 < created[0] <= created[1]
    again = Engine(shard=1, shards=2)
    again.restore(copied_sections(rig.engine))
    assert tuple(again.queues[number].created for number in (2, 4)) == created


def test_each_shard_has_numbers_of_its_own_for_queues(rig: Rig) -> None:
    rig.engine = Engine(shard=2, shards=4)
    assert list(rig.engine.queue_numbers) == []
    rig.create("one")
    rig.do(PublishTopics([NewMessage(b"x", topics=("two", "three"))], QueueSettings()))
    rig.do(DeleteQueue("one"))
    assert list(rig.engine.queues) == [7, 11]
    restored = Engine(shard=2, shards=4)
    restored.restore(copied_sections(rig.engine))
    assert list(restored.queue_numbers) == [3, 7, 11]
    rig.engine = restored
    assert rig.create("four").number == 15


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
