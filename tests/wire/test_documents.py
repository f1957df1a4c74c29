"""Message documents: the whole life of a message by its id, also of one that is long gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.ids import MessageIds
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import call, events, make_history, make_queue, publish, settle
from tests.wire.test_topics import channel, confirm, take
from tests.wire.test_topics import publish as publish_to_topics

Row = dict[str, Any]
SMALL_SEGMENTS = ("log.segment_bytes=65536", "log.snapshot_bytes=65536")


def document(broker: Broker, message_id: str) -> Row:
    answer = broker.request("GET", f"/v1/messages/{message_id}")
    assert answer.status == 200, answer
    found: Row = answer.json()
    return found


def receive(broker: Broker, queue: str) -> str:
    message_id = broker.request("GET", f"/messages/{queue}").header("X-MQS-MESSAGE-ID")
    assert message_id
    return message_id


def letters(found: Row) -> str:
    return "".join(event["state"] for event in found["events"])


def test_the_life_of_a_message_from_post_to_delete(broker: Broker) -> None:
    make_queue(broker, "life")
    posted = broker.request("POST", "/messages/life", {"Content-Type": "application/json"}, b'{"order": 17}')
    message_id = posted.header("X-MQS-MESSAGE-ID")
    assert message_id
    fresh = document(broker, message_id)
    assert (fresh["state"], fresh["status"], fresh["queued"], fresh["archived"]) == ("Q", "ready", True, False)
    assert (fresh["message"], fresh["mimeType"], fresh["topics"]) == ({"order": 17}, "application/json", [])
    assert fresh["created"] == fresh["modified"]
    assert [fresh[name] for name in ("processed", "completed", "failed", "consumed")] == [None, None, None, []]
    assert fresh["timestamps"] == {"consumed": None}
    assert receive(broker, "life") == message_id
    leased = document(broker, message_id)
    assert (leased["state"], leased["status"], leased["delivered"], leased["receives"]) == ("F", "leased", False, 1)
    assert broker.request("DELETE", f"/messages/{message_id}").status == 204
    done = document(broker, message_id)
    assert {name: done[name] for name in ("state", "status", "queued", "delivered", "success", "archived")} == {
        "state": "X",
        "status": "gone",
        "queued": False,
        "delivered": True,
        "success": True,
        "archived": True,
    }
    assert (done["confirmed"], done["confirmedCount"], done["topicCount"]) == (True, 1, 0)
    assert (done["message"], letters(done), done["complete"]) == ({"order": 17}, "LQFSX", True)
    (consumed,) = done["consumed"]
    assert (consumed["consumerId"], consumed["queue"], consumed["state"]) == (None, "life", "S")
    assert consumed["durationMS"] >= 0
    assert done["created"] <= done["timestamps"]["consumed"] == consumed["fetchedTS"] <= done["processed"]
    assert done["processed"] == done["completed"] == done["modified"] == consumed["confirmedTS"]
    assert done["places"] == [
        {"id": message_id, "queue": "life", "sequence": 1, "state": "X", "queued": False},
    ]


def test_a_dead_letter_has_one_life_in_two_queues(broker: Broker) -> None:
    make_queue(broker, "fallen")
    policy = {"max_receives": 2, "dead_letter_queue": "fallen"}
    make_queue(broker, "falling", visibility_timeout=0, redrive_policy=policy)
    publish(broker, "falling", b"hopeless")
    first = receive(broker, "falling")
    receive(broker, "falling")
    (event,) = events(broker, "queue=falling&state=E")
    for message_id in (first, event["to_id"]):
        found = document(broker, message_id)
        assert (letters(found), found["state"], found["message"]) == ("LQFRFEQ", "Q", "hopeless")
        assert (found["queued"], found["failed"]) == (True, event["time"])
        assert [place["queue"] for place in found["places"]] == ["fallen"]
        assert [delivery["state"] for delivery in found["consumed"]] == ["R", "F"]
    settle(broker, "fallen")
    assert broker.request("DELETE", f"/messages/{first}").status == 204
    for message_id in (first, event["to_id"]):
        found = document(broker, message_id)
        assert (letters(found), found["state"], found["archived"]) == ("LQFRFEQFSX", "X", True)


def test_receivers_are_consumers_of_a_message_that_stays(broker: Broker) -> None:
    call(broker, "/post", {"sender": "shop", "messages": {"heard": ["x"]}})
    for receiver in ("one", "two"):
        call(broker, "/pull", {"receiver": receiver, "queues": {"heard": {"retry_num": 1}}})
    call(broker, "/pull", {"receiver": "one", "results": {"heard": {1: "42"}}})
    (logged, *_) = events(broker, "queue=heard&state=L")
    found = document(broker, logged["id"])
    assert (found["sender"], found["queued"], found["confirmedCount"], found["state"]) == ("shop", True, 1, "S")
    assert [(each["consumerId"], each["state"]) for each in found["consumed"]] == [("one", "S"), ("two", "F")]


def test_a_message_that_went_with_its_queue_is_deleted(broker: Broker) -> None:
    make_queue(broker, "doomed")
    publish(broker, "doomed", b"x", b"y")
    finished = receive(broker, "doomed")
    broker.request("DELETE", f"/messages/{finished}")
    left = receive(broker, "doomed")
    assert broker.request("DELETE", "/v1/queues/doomed").status == 204
    assert (document(broker, left)["state"], document(broker, finished)["state"]) == ("D", "X")
    assert document(broker, left)["queue"] == "doomed"
    (removed,) = events(broker, "queue=doomed&state=D")
    assert document(broker, left)["events"][-1] == removed
    assert "D" not in letters(document(broker, finished))  # It was done with before.


def family(told: list[Row], message_id: str) -> list[Row]:
    """The events of a message in all its places, the slow way."""
    ids = {message_id}
    for _ in range(3):
        for event in told:
            if "to_id" in event and ids & {event["id"], event["to_id"]}:
                ids |= {event["id"], event["to_id"]}
    queues = {event["queue_number"] for event in told if event.get("id") in ids}
    return [event for event in told if (event["id"] in ids if "id" in event else event["queue_number"] in queues)]


def test_every_message_of_a_long_history_is_found_by_its_id(start_broker: StartBroker) -> None:
    broker = start_broker(*SMALL_SEGMENTS)
    make_history(broker, rounds=4)
    for _ in range(40):  # Enough for several segments.
        publish(broker, "hopeless", *[b"x" * 500] * 20)
    for _ in range(2):
        told = events(broker)
        of_messages = [event for event in told if "id" in event]
        wanted = sorted(
            {event["id"] for event in of_messages if event["queue"] != "hopeless" or event["sequence"] < 20}
        )
        assert len(wanted) > 30
        for message_id in wanted:
            expected = family(told, message_id)
            found = document(broker, message_id)
            assert found["events"] == expected
            assert found["complete"]
        broker.stop()
        broker.start()


def test_what_is_past_retention_is_gone_and_what_lives_is_not(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(*SMALL_SEGMENTS, "log.retention_seconds=0", "log.retention_bytes=0")
    make_queue(broker, "long")
    publish(broker, "long", b"stays")
    publish(broker, "long", b"goes")
    (lives, goes) = [message.header("X-MQS-MESSAGE-ID") for message in settle(broker, "long").messages()]
    assert lives
    assert goes
    broker.request("DELETE", f"/messages/{goes}")
    make_queue(broker, "churn")
    while broker.request("GET", f"/v1/messages/{goes}").status == 200:
        publish(broker, "churn", *[b"x" * 1000] * 100)
        for message in settle(broker, "churn").messages():
            broker.request("DELETE", f"/messages/{message.header('X-MQS-MESSAGE-ID')}")
    answer = broker.request("GET", f"/v1/messages/{goes}")
    assert (answer.status, "retention" in answer.json()["error"]) == (410, True)
    found = document(broker, lives)
    assert (found["message"], found["status"], found["queue"]) == ("stays", "leased", "long")


def test_an_id_that_was_never_given_out_is_unknown(broker: Broker) -> None:
    make_queue(broker, "few")
    publish(broker, "few", b"x")
    number = events(broker, "queue=few")[0]["queue_number"]
    key = bytes.fromhex(json.loads((broker.data / "penstock.json").read_text())["id_key"])
    never = MessageIds(key).make(number, 2).decode()
    for message_id in (never, MessageIds(key).make(900_000, 1).decode(), "nonsense", never[:-1] + "x"):
        assert broker.request("GET", f"/v1/messages/{message_id}").status == 404
    assert document(broker, MessageIds(key).make(number, 1).decode())["message"] == "x"


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_document_can_only_be_read_or_deleted(broker: Broker, method: str) -> None:
    assert broker.request(method, "/v1/messages/x", body=b"").status == 405


# ── Topics, channels, copies ──────────────────────────────────────────────────────────────────────────────────


def test_a_message_for_two_queues_and_a_channel_has_one_document(broker: Broker) -> None:
    channel(broker, "doc-audit", "doc-fruit.*")
    document_sent = {
        "topics": ["doc-fruit.sweet", "doc-food.healthy"],
        "object": "customer",
        "key": "XYZ123",
        "message": "hello",
        "timestamp": "2026-05-07T01:01:00Z",
    }
    receipt = publish_to_topics(broker, document_sent)
    taken = {
        where: take(broker, where, consumer=f"of-{where}")[0]["id"]
        for where in ("queues/doc-fruit", "queues/doc-food", "channels/doc-audit")
    }
    whole = document(broker, receipt["id"])
    assert (whole["state"], letters(whole)) == ("F", "LQQQFFF")
    assert (whole["topics"], whole["topicCount"]) == (["doc-fruit.sweet", "doc-food.healthy"], 2)
    assert (whole["object"], whole["key"], whole["timestamp"]) == ("customer", "XYZ123", "2026-05-07T01:01:00Z")
    assert {place["queue"]: place["id"] for place in whole["places"]} == {
        "doc-fruit": taken["queues/doc-fruit"],
        "doc-food": taken["queues/doc-food"],
        "doc-audit": taken["channels/doc-audit"],
    }
    for where, message_id in taken.items():
        confirm(broker, {"id": message_id, "outcome": "success", "consumer": f"of-{where}"})
    whole = document(broker, receipt["id"])
    assert (whole["state"], whole["archived"], whole["confirmed"], whole["confirmedCount"]) == ("X", True, True, 3)
    assert {each["consumerId"]: each["queue"] for each in whole["consumed"]} == {
        "of-queues/doc-fruit": "doc-fruit",
        "of-queues/doc-food": "doc-food",
        "of-channels/doc-audit": "doc-audit",
    }
    copy = document(broker, taken["channels/doc-audit"])
    assert (copy["message"], copy["key"], letters(copy), copy["state"]) == ("hello", "XYZ123", "QFSX", "X")
    assert [place["queue"] for place in copy["places"]] == ["doc-audit"]


def test_what_has_not_changed_tells_the_content_that_it_equals(broker: Broker) -> None:
    said = {"topics": ["doc-same.a"], "object": "thing", "key": "doc-1", "message": "as ever"}
    publish_to_topics(broker, said)
    again = publish_to_topics(broker, said)
    assert again["state"] == "U"
    found = document(broker, again["id"])
    assert (found["state"], found["queued"], found["archived"], found["confirmed"]) == ("U", False, True, False)
    assert (found["message"], found["key"], letters(found)) == ("as ever", "doc-1", "LU")


@pytest.mark.parametrize("time", [None, "2026-05-07T02:02:00Z"])
def test_what_has_not_changed_has_a_producers_time_of_its_own_or_none(broker: Broker, time: str | None) -> None:
    said = {"topics": ["doc-own.a"], "object": "thing", "key": f"doc-own-{time}", "message": "as ever"}
    publish_to_topics(broker, said | {"timestamp": "2026-05-07T01:01:00Z"})
    again = publish_to_topics(broker, said | ({"timestamp": time} if time else {}))
    assert again["state"] == "U"
    assert document(broker, again["id"]).get("timestamp") == time


def test_several_confirmations_make_a_message_complete(broker: Broker) -> None:
    make_queue(broker, "doc-several", confirmations=2)
    publish(broker, "doc-several", b"x")
    found: Row = {}
    for consumer in ("c1", "c2"):
        (message,) = take(broker, "queues/doc-several", consumer=consumer)
        confirm(broker, {"id": message["id"], "outcome": "success", "consumer": consumer})
        found = document(broker, message["id"])
        assert (found["state"], found["archived"]) == (("S", False) if consumer == "c1" else ("X", True))
    assert [(each["consumerId"], each["state"]) for each in found["consumed"]] == [("c1", "S"), ("c2", "S")]
    assert (found["confirmedCount"], found["completed"] is not None) == (2, True)


@pytest.mark.parametrize(("outcome", "letter"), [("invalid", "I"), ("not_interested", "N"), ("retry", "R")])
def test_an_outcome_is_told(broker: Broker, outcome: str, letter: str) -> None:
    make_queue(broker, f"doc-{outcome}")
    publish(broker, f"doc-{outcome}", b"x")
    (message,) = take(broker, f"queues/doc-{outcome}", consumer="me")
    confirm(broker, {"id": message["id"], "outcome": outcome, "consumer": "me"})
    found = document(broker, message["id"])
    assert (found["state"], found["consumed"][0]["state"], found["queued"]) == (letter, letter, letter == "R")


# ── Several queues, several consumers ─────────────────────────────────────────────────────────────────────────


def settle_as(broker: Broker, queue: str, outcome: str, **consumer: str) -> str:
    """Fetch the next message, and say what has become of it."""
    (message,) = take(broker, f"queues/{queue}", **consumer)
    confirm(broker, {"id": message["id"], "outcome": outcome, **consumer})
    return str(message["id"])


def test_a_message_for_two_queues_is_complete_when_it_is_in_both(broker: Broker) -> None:
    message_id = publish_to_topics(broker, {"topics": ["both-a.x", "both-b.x"], "message": "hello"})["id"]
    settle_as(broker, "both-a", "success")
    found = document(broker, message_id)
    assert (found["state"], found["status"], found["queued"], completed(found)) == ("Q", "ready", True, False)
    take(broker, "queues/both-b")
    assert document(broker, message_id)["status"] == "leased"
    found = document(broker, found["places"][1]["id"])
    assert (found["queue"], found["status"]) == ("both-b", "leased")
    confirm(broker, {"id": found["id"], "outcome": "success"})
    found = document(broker, message_id)
    assert (found["state"], found["status"], found["archived"], completed(found)) == ("X", "gone", True, True)


def test_a_message_that_was_invalid_in_one_of_two_queues_has_failed_and_is_not_complete(broker: Broker) -> None:
    message_id = publish_to_topics(broker, {"topics": ["half-a.x", "half-b.x"], "message": "hello"})["id"]
    settle_as(broker, "half-a", "success")
    settle_as(broker, "half-b", "invalid")
    found = document(broker, message_id)
    assert (found["queued"], completed(found), failed(found)) == (False, False, True)


def test_one_of_several_consumers_does_not_make_a_message_fail(broker: Broker) -> None:
    make_queue(broker, "doc-majority", confirmations=2)
    publish(broker, "doc-majority", b"x")
    message_id = settle_as(broker, "doc-majority", "invalid", consumer="c1")
    settle_as(broker, "doc-majority", "success", consumer="c2")
    assert not failed(document(broker, message_id))
    settle_as(broker, "doc-majority", "success", consumer="c3")
    found = document(broker, message_id)
    assert (found["state"], completed(found), failed(found)) == ("X", True, False)


def test_a_delivery_that_one_of_several_consumers_gave_back_was_no_last_one(broker: Broker) -> None:
    make_queue(broker, "doc-again", confirmations=2)
    publish(broker, "doc-again", b"x")
    said = (("c1", "retry"), ("c1", "success"), ("c2", "success"))
    ids = [settle_as(broker, "doc-again", outcome, consumer=consumer) for consumer, outcome in said]
    found = document(broker, ids[0])
    assert [(each["consumerId"], each["state"]) for each in found["consumed"]] == [
        ("c1", "R"),
        ("c1", "S"),
        ("c2", "S"),
    ]


@pytest.mark.parametrize(("outcome", "letter"), [("invalid", "I"), ("not_interested", "N")])
def test_what_a_worker_is_done_with_is_queued_while_others_are_to_confirm_it(
    broker: Broker, outcome: str, letter: str
) -> None:
    queue = f"doc-worker-{outcome}"
    make_queue(broker, queue, confirmations=2)
    publish(broker, queue, b"x")
    message_id = receive(broker, queue)
    confirm(broker, {"id": message_id, "outcome": outcome})
    found = document(broker, message_id)
    flags = (found["state"], found["status"], found["queued"], found["archived"], failed(found))
    assert flags == (letter, "kept", True, False, False)
    (listed,) = broker.request("GET", f"/v1/search?queue={queue}").json()["messages"]
    assert (listed["status"], listed["queued"]) == ("kept", True)
    for consumer in ("c1", "c2"):
        settle_as(broker, queue, "success", consumer=consumer)
    found = document(broker, message_id)
    assert (found["state"], found["queued"], failed(found)) == ("X", False, False)


def completed(found: Row) -> bool:
    return found["completed"] is not None


def failed(found: Row) -> bool:
    return found["failed"] is not None
