"""The broker as a process: how it starts, refuses to start, stops, and what a restart keeps."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.certificates import Pair
from tests.support.http_client import encode_multipart

# Stopping


def test_sigterm_answers_a_waiting_receive_and_exits_0(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("quiet")
    broker.create_queue("clock")
    with broker.connect() as waiting, broker.connect() as clock:
        waiting.send_request("GET", "/messages/quiet", {"X-MQS-MAX-WAIT-TIME": "20"})
        # A second on another queue: by then the first receive is surely waiting.
        assert clock.request("GET", "/messages/clock", {"X-MQS-MAX-WAIT-TIME": "1"}).status == 204
        broker.ask_to_stop()
        assert waiting.read_response().status == 204
        assert waiting.read_to_end() == b""
    broker.wait_until_stopped()


def test_sigterm_takes_no_new_connection_and_closes_the_idle_ones(start_broker: StartBroker) -> None:
    broker = start_broker()
    with broker.connect() as idle:
        assert idle.request("GET", "/health").status == 200
        broker.stop()
        assert idle.ended_within(30)
    with pytest.raises(OSError, match="refused"):
        broker.connect()


# Restarting


def test_a_restart_keeps_queues_and_messages(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("dead", retention_timeout=77)
    policy = {"max_receives": 2, "dead_letter_queue": "dead"}
    broker.create_queue("caf%C3%A9", redrive_policy=policy, visibility_timeout=60, message_deduplication=True)
    trace = "7a2f4c1e-5d7b-4b59-9c0e-2f6f1f0f8a11"
    described = {"Content-Type": "text/plain", "Content-Encoding": "br", "X-TRACE-ID": trace}
    with broker.connect() as connection:
        hidden = connection.request("POST", "/messages/caf%C3%A9", body=b"hidden").header("X-MQS-MESSAGE-ID")
        assert connection.request("GET", "/messages/caf%C3%A9").body == b"hidden"
        connection.request("POST", "/messages/caf%C3%A9", described, b"\x00\xffdescribed")
        deleted = connection.request("POST", "/messages/caf%C3%A9", body=b"deleted").header("X-MQS-MESSAGE-ID")
        assert connection.request("DELETE", f"/messages/{deleted}").status == 204
        queues_before = connection.request("GET", "/queues").json()

    broker.stop()
    broker.start()

    with broker.connect() as connection:
        assert connection.request("GET", "/queues").json() == queues_before
        status = connection.request("GET", "/queues/caf%C3%A9").json()["status"]
        assert (status["messages"], status["visible_messages"]) == (2, 1)
        assert connection.request("POST", "/messages/caf%C3%A9", body=b"hidden").status == 200
        assert connection.request("POST", "/messages/caf%C3%A9", body=b"deleted").status == 201
        received = connection.request("GET", "/messages/caf%C3%A9")
        assert received.body == b"\x00\xffdescribed"
        assert {name: received.header(name) for name in described} == described
        assert received.header("X-MQS-MESSAGE-RECEIVES") == "1"
        assert connection.request("DELETE", f"/messages/{deleted}").status == 404
        assert connection.request("DELETE", f"/messages/{hidden}").status == 204


def test_a_restart_keeps_counts_of_receives_and_moves_to_the_dead_letter_queue(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    broker.create_queue("dead")
    broker.create_queue("work", redrive_policy={"max_receives": 2, "dead_letter_queue": "dead"}, visibility_timeout=0)
    assert broker.request("POST", "/messages/work", body=b"poison").status == 201
    assert broker.request("GET", "/messages/work").header("X-MQS-MESSAGE-RECEIVES") == "1"

    broker.stop()
    broker.start()

    last = broker.request("GET", "/messages/work")
    assert last.header("X-MQS-MESSAGE-RECEIVES") == "2"

    broker.stop()
    broker.start()

    assert broker.request("GET", "/messages/work").status == 204
    letter = broker.request("GET", "/messages/dead", {"X-MQS-MAX-WAIT-TIME": "20"})
    assert letter.body == b"poison"
    assert letter.header("X-MQS-MESSAGE-ID") == last.header("X-MQS-MESSAGE-ID")
    assert letter.header("X-MQS-MESSAGE-RECEIVES") == "1"


def test_a_kill_loses_nothing_that_was_acknowledged(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("work")
    parts = encode_multipart([({}, b"%d" % number) for number in range(100)])
    batch = {"Content-Type": "multipart/mixed; boundary=penstock-test"}
    assert broker.request("POST", "/messages/work", batch, parts).status == 201

    broker.kill()
    broker.start()

    received = broker.request("GET", "/messages/work", {"X-MQS-MAX-MESSAGES": "1000"}).messages()
    assert [message.body for message in received] == [b"%d" % number for number in range(100)]


def test_order_survives_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("work", visibility_timeout=5)
    for body in (b"one", b"two", b"three"):
        assert broker.request("POST", "/messages/work", body=body).status == 201
    assert broker.request("GET", "/messages/work").body == b"one"

    broker.stop()
    broker.start()

    bodies: list[bytes] = []
    with broker.connect() as connection:
        while len(bodies) < 3:
            answer = connection.request("GET", "/messages/work", {"X-MQS-MAX-WAIT-TIME": "20"})
            assert answer.status == 200
            bodies.append(answer.body)
            connection.request("DELETE", f"/messages/{answer.header('X-MQS-MESSAGE-ID')}")
    assert sorted(bodies) == [b"one", b"three", b"two"]
    assert bodies.index(b"two") < bodies.index(b"three")


# Refusing to start


def test_a_second_broker_on_the_same_data_refuses_to_start(start_broker: StartBroker) -> None:
    broker = start_broker()
    code, said = refused_start(broker.data)
    assert code == 3
    assert f"{broker.data} is in use by process {broker.pid}" in said
    assert "Traceback" not in said
    assert broker.request("GET", "/health").body == b"green"


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("mqs.oversized=reject", "mqs.oversized"),
        ("nothing.here=1", "nothing"),
        ("mqs.oversize=sometimes", "mqs.oversize"),
        ("http.idle_seconds=soon", "http.idle_seconds"),
        ("http.connections_max=0", "http.connections_max"),
        ("log.segment_bytes=1", "log.segment_bytes"),
        ("mqs.oversize", "mqs.oversize"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_starts(tmp_path: Path, setting: str, named: str) -> None:
    code, said = refused_start(tmp_path / "data", setting)
    assert code == 2
    assert named in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_named(broker: Broker, tmp_path: Path) -> None:
    host, port = broker.http
    code, said = refused_start(tmp_path / "data", http=f"{host}:{port}")
    assert code == 3
    assert f"cannot listen on {host}:{port}: process {broker.pid} (" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:port", "127.0.0.1:70000", ":::"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    code, said = refused_start(tmp_path / "data", http=address)
    assert code == 2
    assert address in said
    assert "Traceback" not in said


# Who may talk to it


def test_an_address_others_can_reach_is_refused_without_tokens(tmp_path: Path) -> None:
    code, said = refused_start(tmp_path / "data", http="0.0.0.0:0")
    assert code == 2
    assert "0.0.0.0" in said
    assert "--insecure" in said


def test_an_address_others_can_reach_is_refused_without_tls(tmp_path: Path) -> None:
    code, said = refused_start(tmp_path / "data", "auth.tokens=secret", http="0.0.0.0:0")
    assert code == 2
    assert "tls.certificate is empty" in said


@pytest.mark.parametrize("insecure", [True, False], ids=["insecure", "tokens and TLS"])
def test_an_address_others_can_reach_needs_tokens_and_tls_or_a_clear_word(tmp_path: Path, insecure: bool) -> None:
    settings = () if insecure else ("auth.tokens=secret", *Pair(tmp_path, "broker").settings)
    broker = Broker(tmp_path / "data", *settings, http="0.0.0.0:0", flags=("--insecure",) if insecure else ())
    broker.spawn()
    broker.wait_until_listening()
    broker.stop()


def test_with_tokens_nothing_but_health_answers_without_one(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    attempts: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer secret2"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic secret"},
        {"Authorization": "secret"},
    ]
    for headers in attempts:
        for method, target in [("GET", "/queues"), ("PUT", "/queues/a"), ("GET", "/messages/a")]:
            refused = broker.request(method, target, headers, b"" if method == "PUT" else None)
            assert refused.status == 401, f"{method} {target} with {headers}"
            assert (refused.header("WWW-Authenticate") or "").startswith("Bearer")
            assert json.loads(refused.body).keys() == {"error", "code"}
        assert broker.request("GET", "/health", headers).body == b"green"


def test_a_connection_ends_with_the_first_answer_that_asks_for_a_token(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    with broker.connect() as connection:
        connection.send_request("GET", "/queues", {"Authorization": "Bearer a-guess"})
        connection.send_request("GET", "/queues", {"Authorization": "Bearer secret"})
        refused = connection.read_response()
        assert (refused.status, refused.header("Connection")) == (401, "close")
        assert connection.ended_within(30)


def test_any_of_the_tokens_opens_the_door(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret,other")
    for token in ("secret", "other"):
        assert broker.request("GET", "/queues", {"Authorization": f"Bearer {token}"}).status == 200
        assert broker.request("GET", "/queues", {"authorization": f"bearer {token}"}).status == 200


def test_a_token_is_never_written_to_the_log(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=very-secret-token")
    broker.request("GET", "/queues", {"Authorization": "Bearer very-secret-token"})
    broker.request("GET", "/queues", {"Authorization": "Bearer very-secret-token-2"})
    broker.stop()
    assert "very-secret-token" not in broker.log()


# The data directory, taken away


def remove_lock(broker: Broker) -> None:
    (broker.data / "lock").unlink()


def replace_lock(broker: Broker) -> None:
    (broker.data / "new").touch()
    (broker.data / "new").rename(broker.data / "lock")


def remove_directory(broker: Broker) -> None:
    shutil.rmtree(broker.data)


def move_directory(broker: Broker) -> None:
    broker.data.rename(broker.data.with_name("elsewhere"))
    broker.data.mkdir()


@pytest.mark.parametrize("take_away", [remove_lock, replace_lock, remove_directory, move_directory])
def test_a_broker_stops_when_its_data_directory_is_taken_away(
    start_broker: StartBroker, take_away: Callable[[Broker], None]
) -> None:
    broker = start_broker()
    broker.create_queue("kept")
    assert broker.request("POST", "/messages/kept", body=b"hello").status == 201
    take_away(broker)
    assert broker.wait_until_logged("data_directory_lost")["reason"]
    assert broker.ended_within(30)
    process = broker._finished()
    broker._reader.join()
    assert process.returncode == 1
    assert "penstock: the " in broker.log().splitlines()[-1]
    assert "while the broker was running" in broker.log().splitlines()[-1]
    if take_away is remove_lock:
        broker.start()
        assert broker.request("GET", "/messages/kept").body == b"hello"


def test_no_second_broker_starts_where_the_lock_file_was_removed(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert broker._process is not None
    broker._process.send_signal(signal.SIGSTOP)  # It is to notice nothing before the other one has tried.
    (broker.data / "lock").unlink()
    code, said = refused_start(broker.data)
    assert code == 3
    assert "in use by another process" in said
    broker._process.send_signal(signal.SIGCONT)
    assert broker.ended_within(30)
    broker._finished()


def test_health_names_no_file_to_whoever_shows_no_token(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=hush", "log.segment_bytes=65536")
    token = {"Authorization": "Bearer hush"}
    settings = {"retention_timeout": 60, "visibility_timeout": 1, "message_deduplication": False}
    assert broker.request("PUT", "/queues/q", token, json.dumps(settings).encode()).status == 201
    log = broker.data / "log"
    log.rename(broker.data / "away")  # The next segment cannot be made.
    while broker.request("POST", "/messages/q", token, b"x" * 50_000).status == 201:
        pass
    unknown, known = broker.request("GET", "/health"), broker.request("GET", "/health", token)
    assert (unknown.status, unknown.body) == (503, b"red: the log cannot be written")
    assert known.status == 503
    assert str(broker.data).encode() in known.body
    (broker.data / "away").rename(log)
    broker.wait_until_logged("revived")
    assert broker.request("GET", "/health").body == b"green"
