"""A message posted in one dialect is taken, finished and followed in every other, restarts and kill -9 included.

Tests that kill and restart have one worker: several are killed in tests/torture and tests/wire/test_nodes.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from typing import Any

import pytest

from tests.support.broker import Site, StartBroker
from tests.support.dialect_clients import CLIENTS, Client, NqClient, Taken
from tests.support.ws_client import WsClient

PAIRS = list(product(CLIENTS, CLIENTS))
BODY = 'Grüße, "☃"\n'  # What JSON must escape, and what is not ASCII.


def client(dialect: str, broker: Site) -> closing[Client]:
    return closing(CLIENTS[dialect](broker))


def letters(broker: Site, queue: str = "work", sequence: int = 1) -> str:
    """What the Event Log tells of a message."""
    lines = broker.request("GET", f"/v1/events?queue={queue}").body.splitlines()
    return "".join(event["state"] for event in map(json.loads, lines) if event["sequence"] == sequence)


def publish(poster: Client, queue: str = "work", body: str = BODY) -> None:
    assert list(poster.publish(queue, [body])) == [body]


def take(taker: Client, queue: str = "work") -> Taken:
    (taken,) = taker.take(queue, 1)
    return taken


def finish(taker: Client, taken: Taken, queue: str = "work") -> bool:
    ((_, granted),) = taker.finish(queue, [taken])
    return granted


def counts(broker: Site, queue: str = "work") -> tuple[int, int, int]:
    """Messages, as mqs and as glovebox count them, and those that are leased."""
    seen = broker.request("GET", f"/queues/{queue}").json()["status"]["messages"]
    status = broker.request("GET", f"/status/{queue}").json()
    return seen, status["length"], status["in_flight"]


# ── A queue that forgets what is finished ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("poster", "taker"), PAIRS)
def test_posted_here_taken_and_finished_there(site: Site, poster: str, taker: str) -> None:
    queue = f"{poster}-{taker}"
    site.create_queue(queue)
    with client(poster, site) as one, client(taker, site) as other:
        publish(one, queue)
        assert counts(site, queue) == (1, 1, 0)
        taken = take(other, queue)
        assert taken.body == BODY
        assert counts(site, queue) == (1, 1, 1)
        assert finish(other, taken, queue)
        assert counts(site, queue) == (0, 0, 0)
    assert letters(site, queue) == "LQFSX"


def test_nobody_else_has_what_one_has(site: Site) -> None:
    site.create_queue("shared")
    with ExitStack() as stack:
        everyone = [stack.enter_context(client(dialect, site)) for dialect in CLIENTS]
        publish(everyone[0], "shared")
        taken = take(everyone[0], "shared")
        assert [each.take("shared", 1) for each in everyone] == [[]] * len(CLIENTS)
        assert finish(everyone[0], taken, "shared")


def test_what_is_posted_here_is_there_after_a_kill_and_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    for poster, taker in PAIRS:
        broker.create_queue(f"{poster}-{taker}")
        with client(poster, broker) as one:
            publish(one, f"{poster}-{taker}")
    broker.kill()
    broker.start()
    broker.stop()
    broker.start()
    for poster, taker in PAIRS:
        queue = f"{poster}-{taker}"
        with client(taker, broker) as other:
            taken = take(other, queue)
            assert taken.body == BODY
            assert finish(other, taken, queue)
    broker.kill()
    broker.start()
    for poster, taker in PAIRS:
        assert counts(broker, f"{poster}-{taker}") == (0, 0, 0)
        assert letters(broker, f"{poster}-{taker}") == "LQFSX"


@pytest.mark.parametrize("taker", [dialect for dialect in CLIENTS if dialect != "websocket"])
def test_a_lease_outlives_the_broker_where_the_message_is_all_one_needs_to_finish_it(
    start_broker: StartBroker, taker: str
) -> None:
    broker = start_broker()
    broker.create_queue("work")
    with client("websocket", broker) as one, client(taker, broker) as other:
        publish(one)
        if isinstance(other, NqClient):
            other.lease_seconds = 600  # The broker may take long to come back.
        taken = take(other)
    broker.kill()
    broker.start()
    assert counts(broker) == (1, 1, 1)
    with client(taker, broker) as other:
        assert finish(other, taken)
    assert letters(broker) == "LQFSX"


def test_a_session_that_the_broker_has_lost_holds_nothing_and_the_message_returns(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("work", visibility_timeout=1)
    with client("mqs", broker) as one, WsClient(broker.http) as other:
        publish(one)
        other.hear()
        fetched = other.ask(type="fetch", queue="work", label=1, block_timeout=5)
        assert fetched["body"] == BODY
    broker.kill()
    broker.start()
    with client("lines", broker) as one, WsClient(broker.http) as other:
        other.hear()
        gone = other.ask(type="finish", queue="work", sequence=fetched["sequence"], shard=fetched["shard"], label=2)
        assert (gone["type"], gone["code"]) == ("error", "NoObject")
        taken = next(each for _ in range(20) for each in one.take("work", 1))
        assert taken.body == BODY
        assert finish(one, taken)
    assert letters(broker) == "LQFRFSX"


# ── Followed ──────────────────────────────────────────────────────────────────────────────────────────────

STAGES = ["ready", "write", "sync", "assign", "finish", "retry", "drop"]


@contextmanager
def a_followed_message(broker: Site) -> Iterator[tuple[str, WsClient]]:
    """A queue of its own, and a sender that has asked for every notice of the message in it."""
    queue = f"followed-{secrets.token_hex(4)}"
    broker.create_queue(queue)
    with WsClient(broker.http) as sender:
        sender.hear()
        sender.say({"type": "post", "queue": queue, "message": BODY, "label": 7, "priority": 0, "notify": STAGES})
        assert [notice(sender) for _ in range(3)] == ["ready", "write", "sync"]
        yield queue, sender


@pytest.fixture
def followed(site: Site) -> Iterator[tuple[str, WsClient]]:
    with a_followed_message(site) as both:
        yield both


def notice(sender: WsClient) -> str:
    heard = sender.hear()
    assert (heard["type"], heard["label"]) == ("notice", 7), heard
    stage: str = heard["notice"]
    return stage


@pytest.mark.parametrize("taker", CLIENTS)
def test_a_sender_hears_what_every_other_dialect_does_with_its_message(
    site: Site, followed: tuple[str, WsClient], taker: str
) -> None:
    queue, sender = followed
    with client(taker, site) as other:
        taken = take(other, queue)
        assert notice(sender) == "assign"
        assert finish(other, taken, queue)
        assert notice(sender) == "finish"


def test_a_sender_hears_of_a_message_that_is_handed_over_for_good(site: Site, followed: tuple[str, WsClient]) -> None:
    queue, sender = followed
    asked = {"receiver": "once", "timeout": 5, "queues": {queue: {"retry_num": 0}}}
    pulled = site.request("POST", "/pull", body=json.dumps(asked).encode())
    assert [each["message"] for each in pulled.json()["messages"][queue]] == [BODY]
    assert notice(sender) == "finish"


def test_a_sender_hears_of_a_lease_that_runs_out_and_of_the_last_one(start_broker: StartBroker) -> None:
    broker = start_broker()
    with WsClient(broker.http) as sender, client("mqs", broker) as other:
        sender.hear()
        sender.ask(type="create", queue="work", label=1, retries=2, visibility_timeout=0.2)
        sender.say({"type": "post", "queue": "work", "message": BODY, "label": 7, "priority": 0, "notify": STAGES})
        assert [notice(sender) for _ in range(3)] == ["ready", "write", "sync"]
        take(other)
        assert [notice(sender) for _ in range(2)] == ["assign", "retry"]
        take(other)
        assert [notice(sender) for _ in range(2)] == ["assign", "drop"]
    assert letters(broker) == "LQFRFE"


def test_a_sleeping_worker_and_everyone_who_waits_hear_of_a_message_from_anywhere(site: Site) -> None:
    for poster in CLIENTS:
        queue = f"wake-{secrets.token_hex(4)}"
        site.create_queue(queue)
        with client(poster, site) as one, WsClient(site.http, "/connect") as sleeper:
            sleeper.say({"cmd": "ISLP", "qname": queue})
            assert sleeper.hear()["cmd"] == "okslp"
            publish(one, queue)
            assert sleeper.hear() == {"cmd": "awk", "qname": queue}


# ── A queue that keeps what is finished ───────────────────────────────────────────────────────────────────


def pull(broker: Site, receiver: str, **more: Any) -> list[dict[str, Any]]:
    asked = {"receiver": receiver, "timeout": 0, "queues": {"work": {"max": 10, "retry_num": 2}}, **more}
    answer = broker.request("POST", "/pull", body=json.dumps(asked).encode())
    messages: list[dict[str, Any]] = answer.json()["messages"]["work"] if answer.status == 200 else []
    return messages


@pytest.mark.parametrize("taker", [dialect for dialect in CLIENTS if dialect != "nq"])
def test_what_workers_have_finished_stays_for_receivers(start_broker: StartBroker, taker: str) -> None:
    broker = start_broker()
    with client("nq", broker) as one, client(taker, broker) as other:
        publish(one)
        assert [each["message"] for each in pull(broker, "before")] == [BODY]
        assert finish(other, take(other))
        broker.kill()
        broker.start()
        assert pull(broker, "before") == []
        assert [each["message"] for each in pull(broker, "after")] == [BODY]
    with client(taker, broker) as other:
        assert other.take("work", 1) == []
        publish(other)
        assert [each["id"] for each in pull(broker, "before")] == [2]


def test_a_result_is_heard_by_the_sender_and_read_by_anyone(start_broker: StartBroker) -> None:
    broker = start_broker()
    with client("nq", broker) as one, WsClient(broker.http) as sender:
        publish(one, body="first")
        sender.hear()
        sender.say({"type": "post", "queue": "work", "message": BODY, "label": 7, "priority": 0, "notify": STAGES})
        assert [notice(sender) for _ in range(3)] == ["ready", "write", "sync"]
        assert [each["id"] for each in pull(broker, "server")] == [1, 2]
        assert notice(sender) == "assign"
        asked = {"receiver": "server", "timeout": 0, "results": {"work": {"2": "done"}}}
        assert broker.request("POST", "/pull", body=json.dumps(asked).encode()).json() == {}
        assert notice(sender) == "finish"
        read = broker.request("GET", "/v1/results/work/2?receiver=server&timeout=0").json()
        assert (read["id"], read["result"]) == (2, "done")
