"""Redrives and schedules over the wire: dead letters go back, delayed messages are cancelled and moved in time."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.event_history import events, make_queue, publish, settle
from tests.support.waiting import wait_until
from tests.wire.test_documents import document, letters
from tests.wire.test_search import ask, search

Row = dict[str, Any]


def redrive(broker: Broker, status: int = 200, **order: Any) -> Row:
    answer = broker.request("POST", "/v1/redrive", body=json.dumps({"from": order.pop("source"), **order}).encode())
    assert answer.status == status, answer
    found: Row = answer.json()
    return found


def fall(broker: Broker, name: str, *bodies: bytes) -> None:
    """Messages of `name` end up in `name-dead`."""
    make_queue(broker, f"{name}-dead")
    policy = {"max_receives": 1, "dead_letter_queue": f"{name}-dead"}
    make_queue(broker, name, visibility_timeout=0, redrive_policy=policy)
    publish(broker, name, *bodies)
    settle(broker, name)
    broker.request("PATCH", f"/v1/queues/{name}", body=b'{"redrive_policy": null, "visibility_timeout": 30}')


def ready(broker: Broker, name: str) -> int:
    found: int = broker.request("GET", f"/v1/queues/{name}").json()["status"]["ready"]
    return found


def test_dead_letters_go_back_and_their_ids_go_on_working(broker: Broker) -> None:
    fall(broker, "back", b"a", b"b", b"c")
    assert ready(broker, "back-dead") == 3
    assert redrive(broker, source="back-dead", dry_run=True) | {"job": ""} == {
        "job": "",
        "state": "done",
        "from": "back-dead",
        "to": None,
        "matched": 3,
        "moved": 0,
        "dry_run": True,
    }
    done = redrive(broker, source="back-dead")
    assert (done["matched"], done["moved"], done["state"]) == (3, 3, "done")
    received = settle(broker, "back").messages()
    assert [message.body for message in received] == [b"a", b"b", b"c"]
    first = received[0].header("X-MQS-MESSAGE-ID")
    assert first
    assert broker.request("DELETE", f"/messages/{first}").status == 204
    found = document(broker, first)
    assert (letters(found), found["failed"]) == ("LQFEQQFSX", None)
    assert [event["state"] for event in events(broker, "queue=back-dead&state=Q")] == ["Q", "Q", "Q"]


def test_a_filter_chooses_and_the_rest_stays(broker: Broker) -> None:
    fall(broker, "chosen", b"red apple", b"green apple", b"red pear")
    make_queue(broker, "red")
    done = redrive(broker, source="chosen-dead", to="red", filter={"text": "red", "state": "ready"})
    assert (done["matched"], done["moved"], done["to"]) == (2, 2, "red")
    assert [message["message"] for message in search(broker, queue="chosen-dead")] == ["green apple"]
    assert [message["message"] for message in search(broker, queue="red")] == ["red apple", "red pear"]


def test_a_filter_takes_times_as_a_search_does(broker: Broker) -> None:
    fall(broker, "timed", b"x")
    now = time.time()
    for times, matched in (({"since": now - 100, "until": int(now) + 100}, 1), ({"since": f"{now + 100:.3f}"}, 0)):
        assert redrive(broker, source="timed-dead", filter=times, dry_run=True)["matched"] == matched


def test_what_has_nowhere_to_go_back_to_stays(broker: Broker) -> None:
    make_queue(broker, "homeless")
    publish(broker, "homeless", b"x")
    done = redrive(broker, source="homeless")
    assert (done["matched"], done["moved"], ready(broker, "homeless")) == (1, 0, 1)


def test_a_slow_redrive_goes_on_in_the_background_and_can_be_stopped(broker: Broker) -> None:
    fall(broker, "slow", *[b"%d" % number for number in range(200)])
    began = time.monotonic()
    job = redrive(broker, 202, source="slow-dead", rate=8)
    assert (job["state"], job["moved"] < 200) == ("running", True)
    wait_until(lambda: broker.request("GET", f"/v1/redrive/{job['job']}").json()["moved"] >= 20, "20 have moved")
    assert time.monotonic() - began >= 19 / 8
    assert broker.request("DELETE", f"/v1/redrive/{job['job']}").status == 204
    stopped = broker.request("GET", f"/v1/redrive/{job['job']}").json()
    assert stopped["state"] == "stopped"
    assert job["job"] in {each["job"] for each in broker.request("GET", "/v1/redrive").json()["redrives"]}
    assert ready(broker, "slow") + ready(broker, "slow-dead") == 200
    assert ready(broker, "slow") == stopped["moved"]


def test_a_long_redrive_moves_everything_once_and_survives_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    for start in range(0, 5000, 1000):
        if start == 0:
            fall(broker, "many", *[b"%d" % number for number in range(1000)])
        else:
            publish(broker, "many-dead", *[b"%d" % number for number in range(start, start + 1000)])
    make_queue(broker, "target")
    done = redrive(broker, source="many-dead", to="target")
    assert (done["matched"], done["moved"]) == (5000, 5000)
    broker.kill()
    broker.start()
    assert (ready(broker, "target"), ready(broker, "many-dead")) == (5000, 0)
    found = search(broker, queue="target", limit=1000)
    assert sorted(int(message["message"]) for message in found) == list(range(5000))


@pytest.mark.parametrize(
    ("order", "status", "error"),
    [
        ({"from": "not-there"}, 404, "not-there"),
        ({"from": "orders-here", "to": "not-there"}, 404, "not-there"),
        ({"from": "orders-here", "to": "orders-here"}, 400, "another queue"),
        ({"from": "orders-here", "filter": {"queue": "x"}}, 400, "queue"),
        ({"from": "orders-here", "filter": {"state": "lost"}}, 400, "state"),
        ({"from": "orders-here", "filter": {"text": 17}}, 400, "text must be text"),
        ({"from": "orders-here", "filter": {"since": -1}}, 400, "filter"),
        ({"from": "orders-here", "rate": 0}, 400, "rate"),
        ({"to": "orders-here"}, 400, "from"),
        ({"from": "orders-here", "fast": True}, 400, "fast"),
        ([], 400, "object"),
    ],
)
def test_wrong_orders_are_refused(broker: Broker, order: Any, status: int, error: str) -> None:
    broker.request("PUT", "/v1/queues/orders-here")
    answer = broker.request("POST", "/v1/redrive", body=json.dumps(order).encode())
    assert (answer.status, error in answer.json()["error"]) == (status, True), answer


def test_an_unknown_job_is_not_found(broker: Broker) -> None:
    for method in ("GET", "DELETE"):
        assert broker.request(method, "/v1/redrive/none").status == 404


# ── Schedules ─────────────────────────────────────────────────────────────────────────────────────────────────


def planned(broker: Broker, name: str) -> str:
    make_queue(broker, name, message_delay=3600)
    publish(broker, name, b"later")
    (message,) = ask(broker, "/v1/schedule", queue=name)["messages"]
    message_id: str = message["id"]
    return message_id


def patch(broker: Broker, message_id: str, visible_at: Any) -> Any:
    body = json.dumps({"visible_at": visible_at}).encode()
    return broker.request("PATCH", f"/v1/schedule/{message_id}", body=body)


def test_a_scheduled_message_is_cancelled(broker: Broker) -> None:
    message_id = planned(broker, "cancelled")
    assert broker.request("DELETE", f"/v1/schedule/{message_id}").status == 204
    assert ask(broker, "/v1/schedule", queue="cancelled")["messages"] == []
    assert letters(document(broker, message_id)) == "LQD"
    assert broker.request("DELETE", f"/v1/schedule/{message_id}").status == 404


def test_a_scheduled_message_moves_in_time_and_wakes_who_waits(broker: Broker) -> None:
    message_id = planned(broker, "moved-in-time")
    later = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=0)
    answer = patch(broker, message_id, later.isoformat())
    assert (answer.status, answer.json()["id"]) == (200, message_id)
    (found,) = ask(broker, "/v1/schedule", queue="moved-in-time")["messages"]
    assert found["visible_at"] == answer.json()["visible_at"] == later.strftime("%Y-%m-%dT%H:%M:%S.000000000Z")
    with broker.connect() as waiting:
        waiting.send_request("GET", "/messages/moved-in-time", {"X-MQS-MAX-WAIT-TIME": "20"})
        assert patch(broker, message_id, time.time() + 0.2).status == 200
        received = waiting.read_response()
    assert (received.status, received.body) == (200, b"later")
    assert patch(broker, message_id, later.isoformat()).status == 409
    assert broker.request("DELETE", f"/v1/schedule/{message_id}").status == 409


@pytest.mark.parametrize("visible_at", ["tomorrow", None, -1, "2026-01-01", True, []])
def test_a_wrong_time_is_refused(broker: Broker, visible_at: Any) -> None:
    name = f"wrong-time-{str(visible_at).lower()}"
    message_id = planned(broker, name.replace("[", "").replace("]", ""))
    assert patch(broker, message_id, visible_at).status == 400
    assert patch(broker, "nonsense", 5).status == 404
