"""Topics, channels and confirmations over HTTP, against a real broker."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Response


def call(broker: Broker, method: str, target: str, document: Any = None) -> Response:
    body = None if document is None else json.dumps(document).encode()
    return broker.request(method, target, {"Content-Type": "application/json"} if body else None, body)


def publish(broker: Broker, document: Any) -> Any:
    answer = call(broker, "POST", "/v1/publish", document)
    assert answer.status == 201, answer
    return answer.json()


def channel(broker: Broker, name: str, *topics: str, **settings: Any) -> None:
    answer = call(broker, "PUT", f"/v1/channels/{quote(name)}", {"topics": topics, **settings})
    assert answer.status in (200, 201), answer


def take(broker: Broker, where: str, **parameters: Any) -> list[dict[str, Any]]:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    answer = broker.request("GET", f"/v1/{where}/messages?{query}")
    assert answer.status == 200, answer
    messages: list[dict[str, Any]] = answer.json()
    return messages


def confirm(broker: Broker, document: Any) -> Any:
    answer = call(broker, "POST", "/v1/confirm", document)
    assert answer.status == 200, answer
    return answer.json()


def events(broker: Broker, **parameters: str) -> list[dict[str, Any]]:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    answer = broker.request("GET", f"/v1/events?{query}", {"Accept": "application/x-ndjson"})
    return [json.loads(line) for line in answer.body.splitlines()]


def letters(broker: Broker, queue: str) -> str:
    return "".join(event["state"] for event in events(broker, queue=queue))


def test_a_message_goes_to_the_queues_of_its_roots_and_to_the_channels_that_want_it(broker: Broker) -> None:
    channel(broker, "roots-all", "roots1.*")
    channel(broker, "roots-exact", "roots2.sour")
    channel(broker, "roots-none", "roots2.sweet")
    document = {
        "topics": ["roots1.sweet", "roots2.sour", "roots1.red"],
        "message": "apple",
        "mimeType": "text/x-fruit",
    }
    receipt = publish(broker, document)
    assert receipt["state"] == "Q"
    assert receipt["queues"] == ["roots1", "roots2"]
    assert receipt["channels"] == ["roots-all", "roots-exact"]
    for where in ("queues/roots1", "queues/roots2", "channels/roots-all", "channels/roots-exact"):
        (message,) = take(broker, where, max=10)
        assert message["message"] == "apple"
        assert message["topics"] == document["topics"]
        assert (message["object"], message["mimeType"], message["receives"]) == ("roots1", "text/x-fruit", 1)
    assert take(broker, "channels/roots-none", max=10) == []
    assert letters(broker, "roots1") == "LQF"
    assert letters(broker, "roots-all") == "QF"


def test_any_body_is_a_message_with_its_facts_in_the_query(broker: Broker) -> None:
    answer = broker.request(
        "POST", "/v1/publish?topic=raw.x&key=7&object=thing&priority=3", {"Content-Type": "image/png"}, b"\x89PNG\xff"
    )
    assert answer.status == 201, answer
    (message,) = take(broker, "queues/raw")
    assert (message["message_base64"], message["mimeType"]) == ("iVBOR/8=", "image/png")
    assert (message["key"], message["object"], message["priority"]) == ("7", "thing", 3)


def test_without_a_topic_the_object_names_the_queue_and_else_it_is_the_default(broker: Broker) -> None:
    assert publish(broker, {"object": "untold", "message": {"a": 1}})["queues"] == ["untold"]
    assert publish(broker, {"message": "nothing said"})["queues"] == ["default"]
    (message,) = take(broker, "queues/untold")
    assert (message["message"], message["mimeType"]) == ({"a": 1}, "application/json")


@pytest.mark.parametrize(
    "document", [{"topics": ["taken-root.x"]}, {"topics": ["other", "taken-root"]}, {"object": "taken-root"}]
)
def test_a_channel_gets_nothing_that_it_has_not_subscribed_to_though_its_name_says_so(
    broker: Broker, document: Any
) -> None:
    channel(broker, "taken-root", "taken-other.*")
    for body in (document | {"message": "m"}, [{"object": "not-made", "message": "m"}, document | {"message": "m"}]):
        answer = call(broker, "POST", "/v1/publish", body)
        assert (answer.status, "taken-root" in answer.json()["error"]) == (409, True)
    assert call(broker, "GET", "/v1/queues/not-made").status == 404
    assert take(broker, "channels/taken-root") == []
    answer = call(broker, "PUT", "/v1/queues/taken-root", {})
    assert (answer.status, "it is a channel" in answer.json()["error"]) == (409, True)


def test_what_has_not_changed_is_archived_and_not_delivered(broker: Broker) -> None:
    channel(broker, "same-channel", "same.*")
    document = {"topics": ["same.a"], "key": "1", "message": "x"}
    first, again, other = publish(broker, [document, document, document | {"message": "y"}])
    back = publish(broker, document)
    assert [each["state"] for each in (first, again, other, back)] == ["Q", "U", "Q", "Q"]
    assert publish(broker, document)["state"] == "U"
    assert [message["message"] for message in take(broker, "channels/same-channel", max=9)] == ["x", "y", "x"]
    assert letters(broker, "same") == "LQLULQLQLU"
    unchanged = [event for event in events(broker, queue="same") if event["state"] == "U"]
    assert unchanged[0]["to_id"] == first["id"]
    assert unchanged[0]["id"] == again["id"]
    assert unchanged[1]["to_id"] == back["id"]


def test_a_queue_that_does_not_detect_gets_what_has_not_changed(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/every", {}).status == 201
    channel(broker, "every-new", "every.*")
    document = {"topics": ["every.a"], "key": "1", "message": "x"}
    assert [publish(broker, document)["channels"] for _ in range(2)] == [["every-new"], []]
    assert len(take(broker, "queues/every", max=9)) == 2
    assert len(take(broker, "channels/every-new", max=9)) == 1


def test_the_first_word_counts_and_a_later_one_is_discarded(broker: Broker) -> None:
    for outcome, letter in (("success", "SX"), ("invalid", "I"), ("not_interested", "N")):
        publish(broker, {"topics": [f"word-{outcome}"], "message": "x"})
        (message,) = take(broker, f"queues/word-{outcome}", consumer="c")
        said = {"id": message["id"], "outcome": outcome, "consumer": "c"}
        assert confirm(broker, said) == {"id": message["id"], "outcome": outcome, "discarded": False}
        assert confirm(broker, said | {"outcome": "success"})["discarded"] is True
        assert letters(broker, f"word-{outcome}") == "LQF" + letter


def test_of_a_list_of_confirmations_each_is_answered_for_itself(broker: Broker) -> None:
    publish(broker, [{"topics": ["each"], "message": "1"}, {"topics": ["each"], "message": "2"}])
    first, second = (message["id"] for message in take(broker, "queues/each", max=2, consumer="c"))
    wrong = ["no id", "00000000-0000-0000-0000-000000000000"]
    told = confirm(
        broker,
        [
            {"id": first, "consumer": "c"},
            {"id": wrong[0]},
            {"id": wrong[1]},
            {"id": second, "consumer": "c\n"},
            {"id": second, "consumer": "c", "outcome": "invalid"},
        ],
    )
    assert told[0] == {"id": first, "outcome": "success", "discarded": False}
    assert told[1:4] == [
        {"id": wrong[0], "error": "id: a message id is a UUID", "code": "bad_request"},
        {"id": wrong[1], "error": "the message does not exist", "code": "no_message"},
        {"id": second, "error": "consumer must not have control characters", "code": "bad_request"},
    ]
    assert told[4] == {"id": second, "outcome": "invalid", "discarded": False}


def test_only_who_has_a_message_confirms_it(broker: Broker) -> None:
    publish(broker, {"topics": ["mine"], "message": "x"})
    (message,) = take(broker, "queues/mine", consumer="me")
    answer = call(broker, "POST", "/v1/confirm", {"id": message["id"], "outcome": "success", "consumer": "you"})
    assert (answer.status, answer.json()) == (
        409,
        {"error": "the message is not leased to this consumer", "code": "lease_gone"},
    )
    unknown = "00000000-0000-8000-8000-000000000000"
    assert call(broker, "POST", "/v1/confirm", {"id": unknown, "outcome": "success"}).status == 404
    several = [{"id": message["id"], "consumer": "me"}, {"id": unknown}, {"id": message["id"], "consumer": "me"}]
    assert confirm(broker, several) == [
        {"id": message["id"], "outcome": "success", "discarded": False},
        {"id": unknown, "error": "the message does not exist", "code": "no_message"},
        {"id": message["id"], "outcome": "success", "discarded": True},
    ]


def test_a_message_given_back_comes_again_after_its_delay_and_leaves_after_the_last_retry(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/given-dead", {}).status == 201
    policy = {"max_receives": 9, "dead_letter_queue": "given-dead"}
    channel(broker, "given-channel", "given", retries=2, redrive_policy=policy)
    publish(broker, {"topics": ["given"], "message": "x"})
    (first,) = take(broker, "channels/given-channel")
    confirm(broker, {"id": first["id"], "outcome": "retry", "delay": 3})
    assert take(broker, "channels/given-channel") == []
    (second,) = take(broker, "channels/given-channel", wait=20)
    assert (second["id"], second["receives"]) == (first["id"], 2)
    confirm(broker, {"id": second["id"], "outcome": "retry"})
    assert letters(broker, "given-channel") == "QFRFE"
    (dead,) = take(broker, "queues/given-dead")
    assert (dead["id"], dead["message"]) == (first["id"], "x")


def test_a_lease_is_extended(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/longer", {"visibility_timeout": 4}).status == 201
    publish(broker, {"topics": ["longer"], "message": "x"})
    (message,) = take(broker, "queues/longer", consumer="c")
    asked = {"id": message["id"], "consumer": "c", "seconds": 600}
    answer = call(broker, "POST", "/v1/extend", asked)
    assert answer.status == 200
    assert answer.json()["visible_at"] > message["visible_at"]
    assert take(broker, "queues/longer", wait=6) == []
    assert call(broker, "POST", "/v1/extend", asked | {"consumer": "d"}).status == 409
    assert call(broker, "POST", "/v1/extend", asked | {"seconds": 0}).status == 200
    assert len(take(broker, "queues/longer", wait=20)) == 1


def test_fire_and_forget_hands_a_message_over_for_good(broker: Broker) -> None:
    channel(broker, "forget-channel", "forget", confirm=False)
    publish(broker, {"topics": ["forget"], "message": "x"})
    (message,) = take(broker, "channels/forget-channel")
    assert letters(broker, "forget-channel") == "QK"
    assert confirm(broker, {"id": message["id"], "outcome": "success"})["discarded"] is True


def test_a_message_is_completed_when_as_many_consumers_as_asked_have_confirmed(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/two", {"confirmations": 2, "visibility_timeout": 600}).status == 201
    publish(broker, [{"topics": ["two"], "message": text} for text in "ab"])
    taken = {name: take(broker, "queues/two", consumer=name, max=5) for name in ("one", "other", "third")}
    assert all([message["message"] for message in messages] == ["a", "b"] for messages in taken.values())
    assert take(broker, "queues/two", consumer="one", max=5) == []
    first, second = (message["id"] for message in taken["one"])
    assert confirm(broker, {"id": first, "consumer": "one", "result": "1"})["discarded"] is False
    assert confirm(broker, {"id": first, "consumer": "one"})["discarded"] is True
    assert confirm(broker, {"id": first, "consumer": "third", "outcome": "invalid"})["discarded"] is False
    status = call(broker, "GET", "/v1/queues/two").json()["status"]
    assert status["messages"] == 2
    both = [
        {"id": first, "consumer": "other"},
        {"id": second, "consumer": "one"},
        {"id": second, "consumer": "other"},
    ]
    assert [each["discarded"] for each in confirm(broker, both)] == [False, False, False]
    assert call(broker, "GET", "/v1/queues/two").json()["status"]["messages"] == 0
    assert confirm(broker, {"id": second, "consumer": "third"})["discarded"] is True
    told = [(event["state"], event["consumer"]) for event in events(broker, queue="two", state="SXI")]
    expected = [
        ("S", "one"),
        ("I", "third"),
        ("S", "other"),
        ("X", "other"),
        ("S", "one"),
        ("S", "other"),
        ("X", "other"),
    ]
    assert told == expected


def test_each_of_several_consumers_gets_again_what_it_gave_back(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/again", {"confirmations": 2, "visibility_timeout": 600}).status == 201
    publish(broker, {"topics": ["again"], "message": "x"})
    (message,) = take(broker, "queues/again", consumer="one")
    take(broker, "queues/again", consumer="other")
    confirm(broker, {"id": message["id"], "consumer": "one", "outcome": "retry", "delay": 0.1})
    (back,) = take(broker, "queues/again", consumer="one", wait=10)
    assert (back["id"], back["receives"]) == (message["id"], 2)
    assert take(broker, "queues/again", consumer="other") == []


def test_a_message_fails_for_all_consumers_when_one_has_had_it_as_often_as_it_may(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/gave-up").status == 201
    policy = {"max_receives": 2, "dead_letter_queue": "gave-up"}
    made = {"confirmations": 2, "visibility_timeout": 0.2, "redrive_policy": policy}
    assert call(broker, "PUT", "/v1/queues/trying", made).status == 201
    publish(broker, {"topics": ["trying"], "message": "x"})
    (message,) = take(broker, "queues/trying", consumer="one")
    wrong = call(broker, "POST", "/v1/confirm", {"id": message["id"], "consumer": "one", "delivery": 77})
    assert wrong.status == 409
    (again,) = take(broker, "queues/trying", consumer="one", wait=10)
    assert again["receives"] == 2
    (dead,) = take(broker, "queues/gave-up", wait=10)
    assert dead["id"] == message["id"]
    told = [(event["state"], event["receives"]) for event in events(broker, queue="trying", state="FRE")]
    assert told == [("F", 1), ("R", 1), ("F", 2), ("E", 2)]
    assert call(broker, "GET", "/v1/queues/trying").json()["status"]["messages"] == 0


def test_a_worker_of_another_dialect_is_one_of_the_consumers(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/mixed", {"confirmations": 2}).status == 201
    publish(broker, {"topics": ["mixed"], "message": "x"})
    (message,) = take(broker, "queues/mixed", consumer="one")
    received = broker.request("GET", "/messages/mixed")
    assert received.header("X-MQS-MESSAGE-ID") == message["id"]
    assert broker.request("DELETE", f"/messages/{message['id']}").status == 204
    assert call(broker, "GET", "/v1/queues/mixed").json()["status"]["messages"] == 1
    assert confirm(broker, {"id": message["id"], "consumer": "one"})["discarded"] is False
    assert call(broker, "GET", "/v1/queues/mixed").json()["status"]["messages"] == 0


def test_whoever_waits_for_a_channel_is_woken(broker: Broker) -> None:
    channel(broker, "wake-channel", "wake.*")
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(take(broker, "channels/wake-channel", wait=20)))
    waiting.start()
    publish(broker, [{"topics": ["wake.up"], "message": "x"}])
    waiting.join(25)
    assert [message["message"] for message in got] == ["x"]


def test_a_channel_is_made_shown_changed_and_removed(broker: Broker) -> None:
    target = "/v1/channels/life-channel"
    assert call(broker, "GET", target).status == 404
    made = call(broker, "PUT", target, {"topics": ["life.*", "life.*"], "max_attempts": 3})
    assert made.status == 201
    assert (made.json()["topics"], made.json()["max_attempts"], made.json()["confirm"]) == (["life.*"], 3, True)
    changed = call(broker, "PUT", target, {"topics": ["death"], "push": {"url": "https://example.org/hook"}})
    assert (changed.status, changed.json()["max_attempts"]) == (200, 9)
    push = {"url": "https://example.org/hook", "max_in_flight": 8, "timeout": 30}
    assert changed.json()["push"].items() >= push.items()
    refused = call(broker, "PUT", target, {"topics": ["death"], "push": {"url": "http://127.0.0.1/"}})
    assert refused.status == 400
    assert publish(broker, {"topics": ["life.x"], "message": "x"})["channels"] == []
    assert "life-channel" in [
        each["name"] for each in call(broker, "GET", "/v1/channels?limit=1000").json()["channels"]
    ]
    assert call(broker, "DELETE", target).status == 204
    assert call(broker, "DELETE", target).status == 404
    assert publish(broker, {"topics": ["death"], "message": "x"})["channels"] == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"max_attempts": 50}, "<= 9"),
        ({"max_attempts": 0}, ">= 1"),
        ({"detect_unchanged": False}, "a channel always detects"),
        ({"topics": ["other"]}, "unknown field `topics`"),
    ],
)
def test_a_channel_is_changed_by_its_own_rules_also_as_a_queue(broker: Broker, document: Any, said: str) -> None:
    channel(broker, "ruled", "ruled-root.*")
    answer = call(broker, "PATCH", "/v1/queues/ruled", document)
    assert (answer.status, said in answer.json()["error"]) == (400, True), answer
    assert call(broker, "PATCH", "/v1/queues/ruled", {"max_attempts": 3, "lease": 5}).json()["max_attempts"] == 3
    assert call(broker, "GET", "/v1/channels/ruled").json()["topics"] == ["ruled-root.*"]


def test_a_channel_says_that_it_detects_what_has_not_changed(broker: Broker) -> None:
    channel(broker, "detects", "detects-root.*")
    for where in ("channels", "queues"):
        assert call(broker, "GET", f"/v1/{where}/detects").json()["detect_unchanged"] is True
    channel(broker, "detects", "detects-root.*", detect_unchanged=True)
    wanted = {"topics": ["detects-root.*"], "detect_unchanged": False}
    answer = call(broker, "PUT", "/v1/channels/detects", wanted)
    assert (answer.status, "a channel always detects" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("settings", [{"confirm": False}, {"push": {"url": "https://example.org/hook"}}])
def test_settings_that_do_not_go_together_are_refused(broker: Broker, settings: Any) -> None:
    wanted = {"topics": ["apart.*"], "confirmations": 2, **settings}
    refused = call(broker, "PUT", "/v1/channels/apart", wanted)
    assert (refused.status, refused.json()["code"]) == (400, "conflicting_settings")
    channel(broker, "apart", "apart.*", **settings)
    assert call(broker, "PATCH", "/v1/queues/apart", {"confirmations": 2}).status == 400
    assert call(broker, "DELETE", "/v1/channels/apart").status == 204


def test_confirmations_are_not_lowered_while_they_count(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/lower", {"confirmations": 2}).status == 201
    publish(broker, {"topics": ["lower"], "message": "x"})
    (message,) = take(broker, "queues/lower", consumer="one")
    refused = call(broker, "PATCH", "/v1/queues/lower", {"confirmations": 1})
    assert refused.status == 409
    assert "confirmations cannot be lowered" in refused.json()["error"]
    confirm(broker, {"id": message["id"], "consumer": "one", "outcome": "success"})
    confirm(broker, {"id": message["id"], "outcome": "success"})
    assert call(broker, "PATCH", "/v1/queues/lower", {"confirmations": 1}).status == 200


def test_a_queue_is_no_channel_and_its_name_is_taken(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/queues/plain", {}).status == 201
    for method, target in (("GET", ""), ("DELETE", ""), ("GET", "/messages")):
        assert call(broker, method, f"/v1/channels/plain{target}").status == 404
    assert call(broker, "PUT", "/v1/channels/plain", {"topics": ["a"]}).status == 409


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"message": "x", "topics": [".x"]}, "begins with the name of a queue"),
        ({"message": "x", "topics": ["a\n"]}, "must not have control characters"),
        ({"message": "x", "topics": ["a" * 251]}, "250 bytes"),
        ({"topics": ["a"]}, "message is missing"),
        ({"message": "x", "message_base64": "eA=="}, "both given"),
        ({"message_base64": "?"}, "not base64"),
        ({"message": "x", "key": "k" * 1025}, "1024 bytes"),
        ({"message": "x", "mimeType": "text/größe"}, "mimeType must be ASCII"),
        ({"message": "x", "colour": "red"}, "colour"),
        ({"message": "x", "expires": 0}, "expires"),
        ([{"message": "x"}, {"message": "x", "topics": [""]}], "message 1: a topic begins"),
        ("x", "the document must be an object, not text"),
    ],
)
def test_a_wrong_publish_is_refused_whole(broker: Broker, document: Any, said: str) -> None:
    answer = call(broker, "POST", "/v1/publish", document)
    assert answer.status == 400
    assert said in answer.json()["error"]


def test_what_was_published_and_said_is_there_after_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    channel(broker, "kill-channel", "kill.*")
    assert call(broker, "PUT", "/v1/queues/kill", {"confirmations": 2, "visibility_timeout": 600}).status == 201
    document = {"topics": ["kill.x"], "key": "1", "message": "x"}
    publish(broker, document)
    (message,) = take(broker, "queues/kill", consumer="one")
    take(broker, "queues/kill", consumer="other")
    confirm(broker, {"id": message["id"], "consumer": "one"})
    broker.kill()
    broker.start()
    assert publish(broker, document)["channels"] == []
    assert [each["message"] for each in take(broker, "channels/kill-channel")] == ["x"]
    assert confirm(broker, {"id": message["id"], "consumer": "one"})["discarded"] is True
    assert confirm(broker, {"id": message["id"], "consumer": "other"})["discarded"] is False
    assert call(broker, "GET", "/v1/queues/kill").json()["status"]["kept"] == 0


def used_up(broker: Broker, queue: str, deliveries: int) -> str:
    """Give a message back so often; its id."""
    message_id = ""
    for _ in range(deliveries):
        message_id = take(broker, f"queues/{queue}")[0]["id"]
        confirm(broker, {"id": message_id, "outcome": "retry"})
    return message_id


def test_a_message_in_a_queue_made_by_a_topic_fails_after_nine_deliveries(broker: Broker) -> None:
    publish(broker, {"topics": ["nine-lives.x"], "message": "m"})
    assert call(broker, "GET", "/v1/queues/nine-lives").json()["max_attempts"] == 9
    message_id = used_up(broker, "nine-lives", 9)
    assert take(broker, "queues/nine-lives") == []
    assert letters(broker, "nine-lives") == "LQ" + "FR" * 8 + "FE"
    found = call(broker, "GET", f"/v1/messages/{message_id}").json()
    assert (found["state"], found["status"], found["completed"]) == ("E", "gone", None)
    assert found["failed"] == found["modified"]


def test_how_often_such_a_queue_delivers_is_a_setting(start_broker: StartBroker) -> None:
    broker = start_broker("topics.max_attempts=2")
    publish(broker, {"topics": ["twice.x"], "message": "m"})
    used_up(broker, "twice", 2)
    assert letters(broker, "twice") == "LQFRFE"


def test_a_queue_made_by_a_topic_may_have_a_dead_letter_queue_that_is_made_with_it(start_broker: StartBroker) -> None:
    broker = start_broker("topics.max_attempts=2", "topics.dead_letter_queue=undelivered")
    publish(broker, {"topics": ["lost.x", "found.x"], "message": "m"})
    made = call(broker, "GET", "/v1/queues/lost").json()
    assert (made["max_attempts"], made["redrive_policy"]) == (
        2,
        {"max_receives": 3, "dead_letter_queue": "undelivered"},
    )
    dead = call(broker, "GET", "/v1/queues/undelivered").json()
    assert (dead["max_attempts"], dead["redrive_policy"]) == (None, None)
    used_up(broker, "lost", 2)
    assert letters(broker, "lost") == "LQFRFE"
    (message,) = take(broker, "queues/undelivered")
    assert message["message"] == "m"
    publish(broker, {"topics": ["undelivered.by hand"], "message": "n"})
    assert [each["message"] for each in take(broker, "queues/undelivered", max=5)] == ["n"]


def test_a_dead_letter_queue_that_a_topic_names_first_has_none_itself(start_broker: StartBroker) -> None:
    broker = start_broker("topics.dead_letter_queue=ends")
    publish(broker, [{"topics": ["ends.x"], "message": "m"}, {"topics": ["starts.x"], "message": "m"}])
    assert call(broker, "GET", "/v1/queues/ends").json()["redrive_policy"] is None
    assert call(broker, "GET", "/v1/queues/starts").json()["redrive_policy"]["dead_letter_queue"] == "ends"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (1700000000, "2023-11-14T22:13:20Z"),
        (1700000000.25, "2023-11-14T22:13:20.25Z"),
        (1700000000123, "2023-11-14T22:13:20.123Z"),
        (0, "1970-01-01T00:00:00Z"),
        (99_999_999_999, "5138-11-16T09:46:39Z"),
        (100_000_000_000, "1973-03-03T09:46:40Z"),
        ("1700000000124", "2023-11-14T22:13:20.124Z"),
        ("2020-05-07T01:01:00+02:00", "2020-05-07T01:01:00+02:00"),
        ("20200507T010100", "20200507T010100"),
    ],
)
def test_the_time_of_a_producer_is_a_number_or_a_text(broker: Broker, given: Any, kept: str) -> None:
    receipt = publish(broker, {"object": "producer-times", "message": "m", "timestamp": given})
    assert call(broker, "GET", f"/v1/messages/{receipt['id']}").json()["timestamp"] == kept
    assert take(broker, "queues/producer-times")[0]["timestamp"] == kept
    by_parameter = f"/v1/publish?object=producer-times&timestamp={quote(str(given))}"
    receipt = broker.request("POST", by_parameter, {"Content-Type": "text/plain"}, b"m").json()
    assert call(broker, "GET", f"/v1/messages/{receipt['id']}").json()["timestamp"] == kept
    take(broker, "queues/producer-times")


@pytest.mark.parametrize(
    "given",
    ["yesterday", "2020-13-07T01:01:00Z", "2020-05-07", -1, 1.7e15, 1_700_000_000_000_000_000, True, [1], "x" * 300],
)
def test_what_is_no_time_is_no_time_of_a_producer(broker: Broker, given: Any) -> None:
    answer = call(broker, "POST", "/v1/publish", {"object": "no-times", "message": "m", "timestamp": given})
    assert (answer.status, "timestamp" in answer.json()["error"]) == (400, True)
    listed = call(broker, "POST", "/v1/publish", [{"message": "m", "timestamp": given}])
    assert listed.status == 400


def test_a_message_that_is_kicked_here_and_completed_there_is_completed(broker: Broker) -> None:
    channel(broker, "kicked-copies", "kicked-copy.*", confirm=False)
    receipt = publish(broker, {"topics": ["kicked-copy.x"], "message": "m"})
    take(broker, "channels/kicked-copies")
    take(broker, "queues/kicked-copy")
    confirm(broker, {"id": receipt["id"]})
    found = call(broker, "GET", f"/v1/messages/{receipt['id']}").json()
    assert found["state"] == "X"
    assert found["completed"] == found["modified"]


def states(broker: Broker, **parameters: str) -> str:
    return "".join(event["state"] for event in events(broker, **parameters))


def test_a_reader_of_a_topic_follows_its_messages_to_their_end(start_broker: StartBroker) -> None:
    broker = start_broker("topics.max_attempts=2", "topics.dead_letter_queue=dropped")
    channel(broker, "copies", "follow.*", retries=1)
    publish(broker, [{"topics": ["follow.me"], "message": "m"}, {"topics": ["unfollowed.me"], "message": "n"}])
    for _ in range(2):
        for queue in ("follow", "unfollowed"):
            confirm(broker, {"id": take(broker, f"queues/{queue}")[0]["id"], "outcome": "retry"})
    confirm(broker, {"id": take(broker, "channels/copies")[0]["id"], "outcome": "retry"})
    for message in take(broker, "queues/dropped", max=5):
        confirm(broker, {"id": message["id"]})
    # In its queue, as a copy in the channel, and as a dead letter.
    assert states(broker, topic="follow.*") == "LQQFRFEQFEFSX"
    assert states(broker, topic="follow.me", state="EX") == "EEX"
    assert states(broker, topic="follow.me", queue="dropped") == "QFSX"
    assert states(broker, topic="follow") == ""
    every = events(broker)
    wanted = events(broker, topic="follow.*")
    assert [event for event in every if event in wanted] == wanted


def test_a_reader_that_begins_in_the_middle_knows_the_messages_from_before(start_broker: StartBroker) -> None:
    broker = start_broker("topics.max_attempts=1", "topics.dead_letter_queue=dropped")
    publish(broker, [{"topics": [f"middle.{number}"], "message": "m"} for number in range(20)])
    first, second = take(broker, "queues/middle", max=2)
    confirm(broker, {"id": first["id"], "outcome": "retry"})
    every = events(broker, topic="middle.*")
    confirm(broker, {"id": second["id"]})
    confirm(broker, {"id": take(broker, "queues/dropped")[0]["id"], "outcome": "invalid"})
    for start in {event["next"] for event in every}:
        later = events(broker, **{"from": start, "topic": "middle.*"})
        assert later == events(broker, **{"from": start})
        assert states(broker, **{"from": start, "topic": "middle.0"})[-2:] == "FI"
        assert states(broker, **{"from": start, "topic": "middle.1"})[-2:] == "SX"
        assert states(broker, **{"from": start, "topic": "other.*"}) == ""
    arrow = broker.request(
        "GET",
        f"/v1/events?topic=middle.0&from={every[-1]['next']}",
        {"Accept": "application/vnd.apache.arrow.stream"},
    )
    assert pa.ipc.open_stream(arrow.body).read_all().column("letter").to_pylist() == ["F", "I"]


def test_a_live_reader_of_a_topic_sees_the_end_of_a_message_that_was_there_before_it(broker: Broker) -> None:
    receipt = publish(broker, {"topics": ["live-end.x"], "message": "m"})
    take(broker, "queues/live-end")
    with broker.connect() as connection:
        head = connection.begin("/v1/events?follow=true&from=latest&topic=live-end.*")
        assert head.status == 200
        confirm(broker, {"id": receipt["id"]})
        seen = b""
        while seen.count(b"\n") < 2:
            seen += connection.read_chunk()
    assert [json.loads(line)["state"] for line in seen.splitlines()] == ["S", "X"]


def test_a_reader_of_a_topic_sees_the_end_of_a_queue_that_has_such_messages(broker: Broker) -> None:
    publish(broker, [{"topics": ["ending.x"], "message": "m"}, {"topics": ["staying.x"], "message": "n"}])
    for queue in ("ending", "staying"):
        assert call(broker, "DELETE", f"/v1/queues/{queue}").status == 204
    assert states(broker, topic="ending.*") == "LQD"


def test_a_reader_of_a_topic_goes_back_over_many_segments(start_broker: StartBroker) -> None:
    broker = start_broker("log.segment_bytes=65536", "log.retention_bytes=100000000")
    old = publish(broker, {"topics": ["far.back"], "message": "m"})
    take(broker, "queues/far")
    for _ in range(30):
        publish(broker, [{"topics": ["near.x"], "message": "n" * 500} for _ in range(20)])
        for message in take(broker, "queues/near", max=20):
            confirm(broker, {"id": message["id"]})
    middle = events(broker, state="X")[-1]["next"]
    confirm(broker, {"id": old["id"]})
    assert states(broker, **{"from": middle, "topic": "far.*"}) == "SX"
    assert states(broker, topic="far.*") == "LQFSX"
