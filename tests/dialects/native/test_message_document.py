"""The fold of a message's events: flags, times and consumers, for every way a life can go."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.dialects.native.message_document import reported
from penstock.dialects.wire.http import Response
from penstock.ids import MessageIds
from penstock.limits import NEVER_NS
from penstock.model.access import EVERYTHING
from penstock.model.events import (
    Completed,
    DeadLettered,
    Declined,
    DeclinedForOne,
    Deleted,
    Delivered,
    Event,
    Expired,
    Extended,
    Failed,
    Fetched,
    HandedOver,
    HandedToReceiver,
    Invalidated,
    Logged,
    Moved,
    Queued,
    QueueRemoved,
    Rescheduled,
    ResultStored,
    Retried,
    Succeeded,
    Unchanged,
)
from penstock.model.message_reports import report_of
from penstock.model.story import Story, fold
from penstock.model.traces import Traced

NAMES = ["", "text/plain", "shop", "order", "fruit.sweet\nfood", "one", "two"]
ONE, TWO = 5, 6

About = tuple[int, int, int, int, int, int]  # Time, queue, sequence, created, receives, consumer.


def logged(time: int = 10, queue: int = 1, sequence: int = 1, **more: Any) -> Logged:
    facts: dict[str, Any] = {"visible_at": time, "expires_at": NEVER_NS, "priority": 3, "lease_ns": 0}
    facts |= {"content_type": 1, "sender": 2, "object": 3, "topics": 4}
    facts |= {"key": b"k", "headers": b"", "digest": b"", "body": b"hello"}
    return Logged(time=time, queue=queue, sequence=sequence, **facts | more)


def queued(time: int, queue: int, sequence: int = 1) -> Queued:
    return Queued(time, queue, sequence, 10, time, NEVER_NS, 3, 1, 2, 3, 4, 1, 1)


def about(time: int, consumer: int = 0, queue: int = 1, sequence: int = 1, receives: int = 1) -> About:
    return time, queue, sequence, 10, receives, consumer


def told(*events: Event, queued: tuple[tuple[int, int], ...] = ()) -> dict[str, Any]:
    story = fold(events, queued)
    traced = Traced((1, 1), story, None, {}, [], [], True, lambda number: NAMES[number], lambda number: f"q{number}")
    found = reported(report_of(traced, EVERYTHING), MessageIds(bytes(16)), soon=lambda _: None, raw=False)
    assert isinstance(found, Response)
    document: dict[str, Any] = json.loads(found.body)
    return document


def flags(found: dict[str, Any]) -> str:
    """The state, then the first letter of every flag that is set."""
    names = ("queued", "delivered", "success", "archived", "confirmed")
    return f"{found['state']} " + " ".join(name for name in names if found[name])


F = Fetched(*about(20, ONE), visible_at=99)
LIVES: dict[str, tuple[list[Event], str]] = {
    "fresh": ([logged()], "Q queued"),
    "fetched": ([logged(), F], "F queued"),
    "longer": ([logged(), F, Extended(*about(25, ONE), visible_at=200)], "F queued"),
    "retried": ([logged(), F, Retried(*about(30, ONE), visible_at=30)], "R queued"),
    "finished": (
        [logged(), F, Succeeded(*about(30, ONE), complete=True, result=b"")],
        "X delivered success archived confirmed",
    ),
    "handed over": ([logged(), HandedOver(*about(20, ONE))], "K delivered archived"),
    "invalid": ([logged(), F, Invalidated(*about(30, ONE))], "I delivered archived"),
    "declined": ([logged(), F, Declined(*about(30, ONE))], "N delivered archived"),
    "dropped": ([logged(), F, Failed(*about(30, ONE))], "E archived"),
    "expired": ([logged(), Expired(*about(30))], "Z archived"),
    "deleted": ([logged(), Deleted(*about(30))], "D archived"),
    "rescheduled": ([logged(), Rescheduled(*about(30), visible_at=99)], "Q queued"),
    "gone with its queue": ([logged(), F, QueueRemoved(30, 1)], "D archived"),
    "finished before its queue went": (
        [logged(), Succeeded(*about(20), complete=True, result=b""), QueueRemoved(30, 1)],
        "X delivered success archived confirmed",
    ),
    "unchanged": ([Unchanged(10, 1, 1, 0, 1, 2, 3, 4, 1, 7, b"k")], "U archived"),
    "without a beginning": ([F], "F queued"),
    "one of two has confirmed": (
        [
            logged(),
            Delivered(*about(20, ONE), visible_at=99),
            Delivered(*about(21, TWO), visible_at=99),
            ResultStored(*about(30, ONE), result=b""),
        ],
        "S queued delivered success confirmed",
    ),
    "one of two is not interested": (
        [logged(), Delivered(*about(20, ONE), visible_at=99), DeclinedForOne(*about(30, ONE))],
        "N queued delivered",
    ),
    "both have confirmed": (
        [
            logged(),
            Delivered(*about(20, ONE), visible_at=99),
            ResultStored(*about(30, ONE), result=b""),
            Delivered(*about(40, TWO), visible_at=99),
            ResultStored(*about(50, TWO), result=b""),
            Completed(*about(50, TWO)),
        ],
        "X delivered success archived confirmed",
    ),
    "handed to a receiver": ([logged(), HandedToReceiver(*about(20, ONE))], "K queued delivered"),
    "in two queues": ([logged(), queued(10, 2)], "Q queued"),
    "done in one of two queues": (
        [logged(), queued(10, 2), Succeeded(*about(30), complete=True, result=b"")],
        "Q queued delivered success confirmed",
    ),
    "done in both": (
        [
            logged(),
            queued(10, 2),
            Succeeded(*about(30), complete=True, result=b""),
            Succeeded(*about(40, 0, 2), complete=True, result=b""),
        ],
        "X delivered success archived confirmed",
    ),
}


@pytest.mark.parametrize("life", LIVES)
def test_a_life_adds_up(life: str) -> None:
    events, expected = LIVES[life]
    assert flags(told(*events)) == expected


def test_the_payload_is_told_in_the_words_of_its_producer() -> None:
    found = told(logged())
    assert (found["message"], found["key"], found["mimeType"], found["sender"]) == (
        "hello",
        "k",
        "text/plain",
        "shop",
    )
    assert (found["object"], found["topics"], found["topicCount"]) == ("order", ["fruit.sweet", "food"], 2)
    assert (found["priority"], "headers" in found, found["expires_at"]) == (3, False, None)
    assert told(logged(body=b"\xff"))["message_base64"] == "/w=="


def test_what_dialects_keep_with_a_message_is_told_by_name() -> None:
    kept = msgspec.msgpack.encode({b"timestamp": b"2026-05-07T01:01:00Z", b"tag": b"blue"})
    found = told(logged(headers=kept))
    assert (found["timestamp"], found["headers"]) == ("2026-05-07T01:01:00Z", {"tag": "blue"})
    alone = told(logged(headers=msgspec.msgpack.encode({b"timestamp": b"1"})))
    assert (alone["timestamp"], "headers" in alone) == ("1", False)
    assert told(logged(headers=b"as it is"))["headers"] == "as it is"


def test_times_and_consumers() -> None:
    second = Fetched(*about(1_500_000_040, TWO, receives=2), visible_at=99)
    done = Succeeded(*about(3_500_000_040, TWO, receives=2), complete=True, result=b"")
    found = told(logged(), F, Retried(*about(30, ONE), visible_at=30), second, done)
    second_text, done_text = "1970-01-01T00:00:01.500000040Z", "1970-01-01T00:00:03.500000040Z"
    names = ("created", "modified", "processed", "completed", "failed")
    assert {name: found[name] for name in names} == {
        "created": "1970-01-01T00:00:00.000000010Z",
        "modified": done_text,
        "processed": done_text,
        "completed": done_text,
        "failed": None,
    }
    assert found["timestamps"] == {"consumed": "1970-01-01T00:00:00.000000020Z"}
    assert [each["state"] for each in found["consumed"]] == ["R", "S"]
    assert found["consumed"][1] == {
        "consumerId": "two",
        "queue": "q1",
        "fetchedTS": second_text,
        "confirmedTS": done_text,
        "durationMS": 2000,
        "state": "S",
    }
    assert (found["receives"], found["confirmedCount"]) == (2, 1)


def dead(fetched: bool) -> DeadLettered:
    return DeadLettered(
        *about(30, ONE), fetched=fetched, visible_at=40, expires_at=NEVER_NS, to_queue=2, to_sequence=7
    )


def test_a_dead_letter_ends_where_it_went() -> None:
    found = told(logged(), F, dead(False))
    assert (flags(found), found["failed"]) == ("Q queued", "1970-01-01T00:00:00.000000030Z")
    assert [(each["queue"], each["sequence"]) for each in found["places"]] == [("q2", 7)]
    assert [each["state"] for each in found["consumed"]] == ["E"]


def test_its_last_consumer_may_still_finish_a_dead_letter() -> None:
    done = Succeeded(*about(35, ONE, 2, 7, 0), complete=True, result=b"")
    found = told(logged(), dead(True), done)
    assert flags(found) == "X delivered success archived confirmed"
    assert [(each["queue"], each["state"]) for each in found["consumed"]] == [("q1", "S")]


def test_a_redrive_takes_the_failure_back() -> None:
    moved = Moved(*about(50, 0, 2, 7, 0), visible_at=50, expires_at=NEVER_NS, to_queue=1, to_sequence=2)
    found = told(logged(), dead(True), moved)
    assert (flags(found), found["failed"]) == ("Q queued", None)
    assert [each["sequence"] for each in found["places"]] == [2]
    assert [each["state"] for each in found["consumed"]] == ["E"]


def test_a_dead_letter_that_was_given_back_is_with_nobody() -> None:
    found = told(logged(), dead(True), Rescheduled(*about(35, ONE, 2, 7, 0), visible_at=35))
    assert (flags(found), [each["state"] for each in found["consumed"]]) == ("Q queued", ["E"])


def test_who_completes_a_dead_letter_takes_the_failure_back() -> None:
    done = Succeeded(*about(35, ONE, 2, 7, 0), complete=True, result=b"")
    assert told(logged(), dead(True), done)["failed"] is None
    gone = Expired(*about(50, 0, 2, 7, 0))
    assert told(logged(), dead(True), gone)["failed"] == "1970-01-01T00:00:00.000000030Z"


@pytest.mark.parametrize("said", [Invalidated, Declined, Failed, HandedOver])
def test_what_a_queue_still_has_for_others_has_not_ended(said: Any) -> None:
    found = told(logged(), F, said(*about(30, ONE)), queued=((1, 1),))
    assert (found["queued"], found["archived"], found["failed"]) == (True, False, None)


def test_a_delivery_of_which_nothing_came_was_to_be_repeated() -> None:
    again = Fetched(*about(40, TWO), visible_at=99)
    assert [each["state"] for each in told(logged(), F, again)["consumed"]] == ["R", "F"]
    deliveries = [Delivered(*about(time, who), visible_at=99) for time, who in ((20, ONE), (21, TWO), (30, ONE))]
    assert [each["state"] for each in told(logged(), *deliveries)["consumed"]] == ["R", "F", "F"]
    moved = Moved(*about(50), visible_at=50, expires_at=NEVER_NS, to_queue=2, to_sequence=1)
    assert [each["state"] for each in told(logged(), *deliveries, moved)["consumed"]] == ["R", "R", "R"]


def test_nothing_is_no_story() -> None:
    assert fold([]) == Story()
