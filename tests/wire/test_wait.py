"""Waiting over HTTP until messages are taken, or done."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Connection
from tests.wire.test_topics import call, channel, confirm, publish, take

Entry = dict[str, Any]


def queue(broker: Broker, name: str, **settings: Any) -> str:
    assert call(broker, "PUT", f"/v1/queues/{name}", settings).status == 201
    return name


def send(broker: Broker, name: str, *messages: Any) -> list[str]:
    answer = call(broker, "POST", f"/v1/queues/{name}/messages", [{"message": each} for each in messages or ("m",)])
    assert answer.status == 201, answer
    return [receipt["id"] for receipt in answer.json()]


def wait(broker: Broker, *ids: str, until: str = "done", seconds: float = 20) -> list[Entry]:
    answer = call(broker, "POST", "/v1/wait", {"ids": ids, "until": until, "wait": seconds})
    assert answer.status == 200, answer
    entries: list[Entry] = answer.json()["messages"]
    return entries


class Waiter:
    """A wait that is under way while the test goes on."""

    def __init__(self, broker: Broker, *ids: str, until: str = "done", seconds: float = 20) -> None:
        self.connection: Connection = broker.connect()
        body = json.dumps({"ids": ids, "until": until, "wait": seconds}).encode()
        self.connection.send_request("POST", "/v1/wait", {"Content-Type": "application/json"}, body)

    def entries(self) -> list[Entry]:
        with self.connection:
            answer = self.connection.read_response()
        assert answer.status == 200, answer
        entries: list[Entry] = answer.json()["messages"]
        return entries

    def outcome(self) -> str:
        (entry,) = self.entries()
        outcome: str = entry["outcome"]
        return outcome


def test_a_wait_ends_when_the_first_message_is_done_with_its_result(broker: Broker) -> None:
    first, second = send(broker, queue(broker, "wait-first"), 1, 2)
    waiter = Waiter(broker, first, second)
    take(broker, "queues/wait-first", max=2, consumer="c")
    confirm(broker, {"id": second, "consumer": "c", "result": "fünf"})
    (entry,) = waiter.entries()
    assert entry.pop("time").startswith("20")
    facts = {"state": "X", "event": "completed", "outcome": "success", "consumer": "c", "result": "fünf"}
    assert entry == {"id": second, **facts}


def test_messages_that_end_together_are_reported_together(broker: Broker) -> None:
    ids = send(broker, queue(broker, "wait-together"), *range(100))
    waiter = Waiter(broker, *ids)
    take(broker, "queues/wait-together", max=100)
    confirm(broker, [{"id": each} for each in ids])
    assert [entry["id"] for entry in waiter.entries()] == ids


def test_what_is_done_already_is_reported_at_once(broker: Broker) -> None:
    wait(broker, *send(broker, queue(broker, "wait-before")), seconds=0)  # From now on ends are remembered.
    take(broker, "queues/wait-before")
    ids = send(broker, "wait-before", 1, 2)
    take(broker, "queues/wait-before", max=2, consumer="c")
    confirm(broker, {"id": ids[0], "outcome": "not_interested"})
    (entry,) = wait(broker, *ids, seconds=0)
    assert (entry["id"], entry["state"], entry["outcome"]) == (ids[0], "N", "not_interested")


def test_a_message_that_ended_long_ago_is_found_in_the_log(start_broker: StartBroker) -> None:
    broker = start_broker()
    (message,) = send(broker, queue(broker, "wait-log"))
    take(broker, "queues/wait-log", consumer="c")
    confirm(broker, {"id": message, "consumer": "c", "result": "r"})
    broker.stop()
    broker.start()
    (entry,) = wait(broker, message, seconds=0)
    assert (entry["outcome"], entry["consumer"], entry["result"]) == ("success", "c", "r")


def test_without_an_end_the_answer_is_empty_when_the_time_is_over(broker: Broker) -> None:
    ids = send(broker, queue(broker, "wait-none"), 1, 2)
    began = time.monotonic()
    assert wait(broker, *ids, seconds=0.3) == []
    assert 0.25 < time.monotonic() - began < 10
    assert wait(broker, *ids, seconds=0) == []


def test_an_unknown_id_is_an_error_of_its_own(broker: Broker) -> None:
    (message,) = send(broker, queue(broker, "wait-unknown"))
    unknown = "00000000-0000-8000-8000-000000000000"
    (entry,) = wait(broker, unknown, message)
    assert entry == {"id": unknown, "error": "the message does not exist", "code": "no_message"}
    assert [each["code"] for each in wait(broker, "no id at all")] == ["no_message"]


@pytest.mark.parametrize(
    ("outcome", "reported"), [("success", "success"), ("invalid", "invalid"), ("not_interested", "not_interested")]
)
def test_each_outcome_of_a_consumer_is_reported(broker: Broker, outcome: str, reported: str) -> None:
    name = queue(broker, f"wait-{outcome}")
    (message,) = send(broker, name)
    waiter = Waiter(broker, message)
    take(broker, f"queues/{name}", consumer="c")
    confirm(broker, {"id": message, "outcome": outcome, "consumer": "c"})
    assert waiter.outcome() == reported


def test_a_message_without_deliveries_left_has_failed(broker: Broker) -> None:
    name = queue(broker, "wait-failed", retries=2)
    (message,) = send(broker, name)
    waiter = Waiter(broker, message)
    for _ in range(2):
        take(broker, f"queues/{name}")
        confirm(broker, {"id": message, "outcome": "retry"})
    assert waiter.outcome() == "failed"


def test_a_message_that_expires_or_is_deleted_is_done(broker: Broker) -> None:
    name = queue(broker, "wait-ends")
    expiring = call(broker, "POST", f"/v1/queues/{name}/messages", {"message": 1, "expires": 0.2}).json()["id"]
    assert Waiter(broker, expiring).outcome() == "expired"
    deleted, removed = send(broker, name, 1, 2)
    waiter = Waiter(broker, deleted)
    assert broker.request("DELETE", f"/v1/messages/{deleted}").status == 204
    (entry,) = waiter.entries()
    assert (entry["outcome"], entry["consumer"]) == ("deleted", None)
    waiter = Waiter(broker, removed)
    assert broker.request("DELETE", f"/v1/queues/{name}").status == 204
    assert waiter.outcome() == "deleted"


def test_a_dead_letter_has_failed_unless_its_last_consumer_still_finishes_it(broker: Broker) -> None:
    queue(broker, "wait-dead")
    policy = {"max_receives": 1, "dead_letter_queue": "wait-dead"}
    name = queue(broker, "wait-hard", visibility_timeout=2, redrive_policy=policy)
    finished, given_back, forgotten = send(broker, name, 1, 2, 3)
    waiters = [Waiter(broker, each) for each in (finished, given_back, forgotten)]
    take(broker, f"queues/{name}", max=3, consumer="c")
    confirm(broker, {"id": finished, "consumer": "c"})
    confirm(broker, {"id": given_back, "consumer": "c", "outcome": "retry"})
    assert [waiter.outcome() for waiter in waiters[:2]] == ["success", "dead_lettered"]
    (entry,) = waiters[2].entries()
    assert (entry["state"], entry["outcome"]) == ("E", "dead_lettered")
    assert [each["outcome"] for each in wait(broker, finished, seconds=0)] == ["success"]
    assert [each["outcome"] for each in wait(broker, forgotten, seconds=0)] == ["dead_lettered"]


def test_a_message_whose_retries_are_used_up_is_dead_lettered_when_it_is_given_back(broker: Broker) -> None:
    queue(broker, "wait-dead-later")
    policy = {"max_receives": 9, "dead_letter_queue": "wait-dead-later"}
    name = queue(broker, "wait-retries", retries=1, redrive_policy=policy)
    (message,) = send(broker, name)
    waiter = Waiter(broker, message)
    take(broker, f"queues/{name}", consumer="c")
    confirm(broker, {"id": message, "consumer": "c", "outcome": "retry"})
    assert waiter.outcome() == "dead_lettered"


def test_a_message_in_several_queues_is_done_when_it_is_done_in_all(broker: Broker) -> None:
    channel(broker, "wait-channel", "wait-a.*")
    wait(broker, publish(broker, {"message": "first"})["id"], seconds=0)
    message = publish(broker, {"topics": ["wait-a.x", "wait-b"], "message": "m"})["id"]
    waiter = Waiter(broker, message)
    (here,), (there,) = take(broker, "queues/wait-a"), take(broker, "queues/wait-b")
    (copy,) = take(broker, "channels/wait-channel", consumer="c")
    for each in (here, there):
        confirm(broker, {"id": each["id"]})
        assert wait(broker, message, seconds=0) == []
    confirm(broker, {"id": copy["id"], "outcome": "invalid", "consumer": "c"})
    (entry,) = waiter.entries()
    assert (entry["id"], entry["outcome"], entry["consumer"]) == (message, "invalid", "c")
    assert [each["outcome"] for each in wait(broker, copy["id"], here["id"], seconds=0)] == ["invalid", "invalid"]


def test_where_several_have_to_confirm_all_of_them_have(broker: Broker) -> None:
    name = queue(broker, "wait-votes", confirmations=2)
    (message,) = send(broker, name)
    waiter = Waiter(broker, message)
    for consumer in ("a", "b"):
        take(broker, f"queues/{name}", consumer=consumer)
        assert wait(broker, message, seconds=0) == []
        confirm(broker, {"id": message, "consumer": consumer, "result": consumer})
    (entry,) = waiter.entries()
    assert (entry["outcome"], entry["result"]) == ("success", "b")


def test_an_unchanged_message_is_done_and_one_that_is_handed_over_too(broker: Broker) -> None:
    document = {"topics": ["wait-same"], "key": "1", "message": "m"}
    publish(broker, document)
    assert [each["outcome"] for each in wait(broker, publish(broker, document)["id"])] == ["unchanged"]
    channel(broker, "wait-fleeting", "wait-fire", confirm=False)
    publish(broker, {"topics": ["wait-fire"], "message": "m"})
    (copy,) = take(broker, "channels/wait-fleeting", consumer="c")
    (entry,) = wait(broker, copy["id"])
    assert (entry["outcome"], entry["event"], entry["consumer"]) == ("handed_over", "kicked", "c")


def test_taken_is_the_first_delivery_or_any_end(broker: Broker) -> None:
    name = queue(broker, "wait-taken")
    first, second = send(broker, name, 1, 2)
    waiter = Waiter(broker, first, until="taken")
    take(broker, f"queues/{name}", consumer="c")
    (entry,) = waiter.entries()
    assert (entry["state"], entry["event"], entry["outcome"], entry["consumer"]) == ("F", "fetched", None, "c")
    assert wait(broker, first, until="taken", seconds=0) == [entry]
    waiter = Waiter(broker, second, until="taken")
    broker.request("DELETE", f"/v1/messages/{second}")
    assert waiter.outcome() == "deleted"


def test_a_document_waits_for_its_message(broker: Broker) -> None:
    name = queue(broker, "wait-document")
    (message,) = send(broker, name)
    assert call(broker, "GET", f"/v1/messages/{message}?until=taken&wait=0").json()["state"] == "Q"
    with broker.connect() as connection:
        connection.send_request("GET", f"/v1/messages/{message}?until=done&wait=20")
        take(broker, f"queues/{name}")
        confirm(broker, {"id": message})
        document = connection.read_response().json()
    assert (document["id"], document["state"], document["archived"]) == (message, "X", True)
    for query in ("until=gone", "until=done&wait=61", "until=done&wait=x"):
        assert broker.request("GET", f"/v1/messages/{message}?{query}").status == 400


def metrics(broker: Broker) -> str:
    return broker.request("GET", "/metrics").body.decode()


def test_a_wait_ends_with_the_broker_and_with_its_client(start_broker: StartBroker) -> None:
    broker = start_broker()
    (message,) = send(broker, queue(broker, "wait-stop"))
    gone, waiter = Waiter(broker, message, seconds=60), Waiter(broker, message, seconds=60)
    while "penstock_waited_messages 2.0" not in metrics(broker):
        pass
    gone.connection.close()
    while "penstock_waited_messages 1.0" not in metrics(broker):
        pass
    broker.ask_to_stop()
    assert waiter.entries() == []
    broker.wait_until_stopped()


def test_too_much_is_refused(broker: Broker) -> None:
    for document, status in (
        ({"ids": ["x"] * 1001}, 413),
        ({"ids": [], "wait": 61}, 400),
        ({"ids": [], "until": "gone"}, 400),
        ({}, 400),
    ):
        assert call(broker, "POST", "/v1/wait", document).status == status
    assert wait(broker) == []
