"""Messages published to one queue."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.engine.engine import Engine
from penstock.limits import SECOND_NS
from penstock.model.commands import (
    NewMessage,
    Publish,
    PublishTopics,
)
from penstock.model.events import (
    Logged,
    NameDefined,
)
from penstock.model.settings import QueueSettings
from penstock.model.shard_events import Versioned
from tests.support.engine_rig import Rig


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


def test_queues_are_named_in_the_order_of_the_topics_also_where_one_of_them_deduplicates(rig: Rig) -> None:
    rig.create("once", deduplication=True)
    [answer] = cast("Any", rig.do(PublishTopics([NewMessage(b"a", topics=("any", "once"))], QueueSettings())))
    assert answer.queues == ("any", "once")


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


def test_in_one_of_several_shards_each_new_version_of_a_key_is_noted_once() -> None:
    """Those that answer for the key learn of it."""
    rig = Rig()
    rig.engine = Engine(shard=0, shards=2)
    rig.create("work")

    def noted(*messages: NewMessage) -> list[int]:
        before = len(rig.events)
        rig.publish("work", *messages)
        return [event.sequence for event in rig.events[before:] if isinstance(event, Versioned)]

    def about(body: bytes, key: bytes = b"k", thing: str = "thing") -> NewMessage:
        return NewMessage(body, object=thing, key=key)

    assert noted(about(b"red"), about(b"red"), about(b"red", b"other"), about(b"red", thing="")) == [1, 3]
    assert noted(about(b"red"), about(b"blue"), about(b"red", b"")) == [6]
    assert noted(about(b"red")) == [8]
