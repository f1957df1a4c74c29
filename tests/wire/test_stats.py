"""Figures of queues, connections and settings, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tests.support.broker import Broker, StartBroker
from tests.support.waiting import wait_until

Row = dict[str, Any]


def stats(broker: Broker, query: str = "") -> Row:
    answer = broker.request("GET", f"/v1/stats?{query}")
    assert answer.status == 200, answer
    found: Row = answer.json()
    return found


def queue(broker: Broker, name: str, **settings: Any) -> None:
    assert broker.request("PUT", f"/v1/queues/{name}", body=json.dumps(settings).encode()).status == 201


def publish(broker: Broker, name: str, count: int = 1, **fields: Any) -> None:
    messages = [{"message": "m", **fields}] * count
    assert broker.request("POST", f"/v1/queues/{name}/messages", body=json.dumps(messages).encode()).status == 201


def watch(broker: Broker, query: str = "", head: str = "") -> Iterator[Row]:
    """The events of the stream, as they come."""
    with closing(socket.create_connection(broker.http, timeout=60)) as link:
        link.sendall(f"GET /v1/stats/stream?{query} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        data = b""
        while True:
            data += link.recv(65536)
            *events, data = data.split(b"\n\n")
            for event in events:
                yield json.loads(event.partition(b"data: ")[2])


def until(events: Iterator[Row], name: str, field: str) -> float:
    """The first figure of a queue that is not zero."""
    end = time.monotonic() + 60
    for event in events:
        for row in event["queues"]:
            if row["name"] == name and row[field]:
                return float(row[field])
        assert time.monotonic() < end, event
    raise AssertionError("the stream ended")


def test_queues_are_counted_by_state(start_broker: StartBroker) -> None:
    broker = start_broker()
    queue(broker, "work")
    publish(broker, "work", 3)
    publish(broker, "work", 2, delay=600)
    broker.request("GET", "/v1/queues/work/messages")
    found = stats(broker)
    [row] = found["queues"]
    assert (row["ready"], row["leased"], row["delayed"], row["waiting"]) == (2, 1, 2, 0)
    assert row["ready_since"] <= found["time"] + 1
    assert (found["totals"]["ready"], found["totals"]["queues"], found["total"]) == (2, 1, 1)


def test_a_list_is_filtered_sorted_and_paged_by_the_broker(start_broker: StartBroker) -> None:
    broker = start_broker()
    for number, name in enumerate(("Apples", "pears", "apple-juice")):
        queue(broker, name)
        publish(broker, name, number + 1)
    assert [row["name"] for row in stats(broker, "name=APPLE&sort=ready&order=descending")["queues"]] == [
        "apple-juice",
        "Apples",
    ]
    page = stats(broker, "sort=ready&limit=2")
    assert ([row["ready"] for row in page["queues"]], page["next"], page["total"]) == ([1, 2], 2, 3)
    assert [row["ready"] for row in stats(broker, "sort=ready&limit=2&offset=2")["queues"]] == [3]
    assert stats(broker, "queue=pears")["total"] == 1
    assert broker.request("GET", "/v1/stats?sort=color").status == 400


def test_dead_letter_queues_are_known_as_such_and_need_a_person(start_broker: StartBroker) -> None:
    broker = start_broker()
    queue(broker, "lost")
    queue(broker, "work", redrive_policy={"max_receives": 1, "dead_letter_queue": "lost"})
    publish(broker, "lost", 2)
    found = stats(broker, "dead_letters=true")
    assert [row["name"] for row in found["queues"]] == ["lost"]
    assert found["totals"]["dead"] == 2
    assert [(row["queue"], row["reason"]) for row in found["attention"]] == [("lost", "dead_letters")]


def test_messages_that_pile_up_to_be_repeated_need_a_person_and_delayed_ones_do_not(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    queue(broker, "work", retry_delay=600)
    queue(broker, "later")
    publish(broker, "work", 30)
    later = json.dumps([{"message": "m", "delay": 600}] * 30).encode()
    assert broker.request("POST", "/v1/queues/later/messages", body=later).status == 201
    assert stats(broker)["attention"] == [] or stats(broker)["attention"][0]["reason"] == "unconsumed"
    for message in broker.request("GET", "/v1/queues/work/messages?max=30&consumer=ada").json():
        body = json.dumps({"id": message["id"], "outcome": "retry"}).encode()
        assert broker.request("POST", "/v1/confirm", body=body).status == 200
    [row] = stats(broker)["attention"]
    assert (row["queue"], row["reason"], row["messages"]) == ("work", "retries", 30)
    assert row["text"] == "wait to be repeated, 30 more than a minute ago"


def test_what_waits_for_consumers_is_counted_without_dead_letters_and_without_what_stays(
    start_broker: StartBroker,
) -> None:
    broker = start_broker("audit.enabled=true")
    queue(broker, "lost")
    queue(broker, "work", redrive_policy={"max_receives": 1, "dead_letter_queue": "lost"})
    queue(broker, "kept", keep="all")
    for name, number in (("lost", 2), ("work", 3), ("kept", 4)):
        publish(broker, name, number)
    found = stats(broker)["totals"]
    assert (found["ready"], found["dead"]) == (3, 2)
    assert found["lasting"] == 4 + 3, "and three records of queues that were created"


def test_the_stream_begins_with_everything_and_goes_on_with_what_changed(start_broker: StartBroker) -> None:
    broker = start_broker()
    queue(broker, "busy")
    queue(broker, "still")
    events = watch(broker)
    assert {row["name"] for row in next(events)["queues"]} == {"busy", "still"}
    publish(broker, "busy", 10)
    assert until(events, "busy", "in") > 0
    broker.request("DELETE", "/v1/queues/still")
    for event in events:
        assert not [row for row in event["queues"] if row["name"] == "still"]
        if event["removed"] == ["still"]:
            break
    events.close()  # type: ignore[attr-defined]


def test_deliveries_and_retries_are_counted_while_somebody_watches(start_broker: StartBroker) -> None:
    broker = start_broker()
    queue(broker, "work")
    publish(broker, "work", 2)
    events = watch(broker, "queue=work")
    next(events)
    next(events)
    [taken] = broker.request("GET", "/v1/queues/work/messages").json()
    assert until(events, "work", "delivered") > 0
    body = json.dumps({"id": taken["id"], "outcome": "retry"}).encode()
    assert broker.request("POST", "/v1/confirm", body=body).status == 200
    assert until(events, "work", "retried") > 0
    events.close()  # type: ignore[attr-defined]


def test_the_consumers_of_a_queue_are_shown_to_those_who_look_closely(start_broker: StartBroker) -> None:
    broker = start_broker()
    queue(broker, "work", visibility_timeout=600)
    publish(broker, "work", 3)
    events = watch(broker, "queue=work&consumers=true")
    assert next(events)["consumers"]["work"]["consumers"] == []
    broker.request("GET", "/v1/queues/work/messages?max=2&consumer=ada")
    found = next(each for event in events if (each := event["consumers"]["work"])["consumers"])
    [ada] = found["consumers"]
    assert (ada["consumer"], ada["leases"], ada["taken_per_minute"] > 0) == ("ada", 2, True)
    assert found["wait_p99"] >= found["wait_p50"] >= 0
    broker.request("DELETE", "/v1/queues/work")
    assert next(event for event in events if event["removed"])["consumers"] == {}
    events.close()  # type: ignore[attr-defined]
    assert broker.request("GET", "/v1/stats/stream?consumers=true").status == 400


def test_the_longest_wait_leaves_out_queues_whose_messages_stay(start_broker: StartBroker) -> None:
    broker = start_broker("audit.enabled=true")
    queue(broker, "kept", keep="all")
    publish(broker, "kept")
    found = stats(broker)["totals"]
    assert (found["queues"], found["ready_since"]) == (2, None)
    queue(broker, "orders")
    publish(broker, "orders")
    assert stats(broker)["totals"]["ready_since"] is not None


def test_the_disk_and_the_log_on_it_are_shown(start_broker: StartBroker) -> None:
    broker = start_broker("log.retention_seconds=3600")
    queue(broker, "orders")
    publish(broker, "orders", 10)
    disk = stats(broker)["disk"]
    assert disk["log_bytes"] > 10 * 96
    assert (disk["segments"], disk["retention_seconds"], disk["written_per_day"]) == (1, 3600, None)
    assert 0 < disk["free_bytes"] < disk["total_bytes"]
    metrics = broker.request("GET", "/metrics").body.decode()
    assert f"penstock_disk_bytes {float(disk['total_bytes'])}" in metrics


def test_a_watcher_may_want_the_totals_only(start_broker: StartBroker) -> None:
    broker = start_broker()
    queue(broker, "work")
    events = watch(broker, "queues=false")
    first = next(events)
    assert (first["totals"]["queues"], first["queues"]) == (1, [])
    events.close()  # type: ignore[attr-defined]


def test_the_number_of_watchers_is_limited(start_broker: StartBroker) -> None:
    broker = start_broker("events.readers_max=1")
    events = watch(broker)
    next(events)
    assert broker.request("GET", "/v1/stats/stream").status == 503
    events.close()  # type: ignore[attr-defined]


def test_a_broker_with_a_watcher_stops_cleanly(start_broker: StartBroker) -> None:
    broker = start_broker()
    events = watch(broker)
    next(events)
    broker.stop()
    broker.start()


def test_clients_that_wait_are_listed_with_their_names(start_broker: StartBroker) -> None:
    broker = start_broker()
    queue(broker, "work")
    with closing(socket.create_connection(broker.http)) as link:
        link.sendall(b"GET /v1/queues/work/messages?wait=20&consumer=ada HTTP/1.1\r\nHost: localhost\r\n\r\n")
        waiting = wait_until(
            lambda: broker.request("GET", "/v1/connections?queue=work").json()["waiting"], "a client that waits"
        )
        assert waiting == [{"kind": "worker", "queue": "work", "consumer": "ada"}]
        everyone = broker.request("GET", "/v1/connections").json()
        assert f"127.0.0.1:{link.getsockname()[1]}" in [each["address"] for each in everyone["connections"]]
        assert {each["protocol"] for each in everyone["connections"]} == {"HTTP"}


def test_settings_show_where_they_come_from_and_no_secrets(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=sesame", "stop_seconds=7")
    answer = broker.request("GET", "/v1/settings", {"Authorization": "Bearer sesame"})
    rows = {row["key"]: row for row in answer.json()["settings"]}
    assert b"sesame" not in answer.body
    assert (rows["stop_seconds"]["value"], rows["stop_seconds"]["source"]) == (7.0, "--set")
    assert (rows["http.idle_seconds"]["source"], rows["auth.tokens"]["value"]) == ("default", "(hidden)")
    assert rows["data"]["source"] == "command line"


def test_a_token_shows_only_the_queues_that_it_may_see(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=sesame")
    admin = {"Authorization": "Bearer sesame"}
    for name in ("orders", "secrets"):
        assert broker.request("PUT", f"/v1/queues/{name}", admin, b"{}").status == 201
        assert broker.request("POST", f"/v1/queues/{name}/messages", admin, b'{"message": "m"}').status == 201
    made = broker.request("PUT", "/v1/tokens/reader", admin, b'{"scopes": ["read:orders*"]}').json()["token"]
    reader = {"Authorization": f"Bearer {made}"}
    page = broker.request("GET", "/v1/stats?history=true", reader)
    assert b"secrets" not in page.body
    assert (page.json()["totals"]["queues"], page.json()["totals"]["ready"]) == (1, 1)
    events = watch(broker, head=f"Authorization: Bearer {made}\r\n")
    assert [row["name"] for row in next(events)["queues"]] == ["orders"]
    assert next(events)["totals"]["queues"] == 1
    events.close()  # type: ignore[attr-defined]
    assert broker.request("GET", "/v1/connections", reader).json()["connections"] == []
    assert broker.request("GET", "/v1/settings", reader).status == 403


def consumers(broker: Broker, query: str = "") -> Any:
    answer = broker.request("GET", f"/v1/consumers?{query}")
    assert answer.status == 200, answer
    return answer.json()


def take(broker: Broker, name: str, consumer: str) -> str:
    [taken] = broker.request("GET", f"/v1/queues/{name}/messages?consumer={consumer}").json()
    return str(taken["id"])


def test_all_consumers_are_listed_with_their_pace_the_slowest_first(start_broker: StartBroker) -> None:
    broker = start_broker()
    for name in ("parcels", "letters"):
        queue(broker, name, visibility_timeout=600)
        publish(broker, name, 5)
    assert consumers(broker)["consumers"] == []
    take(broker, "parcels", "slow")
    for _ in range(3):
        body = json.dumps({"id": take(broker, "letters", "quick")}).encode()
        assert broker.request("POST", "/v1/confirm", body=body).status == 200
    found = consumers(broker)
    quick, slow = found["consumers"]
    assert (found["total"], found["next"], found["seconds"] >= 0) == (2, None, True)
    assert (slow["consumer"], slow["queue"], slow["leases"], slow["seconds_p50"]) == ("slow", "parcels", 1, None)
    assert (quick["consumer"], quick["queue"], quick["leases"]) == ("quick", "letters", 0)
    assert quick["taken_per_minute"] > slow["taken_per_minute"] > 0
    assert quick["seconds_p99"] >= quick["seconds_p50"] >= 0
    assert (quick["times"], slow["times"]) == (3, 0), (
        "who has settled nothing is not ranked; its lease is another column"
    )
    assert [row["consumer"] for row in consumers(broker, "sort=oldest_lease")["consumers"]] == ["slow", "quick"]
    assert [row["consumer"] for row in consumers(broker, "sort=consumer&order=ascending")["consumers"]] == [
        *("quick", "slow"),
    ]
    first = consumers(broker, "limit=1")
    assert ([row["consumer"] for row in first["consumers"]], first["next"]) == (["quick"], 1)
    assert [row["consumer"] for row in consumers(broker, "limit=1&offset=1")["consumers"]] == ["slow"]
    assert [row["consumer"] for row in consumers(broker, "name=LETT")["consumers"]] == ["quick"]


def test_consumers_of_queues_that_an_identity_does_not_see_are_hidden(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=all")
    admin = {"Authorization": "Bearer all"}
    for name in ("orders", "secret"):
        assert broker.request("PUT", f"/v1/queues/{name}", admin).status == 201
        body = json.dumps({"message": "m"}).encode()
        assert broker.request("POST", f"/v1/queues/{name}/messages", admin, body).status == 201
        assert broker.request("GET", f"/v1/queues/{name}/messages?consumer=ada", admin).status == 200
    made = broker.request("PUT", "/v1/tokens/reader", admin, json.dumps({"scopes": ["read:orders"]}).encode())
    reader = {"Authorization": f"Bearer {made.json()['token']}"}
    seen = [broker.request("GET", "/v1/consumers", who).json()["total"] for who in (admin, reader)]
    assert seen == [2, 1]
