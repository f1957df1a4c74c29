"""WebSocket on the wire: the handshake, the rules of RFC 6455, closing, back-pressure, lost connections."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from penstock.limits import WS_MESSAGE_BYTES_MAX, WS_REQUESTS_MAX
from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Connection
from tests.support.waiting import wait_until
from tests.support.ws_client import ACCEPT, KEY, RawWs, WsClient, client_frame, handshake

MEBIBYTE = 1 << 20


def fresh_queue(client: WsClient, **settings: object) -> str:
    name = f"ws-{os.urandom(4).hex()}"
    assert client.ask(type="create", queue=name, label=1, **settings)["notice"] == "ready"
    return name


def greeted(broker: Broker, **headers: str) -> WsClient:
    client = WsClient(broker.http, **headers)
    client.hear()
    return client


# ── The handshake ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_handshake_is_answered_as_the_standard_says(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send(handshake())
        status, _, headers = connection._read_head()
        named = dict(headers)
        assert status == 101
        assert (named["Upgrade"], named["Connection"], named["Sec-WebSocket-Accept"]) == (
            "websocket",
            "Upgrade",
            ACCEPT,
        )
        assert "Sec-WebSocket-Extensions" not in named
        assert "Sec-WebSocket-Protocol" not in named


def test_frames_may_follow_the_handshake_in_the_same_packet(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send(handshake() + client_frame(b"first", 9) + client_frame(b"not json"))
        assert connection._read_head()[0] == 101
        assert b'"hello"' in connection._read_exactly(2 + connection._read_exactly(2)[1] - 2)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/connect/", {"Upgrade": ""}, 426),
        ("/connect/", {"Upgrade": "h2c"}, 426),
        ("/connect/", {"Connection": "keep-alive"}, 426),
        ("/connect/", {"Sec-WebSocket-Key": ""}, 400),
        ("/connect/", {"Sec-WebSocket-Key": "short"}, 400),
        ("/connect/", {"Sec-WebSocket-Version": "8"}, 400),
        ("/connect/", {"Sec-WebSocket-Version": ""}, 400),
        ("/connect/here", {}, 404),
        ("/queues", {}, 200),
    ],
)
def test_a_handshake_that_is_none_is_answered_as_a_request(
    broker: Broker, path: str, headers: dict[str, str], status: int
) -> None:
    with broker.connect() as connection:
        connection.send(handshake(path, **headers))
        assert connection.read_response().status == status


def test_only_get_opens_a_websocket(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send(handshake().replace(b"GET", b"POST", 1))
        answer = connection.read_response()
        assert (answer.status, answer.header("Allow")) == (405, "GET")


def test_an_upgrade_comes_after_the_answers_to_earlier_requests(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.read_response().status == 200
        connection.send(handshake())
        assert connection._read_head()[0] == 101
    with broker.connect() as connection:
        waits = f"GET /messages/{KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        connection.send(waits + handshake())
        assert connection.read_response().status == 404
        assert connection._read_head()[0] in (101, 400)


def test_a_token_is_needed_where_there_are_tokens(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=hush")
    with broker.connect() as connection:
        connection.send(handshake(Authorization="Bearer other"))
        assert connection.read_response().status == 401
    with WsClient(broker.http, Authorization="Bearer hush") as client:
        assert client.hear()["type"] == "hello"


def test_pages_from_elsewhere_may_not_connect(start_broker: StartBroker) -> None:
    broker = start_broker("ws.origins=https://app.example.org,null")
    port = broker.http[1]
    own, evil = f"127.0.0.1:{port}", f"evil.example:{port}"
    allowed = [
        (own, f"http://{own}"),
        (f"localhost:{port}", f"http://localhost:{port}"),
        (f"[::1]:{port}", f"http://[::1]:{port}"),
        (own, "https://app.example.org"),
        (own, "null"),
    ]
    refused = [
        (own, "https://evil.example"),
        (own, "http://127.0.0.1"),
        (own, f"http://localhost:{port}"),
        (own, "https://app.example.org.evil.example"),
        (own, "file://"),
        (evil, f"http://{evil}"),  # A name that was made to point here.
    ]
    for (host, origin), status in [*[(each, 101) for each in allowed], *[(each, 403) for each in refused]]:
        with broker.connect() as connection:
            connection.send(handshake(Host=host, Origin=origin))
            assert connection._read_head()[0] == status, (host, origin)


def test_any_page_may_connect_where_the_operator_says_so(start_broker: StartBroker) -> None:
    broker = start_broker("ws.origins=*")
    with WsClient(broker.http, Origin="https://anywhere.example") as client:
        assert client.hear()["type"] == "hello"


def test_connections_are_counted_with_those_of_http(start_broker: StartBroker) -> None:
    broker = start_broker("http.connections_max=2")
    with greeted(broker), broker.connect() as third:
        third.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert third.read_response().status == 200
        with broker.connect() as fourth:
            fourth.send(handshake())
            assert fourth.read_response().status == 503


# ── Frames ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ping_is_answered_with_its_own_payload(broker: Broker) -> None:
    with RawWs(broker.http) as client:
        client.hear()
        for payload in (b"", b"are you there", b"x" * 125):
            client.send_frame(payload, 9)
            assert client.read_frame() == (10, payload)
        client.send_frame(b"unasked for", 10)
        client.send_frame(b"still here", 9)
        assert client.read_frame() == (10, b"still here")


def test_a_request_may_come_in_fragments_and_byte_by_byte(broker: Broker) -> None:
    with RawWs(broker.http) as client:
        client.hear()
        request = json.dumps({"type": "pop", "queue": "nowhere-é", "label": 7}, ensure_ascii=False).encode()
        expected = {"type": "error", "label": 7, "code": "NoObject", "key": "nowhere-é"}
        at = request.index(b"\xc3") + 1  # In the middle of a character.
        client.send(client_frame(request[:at], final=False) + client_frame(b"in between", 9))
        assert client.read_frame() == (10, b"in between")
        client.send_frame(request[at:], 0)
        assert client.hear() == expected
        for byte in client_frame(request):
            client.send(bytes((byte,)))
        assert client.hear() == expected


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x05hello", 1002),
        (b"\xc1\x80mask", 1002),
        (b"\x83\x80mask", 1002),
        (client_frame(b"\xff"), 1007),
        (b"\x81\xff" + (WS_MESSAGE_BYTES_MAX + 1).to_bytes(8, "big") + b"mask", 1009),
        (client_frame(b"\x03", 8), 1002),
        (client_frame(b"\x03\xee", 8), 1002),
        (client_frame(b"\x03\xe8\xff", 8), 1007),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1002),
    ],
)
def test_a_fault_ends_the_connection_with_its_code(broker: Broker, data: bytes, code: int) -> None:
    with RawWs(broker.http) as client:
        client.hear()
        client.send(client_frame(b"before", 9) + data)
        assert client.read_frame() == (10, b"before")
        assert client.read_close()[0] == code
        assert client.ended_within(30)


def test_what_a_client_sends_after_a_fault_does_not_destroy_our_last_words(broker: Broker) -> None:
    with RawWs(broker.http) as client:
        client.hear()
        client.send(b"\x81\x05hello")
        client.send(client_frame(b"x" * 60_000) * 8)
        assert client.read_close()[0] == 1002


def test_random_bytes_never_disturb_the_broker(broker: Broker) -> None:
    for seed in range(30):
        with RawWs(broker.http) as client:
            client.hear()
            client.send(os.urandom(seed * 7) + client_frame(os.urandom(seed), 1 + seed % 2) + os.urandom(40))
            client.shut_down_sending()
            client.read_to_end()
    assert "Traceback" not in broker.log()
    assert broker.request("GET", "/health").body == b"green"


def test_the_largest_message_goes_in_and_out_in_each_form(broker: Broker) -> None:
    with greeted(broker) as client:
        queue = fresh_queue(client)
        for message in ("\u0000" * MEBIBYTE, [255] * MEBIBYTE, "é" * (MEBIBYTE // 2)):
            assert client.ask(type="post", queue=queue, message=message, notify=["sync"])["notice"] == "sync"
            assert client.ask(type="pop", queue=queue)["body"] == message


# ── Closing ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("payload", "code"), [(b"", 1000), (b"\x03\xe8", 1000), (b"\x0f\xa0bye", 4000)])
def test_a_close_frame_is_answered_and_the_connection_ends(broker: Broker, payload: bytes, code: int) -> None:
    with RawWs(broker.http) as client:
        client.hear()
        client.send(client_frame(payload, 8) + client_frame(b"after", 9))
        assert client.read_close() == (code, "")
        assert client.ended_within(30)


def test_a_broker_that_stops_says_goodbye_after_answering_who_waits(start_broker: StartBroker) -> None:
    broker = start_broker()
    idle, waiting = greeted(broker), greeted(broker)
    queue = fresh_queue(waiting)
    waiting.say({"type": "fetch", "queue": queue, "block_timeout": 60, "label": 5})
    wait_for_readers(broker, queue, 1)
    broker.ask_to_stop()
    assert waiting.hear() == {"type": "nomessage", "label": 5}
    assert idle.closed()[0] == waiting.closed()[0] == 1001
    broker.wait_until_stopped()


def test_a_client_that_answers_no_ping_is_let_go_and_one_that_does_stays(start_broker: StartBroker) -> None:
    broker = start_broker("ws.ping_seconds=3")
    with RawWs(broker.http) as silent, RawWs(broker.http) as lively:
        silent.hear(), lively.hear()
        assert silent.read_frame() == (9, b"")
        for _ in range(2):
            assert lively.read_frame() == (9, b"")
            lively.send_frame(b"", 10)
        assert silent.ended_within(30)
        lively.say(type="pop", queue="none", label=3)
        while (frame := lively.read_frame())[0] != 1:
            lively.send_frame(b"", 10)
        assert json.loads(frame[1])["code"] == "NoObject"


def test_a_client_that_does_not_answer_our_close_is_cut_off(start_broker: StartBroker) -> None:
    broker = start_broker()
    with RawWs(broker.http) as client:
        client.hear()
        broker.ask_to_stop()
        assert client.read_close()[0] == 1001
        broker.wait_until_stopped()


# ── Order, and waiting ────────────────────────────────────────────────────────────────────────────────────────


def wait_for_readers(broker: Broker, queue: str, count: int) -> None:
    """Until so many wait at the queue."""
    wait_until(lambda: broker.request("GET", f"/status/{queue}").json()["readers_waiting"] == count, "they wait")


def wait_for_connections(broker: Broker, count: int) -> None:
    """Until so many WebSockets are open."""
    expected = f"\npenstock_websocket_connections {count}.0".encode()
    wait_until(lambda: expected in broker.request("GET", "/metrics").body, f"{count} connections")


def test_what_a_client_asked_for_before_it_posts_is_not_what_it_gets(broker: Broker) -> None:
    with RawWs(broker.http) as client:
        client.hear()
        queue = f"order-{os.urandom(4).hex()}"
        client.say(type="create", queue=queue)
        client.hear()
        fetch = json.dumps({"type": "fetch", "queue": queue, "label": 1}).encode()
        post = json.dumps({"type": "post", "queue": queue, "message": "m", "label": 2, "notify": ["sync"]}).encode()
        client.send(client_frame(fetch) + client_frame(post) + client_frame(fetch))
        replies = [client.hear() for _ in range(3)]
        assert [reply["type"] for reply in replies if reply["label"] == 1] == ["nomessage", "message"]


def test_notices_come_at_the_stage_they_name(broker: Broker) -> None:
    with greeted(broker) as client:
        queue = fresh_queue(client, retries=2)
        stages = ["ready", "write", "sync", "assign", "finish", "retry", "drop"]
        client.say({"type": "post", "queue": queue, "message": "m", "label": 2, "notify": stages})
        assert [client.hear()["notice"] for _ in range(3)] == ["ready", "write", "sync"]
        client.say({"type": "fetch", "queue": queue, "work_timeout": 0.2, "label": 3})
        assert {client.hear().get("notice") for _ in range(2)} == {None, "assign"}
        client.say({"type": "fetch", "queue": queue, "work_timeout": 0.2, "block_timeout": 5, "label": 3})
        assert client.hear()["notice"] == "retry"
        assert {client.hear().get("notice") for _ in range(2)} == {None, "assign"}
        assert client.hear()["notice"] == "drop"


# ── Lost connections ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_durable_session_goes_on_after_its_connection_broke(broker: Broker) -> None:
    with greeted(broker) as other:
        queue = fresh_queue(other)
        first = WsClient(broker.http, Durable_Session="true")
        number = first.hear()["id"]
        assert 0 < number < 1 << 53
        post = {"type": "post", "queue": queue, "message": "m", "notify": ["sync", "finish"], "label": 1}
        assert first.ask(**post)["notice"] == "sync"
        first.drop()
        assert other.ask(type="pop", queue=queue)["body"] == "m"
        with WsClient(broker.http, Durable_Session="true", Reconnect_As=str(number)) as second:
            assert second.hear() == {"type": "hello", "id": number}
            assert second.hear() == {"type": "notice", "label": 1, "notice": "finish"}


def test_a_restart_ends_sessions_but_loses_no_message(start_broker: StartBroker) -> None:
    broker = start_broker()
    client = WsClient(broker.http, Durable_Session="true")
    number = client.hear()["id"]
    queue = fresh_queue(client, visibility_timeout=0.5)
    for body in ("fetched", "stored"):
        assert client.ask(type="post", queue=queue, message=body, notify=["sync"], label=2)["notice"] == "sync"
    assert client.ask(type="fetch", queue=queue)["body"] == "fetched"
    broker.kill()
    client.close()
    broker.start()
    with WsClient(broker.http, Reconnect_As=str(number)) as again:
        assert again.hear()["id"] != number
        again.say(*[{"type": "fetch", "queue": queue, "block_timeout": 5, "work_timeout": 60, "label": 3}] * 2)
        assert {again.hear()["body"], again.hear()["body"]} == {"fetched", "stored"}


def test_what_was_told_to_be_on_the_disk_is_as_it_was_told_after_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    with greeted(broker) as client:
        queue = fresh_queue(client)
    stored: set[int] = set()
    asked: set[int] = set()
    finished: set[int] = set()
    raw = RawWs(broker.http)
    raw.hear()
    turn = threading.Lock()  # So that no two frames get mixed up.
    ahead = threading.Semaphore(100)  # So that the broker need not wait until its answers are read.

    def send_all() -> None:
        for label in count():  # Until the broker is killed.
            ahead.acquire()
            post = {"type": "post", "queue": queue, "message": f"{label}", "label": label, "notify": ["sync"]}
            fetch = {"type": "fetch", "queue": queue, "work_timeout": 1}
            with turn:
                raw.send(client_frame(json.dumps(post).encode()) + client_frame(json.dumps(fetch).encode()))

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all)
        try:
            while True:
                reply = raw.hear()
                if reply["type"] == "message":
                    asked.add(int(reply["body"]))
                    with turn:
                        raw.say(type="finish", queue=queue, sequence=reply["sequence"], label=int(reply["body"]))
                elif reply.get("notice") == "sync":
                    stored.add(reply["label"])
                    ahead.release()
                elif reply["type"] == "notice":
                    finished.add(reply["label"])
                if len(finished) == 500 and broker.running:
                    broker.kill()
        except OSError:
            pass
        raw.close()
        ahead.release()
        assert isinstance(sending.exception(), OSError), "it was killed in the middle"
    broker.start()
    found = set()
    with greeted(broker) as again:
        while (reply := again.ask(type="pop", queue=queue, timeout=2))["type"] == "message":
            found.add(int(reply["body"]))
    assert len(finished) >= 500
    assert stored - asked <= found, "stored, and not to be finished: it is there"
    assert not finished & found, "finished: it does not come back"


def test_a_waiting_fetch_of_a_broken_connection_takes_nothing_with_it(broker: Broker) -> None:
    with greeted(broker) as client:
        queue = fresh_queue(client)
        gone = greeted(broker)
        gone.say({"type": "pop", "queue": queue, "timeout": 60})
        wait_for_readers(broker, queue, 1)
        gone.drop()
        wait_for_readers(broker, queue, 0)
        client.say({"type": "post", "queue": queue, "message": "m", "notify": ["sync"]})
        client.hear()
        assert client.ask(type="pop", queue=queue)["body"] == "m"


# ── Back-pressure ─────────────────────────────────────────────────────────────────────────────────────────────


def flood(client: Connection, frame: bytes, bytes_max: int) -> int:
    """Send a frame again and again, until the broker takes no more for a while; the bytes that it took."""
    client._socket.settimeout(1.0)
    sent = 0
    try:
        while sent < bytes_max:
            sent += client._socket.send(frame)
    except TimeoutError:
        pass
    finally:
        client._socket.settimeout(30.0)
    return sent


def test_a_client_that_does_not_read_is_not_read_from(start_broker: StartBroker) -> None:
    broker = start_broker()
    with RawWs(broker.http) as client:
        client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.hear()
        before = broker.resident_bytes()
        pings = client_frame(b"x" * 125, 9) * 500
        assert flood(client, pings, 256 * MEBIBYTE) < 64 * MEBIBYTE
        assert broker.resident_bytes() - before < 24 * MEBIBYTE
        with greeted(broker) as other:
            assert other.ask(type="pop", queue="none", label=1)["code"] == "NoObject"


def test_notices_for_a_client_that_does_not_read_do_not_pile_up(start_broker: StartBroker) -> None:
    broker = start_broker("http.slow_client_seconds=2")
    with greeted(broker) as other:
        queue = fresh_queue(other)
        with RawWs(broker.http) as client:
            client.hear()
            post = {"type": "post", "queue": queue, "message": "m", "notify": ["sync"], "label": 1 << 60}
            before = broker.resident_bytes()
            assert flood(client, client_frame(json.dumps(post).encode()) * 200, 256 * MEBIBYTE) < 64 * MEBIBYTE
            assert broker.resident_bytes() - before < 64 * MEBIBYTE
            wait_for_connections(broker, 1)  # The other one's: this client is let go.
        assert other.ask(type="pop", queue=queue)["body"] == "m"


def test_requests_under_way_are_bounded_and_the_others_wait_their_turn(broker: Broker) -> None:
    with greeted(broker) as other, RawWs(broker.http) as client:
        client.hear()
        queue = fresh_queue(other)
        fetch = json.dumps({"type": "fetch", "queue": queue, "block_timeout": 60, "work_timeout": 60}).encode()
        client.send(client_frame(fetch) * (WS_REQUESTS_MAX + 10))
        wait_for_readers(broker, queue, WS_REQUESTS_MAX)
        client.send_frame(b"not read yet", 9)
        for _ in range(2):
            other.say({"type": "post", "queue": queue, "message": "m", "notify": ["sync"]})
            other.hear()
        assert client.hear()["body"] == "m"
        wait_for_readers(broker, queue, WS_REQUESTS_MAX)


def test_large_messages_reach_a_slow_reader_without_being_held_in_memory(start_broker: StartBroker) -> None:
    broker = start_broker()
    count = 192
    with greeted(broker) as other:
        queue = fresh_queue(other)
        for _ in range(count):
            post = {"type": "post", "queue": queue, "message": "x" * MEBIBYTE, "notify": ["sync"]}
            assert other.ask(**post)["notice"] == "sync"
        before = broker.resident_bytes()
        with RawWs(broker.http) as client:
            client.hear()
            fetch = json.dumps({"type": "fetch", "queue": queue, "work_timeout": 60}).encode()
            client.send(client_frame(fetch) * count)
            assert client.hear()["type"] == "message"
            assert broker.resident_bytes() - before < 48 * MEBIBYTE
            assert all(client.hear()["type"] == "message" for _ in range(count - 1))


def test_unfinished_messages_of_all_clients_are_bounded_together(start_broker: StartBroker) -> None:
    broker = start_broker("http.buffered_bytes_max=20000000")
    begun = b"\x82\xff" + (8 * MEBIBYTE).to_bytes(8, "big") + b"mask" + b"x" * (7 * MEBIBYTE)
    clients = [RawWs(broker.http) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda client: client.send(begun), clients))
    for client in clients:
        client.hear()
    while not (ended := [client for client in clients if client.ended_within(0.5)]):
        pass
    assert len(ended) == 1
    for client in clients:
        client.close()


# ── Binary ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_session_in_bincode(broker: Broker) -> None:
    name = os.urandom(4).hex().encode()
    queue = len(name).to_bytes(8, "little") + name
    label = (7).to_bytes(8, "little")
    with WsClient(broker.http, Binary="true") as client:
        hello = client.hear()
        assert (hello[:8].hex(), len(hello)) == ("0000000002000000", 16)

        def ask(kind: int, rest: bytes) -> bytes:
            client.say(bytes(4) + kind.to_bytes(4, "little") + queue + rest)
            reply: bytes = client.hear()
            assert reply[:4] == bytes(4)
            return reply[4:]

        notice, message, error = b"\1\0\0\0" + label, bytes(4) + label, b"\4\0\0\0" + label
        assert ask(4, label) == notice + bytes(4)
        body = (3).to_bytes(8, "little") + b"\xff\0x"
        posted = ask(0, body + bytes(4) + label + (1).to_bytes(8, "little") + (2).to_bytes(4, "little"))
        assert posted == notice + b"\2\0\0\0"
        place = bytes(4) + (1).to_bytes(8, "little")
        assert ask(1, b"\0" + b"\0\0\x70\x41" + b"\2\0\0\0" + label) == message + place + body + b"\0"
        assert ask(2, (1).to_bytes(8, "little") + bytes(4) + b"\1" + label + b"\0") == notice + b"\4\0\0\0"
        assert ask(3, b"\0" + label) == b"\3\0\0\0" + label
        assert ask(4, label) == error + b"\1\0\0\0" + queue
        client.say({"type": "pop"})
        assert client.hear()[:20] == bytes(4) + b"\4\0\0\0" + bytes(8) + b"\3\0\0\0"


# ── Beside the other dialects ─────────────────────────────────────────────────────────────────────────────────


def test_a_message_of_another_dialect_is_delivered_and_its_end_is_told_to_its_sender(broker: Broker) -> None:
    with greeted(broker) as client:
        queue = fresh_queue(client)
        broker.request("POST", f"/messages/{queue}", {"Content-Type": "image/png"}, b"\x89PNG")
        assert client.ask(type="pop", queue=queue)["body"] == list(b"\x89PNG")
        notify = ["sync", "assign", "finish"]
        client.say({"type": "post", "queue": queue, "message": "é", "notify": notify, "label": 4})
        assert client.hear()["notice"] == "sync"
        received = broker.request("GET", f"/messages/{queue}")
        assert received.body == "é".encode()
        assert client.hear() == {"type": "notice", "label": 4, "notice": "assign"}
        assert broker.request("DELETE", f"/messages/{received.header('X-MQS-MESSAGE-ID')}").status == 204
        assert client.hear() == {"type": "notice", "label": 4, "notice": "finish"}


def test_the_session_in_the_manual_runs_as_it_says(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "glovebox.md").read_text("utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", manual, re.DOTALL)
    here = f"127.0.0.1:{broker.http[1]}"
    exec(script.replace("127.0.0.1:7843", here).replace("fences", f"fences-{os.urandom(4).hex()}"), {})
    printed = capsys.readouterr().out.splitlines()
    stages = [re.findall(r"'notice': '(\w+)'", line) for line in printed]
    assert stages == [[], ["ready"], ["sync"], ["finish", "finish"]]


def test_etzel_is_spoken_at_the_path_without_a_slash(broker: Broker) -> None:
    queue = os.urandom(4).hex()
    with WsClient(broker.http, "/connect") as sleeper, WsClient(broker.http, "/connect") as client:
        assert sleeper.ask(cmd="ISLP", qname=queue) == {"cmd": "okslp", "qname": queue}
        sent = client.ask(cmd="PUB", qname=queue, message="m")
        assert sent["cmd"] == "ok"
        assert sleeper.hear() == {"cmd": "awk", "qname": queue}
        message = sleeper.ask(cmd="FET", qname=queue)
        assert (message["msg"], message["uid"]) == ("m", sent["uid"])
        assert sleeper.ask(cmd="ACK", qname=queue, uid=message["uid"])["cmd"] == "okack"
        client.say(b"{")
        assert client.hear() == {"cmd": "nok", "err": "BAD_JSON"}


def test_the_metrics_count_websockets(start_broker: StartBroker) -> None:
    broker = start_broker()
    with greeted(broker):
        wait_for_connections(broker, 1)
    wait_for_connections(broker, 0)
