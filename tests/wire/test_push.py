"""Push, by a real broker process to an endpoint in this one."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.endpoint import OK, Endpoint, Pushed, answer
from tests.support.http_client import Response, encode_multipart

ALLOWED = "push.private_addresses=allow"
BATCH = {"Content-Type": "multipart/mixed; boundary=penstock-test"}


def put_channel(broker: Broker, url: str, name: str = "c", **settings: Any) -> Response:
    push = {"url": url} | settings.pop("push", {})
    body = {"topics": ["fruit.*"], "push": push} | settings
    return broker.request("PUT", f"/v1/channels/{name}", body=json.dumps(body).encode())


def a_channel(broker: Broker, url: str, name: str = "c", **settings: Any) -> None:
    made = put_channel(broker, url, name, **settings)
    assert made.status == 201, made


def publish(broker: Broker, *bodies: bytes, queue: str = "c") -> None:
    for start in range(0, len(bodies), 1000):
        batch = encode_multipart([({}, body) for body in bodies[start : start + 1000]])
        answer = broker.request("POST", f"/messages/{queue}", BATCH, batch)
        assert answer.status == 201, answer


def push_of(broker: Broker, name: str = "c") -> dict[str, Any]:
    push: dict[str, Any] = broker.request("GET", f"/v1/channels/{name}").json()["push"]
    return push


def finished(broker: Broker, queue: str, offset_below: int | None = None) -> set[str]:
    """The ids of the messages that are done with, as the Event Log has it."""
    answer = broker.request("GET", f"/v1/events?queue={queue}&state=S&bodies=false")
    events = [json.loads(line) for line in answer.body.splitlines()]
    return {event["id"] for event in events if offset_below is None or event["offset"] < offset_below}


def wait_until_empty(broker: Broker, queue: str, messages: int) -> None:
    """Follows the Event Log until so many messages are done with."""
    with broker.connect() as connection:
        connection.begin(f"/v1/events?queue={queue}&state=S&bodies=false&follow=true&limit={messages}")
        while connection.read_chunk():
            pass


def test_a_channel_says_how_its_push_goes(start_broker: StartBroker) -> None:
    broker = start_broker(ALLOWED, "push.circuit_failures=1", "push.retry_seconds=60")
    with Endpoint() as endpoint:
        a_channel(broker, endpoint.url, push={"max_in_flight": 3, "timeout": 1.5})
        publish(broker, b"a", b"b")
        wait_until_empty(broker, "c", 2)
        assert {endpoint.next().body, endpoint.next().body} == {b"a", b"b"}
        assert push_of(broker) == {
            "url": endpoint.url,
            "max_in_flight": 3,
            "timeout": 1.5,
            "circuit": "closed",
            "in_flight": 0,
            "last_error": None,
            "failing_since": None,
        }
        endpoint.answer = answer(500)
        publish(broker, b"c")
        endpoint.next()
        with broker.connect() as events:
            events.begin("/v1/events?queue=c&state=R&follow=true&limit=1")
            while events.read_chunk():
                pass
        push = push_of(broker)
        assert (push["circuit"], push["last_error"]) == ("open", "the endpoint answered 500")
        assert push["failing_since"] is not None
        (failed,) = broker.request("GET", "/v1/events?queue=c&state=R").body.splitlines()
        assert json.loads(failed)["reason"] == "the endpoint answered 500"
        metrics = broker.request("GET", "/metrics").body.decode()
        assert 'penstock_push_channels{circuit="open"} 1.0' in metrics
        assert 'penstock_push_outcomes_total{outcome="success"} 2.0' in metrics
        assert 'penstock_push_outcomes_total{outcome="retry"} 1.0' in metrics
    assert broker.times_logged("push_suspended") == 1


def test_what_is_published_to_a_topic_reaches_the_endpoints_of_its_channels(start_broker: StartBroker) -> None:
    broker = start_broker(ALLOWED)
    with Endpoint() as one, Endpoint(answer(422)) as two, Endpoint() as other:
        a_channel(broker, one.url, "one", topics=["fruit.*"])
        a_channel(broker, two.url, "two", topics=["fruit.sour"])
        a_channel(broker, other.url, "other", topics=["vegetable.*"])
        message = {"topics": ["fruit.sour"], "key": "7", "message": "lemon", "mimeType": "text/x-fruit"}
        published = broker.request("POST", "/v1/publish", body=json.dumps(message).encode())
        assert published.status == 201, published
        for endpoint, channel in ((one, "one"), (two, "two")):
            pushed = endpoint.next()
            assert (pushed.body, pushed.header("Content-Type")) == (b"lemon", "text/x-fruit")
            assert (pushed.header("X-Penstock-Channel"), pushed.header("X-Penstock-Key")) == (channel, "7")
            assert (pushed.header("X-Penstock-Topics"), pushed.header("X-Penstock-Object")) == ("fruit.sour", "fruit")
        with broker.connect() as events:
            events.begin("/v1/events?queue=one&queue=two&state=SI&follow=true&limit=2")
            ends = b"".join(iter(events.read_chunk, b""))
        assert {(end["queue"], end["state"]) for end in map(json.loads, ends.splitlines())} == {
            ("one", "S"),
            ("two", "I"),
        }
        assert other.is_quiet


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.org/", "http://"),
        ("http://127.0.0.1:9/", "private_addresses"),
        ("http://[::ffff:10.0.0.1]/", "private_addresses"),
        ("http://localhost/", "private_addresses"),
        ("http://a.localhost./", "private_addresses"),
        ("http://192.0.0.192/", "private_addresses"),
        ("http://168.63.129.16/", "private_addresses"),
        ("http://[64:ff9b:1::1]/", "private_addresses"),
        ("http://[::1.1.1.1]/", "private_addresses"),
        ("http://u:p@example.org/", "password"),
    ],
)
def test_a_url_that_is_not_pushed_to_is_refused_at_once(broker: Broker, url: str, reason: str) -> None:
    refused = put_channel(broker, url, "push-refused")
    assert (refused.status, reason in refused.json()["error"]) == (400, True), refused
    assert broker.request("GET", "/v1/channels/push-refused").status == 404


def test_more_connections_than_there_may_be_are_refused(start_broker: StartBroker) -> None:
    broker = start_broker(ALLOWED, "push.connections_max=4")
    a_channel(broker, "http://127.0.0.1:9/", "one", push={"max_in_flight": 3})
    refused = put_channel(broker, "http://127.0.0.1:9/", "two", push={"max_in_flight": 2})
    assert refused.status == 400
    assert "leaves room for 1" in refused.json()["error"]


def test_a_clean_stop_waits_for_what_is_on_its_way(start_broker: StartBroker) -> None:
    gate = threading.Event()

    def wait(_: Pushed) -> bytes:
        gate.wait(30)
        return OK

    broker = start_broker(ALLOWED)
    with Endpoint(wait) as endpoint:
        a_channel(broker, endpoint.url, push={"max_in_flight": 5})
        publish(broker, *[b"%d" % number for number in range(20)])
        first = [endpoint.next() for _ in range(5)]
        broker.ask_to_stop()
        broker.wait_until_logged("stopping")
        gate.set()
        broker.wait_until_stopped()
        assert endpoint.is_quiet, "nothing new is begun"
        broker.start()
        wait_until_empty(broker, "c", 20)
        pushed = [*first, *[endpoint.next() for _ in range(15)]]
        assert endpoint.is_quiet
        assert {each.body for each in pushed} == {b"%d" % number for number in range(20)}
        assert {each.header("X-Penstock-Receives") for each in pushed} == {"1"}


def test_a_clean_stop_that_has_waited_enough_gives_back(start_broker: StartBroker) -> None:
    gate = threading.Event()

    def wait(pushed: Pushed) -> bytes:
        gate.wait(30)
        return OK

    broker = start_broker(ALLOWED, "stop_seconds=0.2")
    with Endpoint(wait) as endpoint:
        a_channel(broker, endpoint.url, push={"timeout": 600})
        publish(broker, b"a")
        endpoint.next()
        broker.stop()
        gate.set()
        broker.start()
        again = endpoint.next()
        assert (again.body, again.header("X-Penstock-Receives")) == (b"a", "2")


@pytest.mark.torture
def test_kill_in_the_middle_loses_nothing_and_repeats_nothing_that_was_confirmed(start_broker: StartBroker) -> None:
    """What was confirmed before the kill, by what the log says, is not pushed after it; all the rest is."""
    messages, kills = 3000, (300, 900, 1700)
    broker = start_broker(ALLOWED, "push.retry_seconds=0.05", "log.segment_bytes=65536")
    with Endpoint() as endpoint:
        a_channel(broker, endpoint.url, push={"max_in_flight": 20, "timeout": 1})
        publish(broker, *[b"%d" % number for number in range(messages)])
        seen: Counter[str] = Counter()
        for kill_after in kills:
            while len(seen) < kill_after:
                seen[endpoint.next().header("X-Penstock-Id") or ""] += 1
            broker.kill()
            while not endpoint.is_quiet:
                seen[endpoint.next().header("X-Penstock-Id") or ""] += 1
            before = seen.copy()
            broker.start()
            confirmed = finished(broker, "c", offset_below=broker.recovered_offset())
            assert confirmed <= before.keys(), "only what the endpoint has answered is confirmed"
            while len(seen) < kill_after + 100:
                identity = endpoint.next().header("X-Penstock-Id") or ""
                seen[identity] += 1
                assert identity not in confirmed, "pushed again, although it was confirmed"
        wait_until_empty(broker, "c", messages)
        while not endpoint.is_quiet:
            seen[endpoint.next().header("X-Penstock-Id") or ""] += 1
        assert len(seen) == messages
        assert finished(broker, "c") == seen.keys()
        assert sum(seen.values()) - messages <= 20 * len(kills), "no more twice than were on their way"
        assert broker.request("GET", "/v1/queues/c").json()["status"]["messages"] == 0
