"""Everything that topics, outcomes, several confirmations, delays, schedules, redrives, staging and idempotency keys
write to the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penstock.model.kinds import Kind
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import batches
from penstock.storage.log.batch import RECORD_DTYPE
from tests.support.broker import Broker
from tests.support.event_history import call as tell
from tests.support.event_history import make_queue
from tests.support.waiting import wait_until
from tests.wire.test_idempotency import post
from tests.wire.test_redrive import redrive
from tests.wire.test_staging import commit, stage
from tests.wire.test_topics import call, channel, confirm, publish, take

LATER_SECONDS = 3600


def make_traffic(broker: Broker, rounds: int = 2) -> None:
    make_queue(broker, "rotten", retention_timeout=LATER_SECONDS)
    policy = {"max_receives": 1, "dead_letter_queue": "rotten"}
    lives = {"visibility_timeout": 0, "retention_timeout": 2 * LATER_SECONDS}
    channel(broker, "mail", "fruit.*", redrive_policy=policy, **lives)
    channel(broker, "picky", "fruit.sweet", retries=1)
    channel(broker, "screen", "*", confirm=False)
    make_queue(broker, "votes", confirmations=2, visibility_timeout=LATER_SECONDS)
    make_queue(broker, "once", confirmations=2, retries=1, visibility_timeout=LATER_SECONDS)
    assert call(broker, "PATCH", "/v1/queues/rotten", {"visibility_timeout": 60}).status == 200
    for number in range(rounds):
        _publish_to_topics(broker, number)
        _settle(broker)
        _vote(broker)
        _schedule(broker)
        _stage(broker, number)
        _repeat(broker, number)
    _recur(broker)


def kinds_of(data: Path) -> set[Kind]:
    """What a log has records of, housekeeping too."""
    kinds = set()
    for header, payload in batches(DataDirectory(data), 0):
        records = np.frombuffer(payload[header.heap_bytes :], RECORD_DTYPE)
        kinds |= {Kind(kind) for kind in records["kind"].tolist()}
    return kinds


def _publish_to_topics(broker: Broker, number: int) -> None:
    apple = {"topics": ["fruit.sweet", "food.healthy"], "key": "apple", "message": f"{number} äpples", "priority": 3}
    states = [publish(broker, apple)["state"] for _ in range(3)]
    assert states == ["Q", "U", "U"]
    publish(broker, {"topics": ["fruit.sour"], "object": "lemon", "message": {"sour": number}, "sender": "me"})
    lime = {"topics": ["fruit.sour"], "object": "lemon", "key": "lime", "message": "as ever"}
    publish(broker, lime | {"timestamp": f"2026-05-07T01:01:0{number % 10}Z"})
    publish(broker, {"message": "of no topic"})


def _settle(broker: Broker) -> None:
    """Every outcome; and copies that nobody wants go to another queue, and back, and elsewhere."""
    messages = take(broker, "queues/fruit", consumer="one", max=2) + take(broker, "queues/food", consumer="two")
    outcomes = ("invalid", "not_interested", "retry")
    for message, outcome, consumer in zip(messages, outcomes, ("one", "one", "two"), strict=False):
        longer = {"id": message["id"], "seconds": LATER_SECONDS, "consumer": consumer}
        assert call(broker, "POST", "/v1/extend", longer).status == 200
        confirm(broker, {"id": message["id"], "outcome": outcome, "consumer": consumer})
    (again,) = take(broker, "queues/food", consumer="one")
    confirm(broker, {"id": again["id"], "outcome": "success", "consumer": "one", "result": "eaten"})
    for message in take(broker, "channels/picky", consumer="three", max=10):
        confirm(broker, {"id": message["id"], "outcome": "retry"})
    take(broker, "channels/mail", consumer="three", max=10)  # For the last time: they are dead at once.
    take(broker, "channels/screen", max=3)
    tell(broker, "/post", {"messages": {"notes": ["read me"]}})
    tell(broker, "/pull", {"receiver": "wall", "queues": {"notes": {"retry_num": 0}}})
    assert redrive(broker, source="rotten", filter={"object": "fruit"})["moved"]
    redrive(broker, source="rotten", to="fruit", filter={"object": "lemon"})
    take(broker, "queues/fruit", consumer="four")  # And never says a word.


def _vote(broker: Broker) -> None:
    """Of six messages, consumers complete four; one is given back, and one is with a worker without a name. Of two
    more, one fails with one consumer while another has it, and one with a worker."""
    publish(broker, [{"object": "votes", "message": f"motion {number}"} for number in range(6)])
    taken = {name: take(broker, "queues/votes", consumer=name, max=6) for name in ("ann", "bob", "cyd")}
    first, second, third, fourth, fifth, _ = [message["id"] for message in taken["ann"]]
    _say(broker, first, ann="success", bob="success")  # Cyd has it still, when it is completed.
    _say(broker, second, ann="success", bob="invalid", cyd="success")
    _say(broker, third, ann="retry", bob="not_interested", cyd="success")
    _say(broker, fifth, ann="success")
    for message in take(broker, "queues/votes", max=5):
        if message["id"] in (fourth, fifth):
            confirm(broker, {"id": message["id"], "outcome": "success"})
    _say(broker, fourth, ann="success")
    take(broker, "queues/votes", consumer="ann", max=6)
    publish(broker, [{"object": "once", "message": f"only {number}"} for number in range(2)])
    taken = {name: take(broker, "queues/once", consumer=name, max=2) for name in ("ann", "bob")}
    _say(broker, taken["ann"][0]["id"], ann="retry")
    (message,) = take(broker, "queues/once")
    confirm(broker, {"id": message["id"], "outcome": "retry"})


def _say(broker: Broker, message: str, **outcomes: str) -> None:
    for consumer, outcome in outcomes.items():
        confirm(broker, {"id": message, "consumer": consumer, "outcome": outcome})


def _schedule(broker: Broker) -> None:
    later = {"object": "plans", "message": "later", "delay": LATER_SECONDS}
    now, much_later, never = (receipt["id"] for receipt in publish(broker, [later] * 3))
    for message, visible_at in ((now, 0), (much_later, "2100-01-01T00:00:00Z")):
        assert call(broker, "PATCH", f"/v1/schedule/{message}", {"visible_at": visible_at}).status == 200
    assert call(broker, "DELETE", f"/v1/schedule/{never}").status == 204
    assert take(broker, "queues/plans", consumer="one")


def _stage(broker: Broker, number: int) -> None:
    rows: dict[str, Any] = {
        "body": ["plum", "pear", "apricot"],
        "queue": ["rotten", None, None],
        "topics": [None, "fruit.sweet\nfood", "fruit.sour"],
        "object": ["plum", "pear", None],
        "key": ["p1", "p2", None],
    }
    assert stage(broker, rows, query="orchard", batch=number).status == 201
    assert commit(broker, query="orchard", batch=number, a=1).status == 200
    assert stage(broker, rows, query="orchard", batch=number + 1).status == 201
    assert broker.request("DELETE", f"/v1/stage/orchard/{number + 1}").status == 204


def _repeat(broker: Broker, number: int) -> None:
    """A publish that is sent twice with one key."""
    document = {"object": "orders", "message": f"order {number}"}
    first, second = (post(broker, f"order {number}", document).json() for _ in range(2))
    assert first == second


def _recur(broker: Broker) -> None:
    """A schedule that publishes once, and then has no queue to publish to."""
    make_queue(broker, "daily")
    schedule = {"queue": "daily", "message": "good morning", "every": 1}
    assert call(broker, "PUT", "/v1/schedules/morning", schedule).status == 201
    assert call(broker, "POST", "/v1/schedules/morning/run").status == 201
    assert call(broker, "DELETE", "/v1/queues/daily").status == 204
    wait_until(
        lambda: "last_error" in call(broker, "GET", "/v1/schedules/morning").json(), "a tick that brought no message"
    )
    assert call(broker, "DELETE", "/v1/schedules/morning").status == 204
