"""A bit that flips on the disk costs the messages of its batch, and nothing else: the rest is delivered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient

SMALL_SEGMENTS = "log.segment_bytes=65536"
EACH = 25  # Messages in one publish: they are one batch of the log.


def body_of(queue: str, number: int) -> bytes:
    return b"%s-%04d;" % (queue.encode(), number) * 20


def publish(broker: Broker, queue: str, count: int) -> None:
    """In publishes of `EACH` messages, each durable before the next one begins."""
    headers = {"Content-Type": "multipart/mixed; boundary=b"}
    with broker.connect() as connection:
        for first in range(0, count, EACH):
            parts = [b"--b\r\n\r\n" + body_of(queue, first + index) + b"\r\n" for index in range(EACH)]
            answer = connection.request("POST", f"/messages/{queue}", headers, b"".join(parts) + b"--b--")
            assert answer.status == 201, answer


def receive(broker: Broker, queue: str) -> list[bytes]:
    """Everything that is ready."""
    bodies: list[bytes] = []
    with broker.connect() as connection:
        while True:
            answer = connection.request("GET", f"/messages/{queue}", {"X-MQS-MAX-MESSAGES": "100"})
            assert answer.status in (200, 204), answer
            if answer.status == 204:
                return bodies
            bodies += [part.body for part in answer.messages()]


def all_but(queue: str, count: int, damaged: range = range(0)) -> list[bytes]:
    return [body_of(queue, number) for number in range(count) if number not in damaged]


def flip_a_bit(data: Path, body: bytes) -> Path:
    """In the middle of this body, wherever it is in the log."""
    for path in sorted((data / "log").glob("*.log")):
        content = bytearray(path.read_bytes())
        at = content.find(body)
        if at >= 0:
            content[at + len(body) // 2] ^= 1
            path.write_bytes(content)
            return path
    raise AssertionError(f"{body!r} is not in the log")


def figures(broker: Broker, queue: str) -> dict[str, int]:
    status: dict[str, int] = broker.request("GET", f"/v1/queues/{queue}").json()["status"]
    return status


def test_one_flipped_bit_costs_one_batch_of_two_thousand_messages(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    for queue in ("one", "two"):
        broker.create_queue(queue)
    for queue in ("one", "two"):
        publish(broker, queue, 1000)
    broker.stop()
    flip_a_bit(broker.data, body_of("one", 310))
    broker.start()
    lost = range(300, 325)
    assert sorted(receive(broker, "one")) == all_but("one", 1000, lost)
    assert sorted(receive(broker, "two")) == all_but("two", 1000)
    assert figures(broker, "one")["damaged"] == EACH
    assert (figures(broker, "one")["ready"], figures(broker, "two")["damaged"]) == (0, 0)
    broker.wait_until_logged("messages_set_aside")
    assert broker.times_logged("batch_damaged") == 1, "not once for each message"


def test_damaged_messages_turn_health_yellow_and_are_seen_by_operators(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old")
    publish(broker, "old", 500)
    broker.stop()
    flip_a_bit(broker.data, body_of("old", 30))
    broker.start()
    assert broker.request("GET", "/health").body == b"green", "nobody has read it yet"
    assert len(receive(broker, "old")) == 475
    behind = broker.wait_until_logged("batch_damaged")["last_offset"] + 1
    health = broker.request("GET", "/health")
    assert health.status == 200
    assert health.body == b"yellow: 25 damaged messages are set aside: see /v1/search?state=damaged"
    found = broker.request("GET", "/v1/search?state=damaged&limit=100").json()["messages"]
    assert [message["sequence"] for message in found] == list(range(26, 51))
    assert all((each["status"], each["state"]) == ("damaged", "B") for each in found)
    assert not any("message" in each or "message_base64" in each for each in found), (
        "damaged bytes are shown to nobody"
    )
    assert broker.request("GET", "/v1/search?state=B&bodies=false").json()["messages"]
    document = broker.request("GET", f"/v1/messages/{found[0]['id']}").json()
    assert (document["status"], document["state"], document["queued"]) == ("damaged", "B", True)
    assert (document["archived"], document["complete"]) == (False, False)
    assert "message" not in document
    assert [event["event"] for event in document["events"]] == ["broken"]
    events = broker.request("GET", f"/v1/events?from={behind}&state=B").body.splitlines()
    assert [json.loads(event)["sequence"] for event in events] == list(range(26, 51))
    metrics = broker.request("GET", "/metrics").body.decode()
    assert 'penstock_queue_messages{queue="old",state="damaged"} 25.0' in metrics


def test_damage_in_the_newest_segment_is_found_by_the_start(start_broker: StartBroker) -> None:
    """A start reads the newest segment, also what the snapshot covers: nobody has to read a message first."""
    broker = start_broker()
    broker.create_queue("new")
    publish(broker, "new", 100)
    broker.stop()
    flip_a_bit(broker.data, body_of("new", 99))  # The very last batch of the log.
    broker.start()
    assert broker.request("GET", "/health").body.startswith(b"yellow: 25 ")
    publish(broker, "new", 100)
    assert sorted(receive(broker, "new")) == sorted(all_but("new", 100, range(75, 100)) + all_but("new", 100))
    broker.kill()
    broker.start()
    assert broker.request("GET", "/health").body.startswith(b"yellow: 25 "), "and the log goes on after the gap"
    assert figures(broker, "new")["messages"] == 200


def test_what_is_set_aside_stays_so_after_a_restart_and_can_be_deleted(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old")
    publish(broker, "old", 500)
    broker.stop()
    flip_a_bit(broker.data, body_of("old", 30))
    broker.start()
    receive(broker, "old")
    broker.wait_until_logged("messages_set_aside")
    broker.kill()
    broker.start()
    assert broker.request("GET", "/health").body.startswith(b"yellow: 25 ")
    found = broker.request("GET", "/v1/search?state=damaged&limit=100&bodies=false").json()["messages"]
    for message in found:
        assert broker.request("DELETE", f"/v1/messages/{message['id']}").status == 204
    assert broker.request("DELETE", f"/v1/messages/{found[0]['id']}").status == 404
    assert broker.request("GET", "/health").body == b"green"
    assert figures(broker, "old")["messages"] == 475


def test_messages_are_delivered_once_the_damaged_segment_was_put_back(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old", visibility_timeout=600)
    publish(broker, "old", 500)
    broker.stop()
    whole = {path: path.read_bytes() for path in (broker.data / "log").glob("*.log")}
    path = flip_a_bit(broker.data, body_of("old", 30))
    broker.start()
    assert len(receive(broker, "old")) == 475
    broker.wait_until_logged("messages_set_aside")
    broker.stop()
    path.write_bytes(whole[path])
    broker.start()
    broker.wait_until_logged("messages_restored")
    assert sorted(receive(broker, "old")) == [body_of("old", number) for number in range(25, 50)]
    lines = broker.request("GET", "/v1/events?state=R").body.splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["restored"] * 25
    assert broker.request("GET", "/health").body == b"green"


def test_every_dialect_goes_on_after_damage(start_broker: StartBroker) -> None:
    """Damage is in the second batch of each queue; a receiver of each dialect takes one message after the other."""
    broker = start_broker(SMALL_SEGMENTS)
    lost = range(EACH, 2 * EACH)
    for queue in ("etzel", "glovebox", "native", "pushed"):
        broker.create_queue(queue)
    for queue in ("etzel", "glovebox", "native"):
        publish(broker, queue, 4 * EACH)
    for first in range(0, 4 * EACH, EACH):
        texts = [body_of("nq", first + index).decode() for index in range(EACH)]
        answer = broker.request("POST", "/post", body=json.dumps({"sender": "s", "messages": {"nq": texts}}).encode())
        assert answer.status == 200, answer
    publish(broker, "pushed", 400)  # So that what comes before lies in segments that are finished.
    broker.stop()
    for queue in ("etzel", "glovebox", "native", "nq"):
        flip_a_bit(broker.data, body_of(queue, EACH + 7))
    broker.start()
    count = 4 * EACH

    with LineClient(broker.lines) as client:
        taken = [client.ask(cmd="FET", qname="etzel") for _ in range(count - EACH + 1)]
    assert [reply.get("msg", "").encode() for reply in taken[:-1]] == all_but("etzel", count, lost)
    assert taken[-1]["cmd"] == "nomsg"

    with WsClient(broker.http) as session:
        assert session.hear()["type"] == "hello"
        bodies = []
        for label in range(count - EACH):
            session.say({"type": "fetch", "queue": "glovebox", "label": label, "block_timeout": 0})
            bodies.append(session.hear()["body"].encode())
    assert bodies == all_but("glovebox", count, lost)

    taken_by_nq: list[bytes] = []
    while len(taken_by_nq) < count - EACH:
        pull = {"receiver": "r", "queues": {"nq": {"max": 10}}, "timeout": 0}
        answer = broker.request("POST", "/pull", body=json.dumps(pull).encode())
        assert answer.status == 200, answer
        taken_by_nq += [each["message"].encode() for each in answer.json()["messages"]["nq"]]
    assert taken_by_nq == all_but("nq", count, lost)

    messages = broker.request("GET", "/v1/queues/native/messages?max=100&consumer=c").json()
    assert [each["message"].encode() for each in messages] == all_but("native", count, lost)


def test_messages_that_share_their_bytes_are_set_aside_in_every_queue(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    assert broker.request("PUT", "/v1/channels/sweet", body=b'{"topics": ["fruit.*"]}').status == 201
    for first in range(0, 4 * EACH, EACH):
        messages = [
            {"topics": ["fruit.red"], "message": body_of("fruit", first + index).decode()} for index in range(EACH)
        ]
        assert broker.request("POST", "/v1/publish", body=json.dumps(messages).encode()).status in (200, 201)
    broker.create_queue("filler")
    publish(broker, "filler", 400)
    broker.stop()
    flip_a_bit(broker.data, body_of("fruit", 3))
    broker.start()
    for path in ("/v1/queues/fruit/messages", "/v1/channels/sweet/messages"):
        found = broker.request("GET", f"{path}?max=100").json()
        assert [each["message"].encode() for each in found] == all_but("fruit", 4 * EACH, range(EACH))
    assert broker.request("GET", "/health").body.startswith(b"yellow: 50 ")


def test_a_search_passes_over_damage_and_sets_it_aside(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old")
    publish(broker, "old", 500)
    broker.stop()
    flip_a_bit(broker.data, body_of("old", 30))
    broker.start()
    found = broker.request("GET", "/v1/search?queue=old&text=old-00&limit=100").json()["messages"]
    assert [each["message"].encode() for each in found] == all_but("old", 100, range(25, 50))
    broker.wait_until_logged("messages_set_aside")
    assert broker.request("GET", "/health").body.startswith(b"yellow: 25 ")


def test_a_reader_of_the_event_log_is_told_where_to_read_on(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old")
    publish(broker, "old", 500)
    broker.stop()
    flip_a_bit(broker.data, body_of("old", 30))
    broker.start()
    with broker.connect() as reader, pytest.raises(ConnectionError):
        reader.request("GET", "/v1/events")
    reason = broker.wait_until_logged("reader_failed")["reason"]
    assert reason == "events 27 to 51 are damaged; read on from offset 52"
    lines = broker.request("GET", "/v1/events?from=52&state=L").body.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == list(range(51, 501))


def test_a_client_that_waits_gets_what_comes_after_the_damage(start_broker: StartBroker) -> None:
    """Everything in the queue is damaged: a long poll waits, and gets the next message."""
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old")
    broker.create_queue("filler")
    publish(broker, "old", EACH)
    publish(broker, "filler", 400)
    broker.stop()
    flip_a_bit(broker.data, body_of("old", 3))
    broker.start()
    with broker.connect() as waiting:
        waiting.send(b"GET /messages/old HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-WAIT-TIME: 20\r\n\r\n")
        broker.wait_until_logged("messages_set_aside")
        assert broker.request("POST", "/messages/old", body=b"new").status == 201
        assert waiting.read_response().body == b"new"


def test_damage_in_what_must_be_replayed_stops_the_start(start_broker: StartBroker) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old")
    publish(broker, "old", 100)
    broker.kill()  # Without the snapshot of a clean stop.
    flip_a_bit(broker.data, body_of("old", 30))
    code, errors = refused_start(broker.data, SMALL_SEGMENTS)
    assert code != 0
    assert "damaged at byte" in errors


@pytest.mark.parametrize("where", ["the header of a batch", "the header of the segment"])
def test_a_damaged_header_before_the_snapshot_does_not_stop_the_start(start_broker: StartBroker, where: str) -> None:
    broker = start_broker(SMALL_SEGMENTS)
    broker.create_queue("old")
    publish(broker, "old", 500)
    broker.stop()
    oldest = min((broker.data / "log").glob("*.log"))
    content = bytearray(oldest.read_bytes())
    first = content.index(body_of("old", 0))
    content[first - 64 + 10 if where == "the header of a batch" else 20] ^= 4
    oldest.write_bytes(content)
    broker.start()
    lost = range(EACH) if where == "the header of a batch" else range(0)
    assert sorted(receive(broker, "old")) == all_but("old", 500, lost)
    assert figures(broker, "old")["damaged"] == len(lost)
