"""NQ over real sockets, against a real process: long polls, RPC, restarts, kills, and space given back."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Connection, Response
from tests.support.waiting import wait_until

SMALL = ("log.segment_bytes=65536", "log.snapshot_bytes=65536", "log.retention_seconds=0")
PATIENT = {"retry_num": 2, "fail_timeout": 3600}


def post(to: Broker | Connection, queue: str, *messages: str) -> list[int]:
    response = to.request("POST", "/post", body=json.dumps({"sender": "t", "messages": {queue: messages}}).encode())
    assert response.status == 200, response
    ids: list[int] = response.json()[queue]
    return ids


def send_pull(
    to: Broker | Connection, receiver: str, queues: dict[str, Any], timeout: float = 0, **more: Any
) -> Response:
    body = {"receiver": receiver, "timeout": timeout, "queues": queues} | more
    return to.request("POST", "/pull", body=json.dumps(body).encode())


def pull(to: Broker | Connection, receiver: str, queue: str, most: int = 1000, **options: Any) -> list[int]:
    response = send_pull(to, receiver, {queue: PATIENT | {"max": most} | options})
    assert response.status in (200, 404), response
    return [message["id"] for message in response.json()["messages"][queue]] if response.status == 200 else []


def results(to: Broker | Connection, receiver: str, queue: str, by_id: dict[int, str]) -> Response:
    body = {"receiver": receiver, "results": {queue: {str(key): result for key, result in by_id.items()}}}
    return to.request("POST", "/pull", body=json.dumps(body).encode())


def result(to: Broker | Connection, queue: str, number: int, receiver: str = "") -> str | None:
    response = to.request("GET", f"/v1/results/{queue}/{number}?timeout=0&receiver={receiver}")
    assert response.status in (200, 404), response
    found: str | None = response.json().get("result")
    return found


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_cursors_debts_and_results_outlive_the_process(start_broker: StartBroker, end: str) -> None:
    broker = start_broker()
    assert post(broker, "q", *map(str, range(1, 31))) == list(range(1, 31))
    assert pull(broker, "r", "q", 20) == list(range(1, 21))
    assert pull(broker, "s", "q", 5, retry_num=0) == [1, 2, 3, 4, 5]
    assert pull(broker, "t", "q", start=30) == [30]
    assert pull(broker, "u", "q", 2, retry_num=1, fail_timeout=0.001) == [1, 2]
    assert results(broker, "r", "q", {1: "one", 2: "zwei"}).json() == {}
    for _ in range(2):
        broker.stop() if end == "stop" else broker.kill()
        broker.start()
        assert result(broker, "q", 1, "r") == "one"
        assert result(broker, "q", 2) == "zwei"
        assert result(broker, "q", 3) is None
    assert pull(broker, "u", "q", 1, start=31, retry_num=1) == [1], "due again"
    assert post(broker, "q", "31") == [31]
    assert pull(broker, "r", "q", 11) == list(range(21, 32))
    assert pull(broker, "s", "q", 2) == [6, 7]
    assert pull(broker, "t", "q") == [31]


def test_a_long_poll_over_several_queues_is_woken_by_any_of_them(broker: Broker) -> None:
    with broker.connect() as waiting, broker.connect() as posting:
        for queue in ("poll-b", "poll-a", "poll-c"):
            body = {"receiver": "r", "timeout": 20, "queues": {f"poll-{letter}": {} for letter in "abc"}}
            waiting.send_request("POST", "/pull", body=json.dumps(body).encode())
            post(posting, queue, f"hello {queue}")
            answer = waiting.read_response().json()
            assert [message["message"] for message in answer["messages"][queue]] == [f"hello {queue}"]


def test_a_client_that_breaks_off_while_it_waits_takes_no_message_along(broker: Broker) -> None:
    with broker.connect() as leaving:
        body = {"receiver": "r", "timeout": 20, "queues": {"left": {}}}
        leaving.send_request("POST", "/pull", body=json.dumps(body).encode())
        leaving.reset()
    # The broker has seen the end of that connection when it answers the second of these, at the latest.
    for _ in range(2):
        broker.request("GET", "/health")
    post(broker, "left", "still here")
    assert pull(broker, "r", "left") == [1]


def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    with broker.connect() as connection:
        for number in range(5):
            body = json.dumps({"messages": {"pipe-a": [str(number)] * 20, "pipe-b": [str(number)]}}).encode()
            connection.send_request("POST", "/post", body=body)
            wanted = json.dumps({"receiver": "r", "queues": {"pipe-a": {"max": 20}}}).encode()
            connection.send_request("POST", "/pull", body=wanted)
        for number in range(5):
            first = number * 20 + 1
            assert connection.read_response().json() == {
                "pipe-a": list(range(first, first + 20)),
                "pipe-b": [number + 1],
            }
            messages = connection.read_response().json()["messages"]["pipe-a"]
            assert [message["id"] for message in messages] == list(range(first, first + 20))


def test_workers_answer_calls(broker: Broker) -> None:
    """RPC: clients post a question and wait for its result, workers share the questions."""
    calls, workers = 24, 3
    enough = threading.Event()

    def work() -> int:
        done = 0
        with broker.connect() as connection:
            answers: dict[str, str] = {}
            while not enough.is_set() or answers:
                sent = {"results": {"calls": answers}} if answers else {}
                response = send_pull(connection, "squarer", {"calls": {"max": 2}}, 0.2, **sent)
                messages = response.json()["messages"]["calls"] if response.status == 200 else []
                answers = {str(message["id"]): str(int(message["message"]) ** 2) for message in messages}
                done += len(answers)
        return done

    def call(number: int) -> str:
        with broker.connect() as connection:
            (asked,) = post(connection, "calls", str(number))
            answer = connection.request("GET", f"/v1/results/calls/{asked}?receiver=squarer&timeout=20")
            assert answer.status == 200, answer
            found: str = answer.json()["result"]
            return found

    with ThreadPoolExecutor(workers + 6) as pool:
        at_work = [pool.submit(work) for _ in range(workers)]
        answers = list(pool.map(call, range(calls)))
        enough.set()
        assert answers == [str(number**2) for number in range(calls)]
        assert sum(worker.result() for worker in at_work) == calls


def test_space_is_given_back_while_results_stay_readable(start_broker: StartBroker) -> None:
    broker = start_broker(*SMALL)
    broker.create_queue("churn")
    post(broker, "kept", "question")
    assert results(broker, "r", "kept", {1: "answer " * 100}).status == 200
    log = broker.data / "log"
    first = sorted(log.iterdir())[0]
    with broker.connect() as connection:

        def is_given_back_after_more() -> bool:
            post(connection, "churn", *["x" * 1000] * 50)
            assert len(pull(connection, "w", "churn", 50, retry_num=0)) == 50
            return not first.exists()

        wait_until(is_given_back_after_more, "the result is carried forward, and its first segment is removed")
    for _ in range(2):
        assert result(broker, "kept", 1, "r") == "answer " * 100
        broker.kill()
        broker.start()
    broker.stop()
    assert sum(path.stat().st_size for path in log.iterdir()) < 40 * 65536


def test_every_acknowledged_step_survives_kills(start_broker: StartBroker) -> None:
    """Posts, pulls and results in random order, with a kill now and then: nobody gets a message twice or out of
    order, and what was stored is there."""
    random = Random(7)
    broker = start_broker(*SMALL)
    posted = 0
    cursors = {"a": 0, "b": 0, "c": 0}
    stored: dict[tuple[str, int], str] = {}
    for step in range(250):
        receiver = random.choice(list(cursors))
        match random.choices(["post", "pull", "result", "kill"], [10, 20, 15, 1])[0]:
            case "post":
                count = random.choice([1, 3, 40])
                assert post(broker, "q", *["x" * 300] * count) == list(range(posted + 1, posted + count + 1))
                posted += count
            case "pull":
                most = random.choice([1, 5, 100])
                cursor = cursors[receiver]
                expected = list(range(cursor + 1, min(cursor + most, posted) + 1))
                assert pull(broker, receiver, "q", most) == expected
                cursors[receiver] = expected[-1] if expected else cursor
            case "result" if cursors[receiver]:
                number = random.randint(1, cursors[receiver])
                assert results(broker, receiver, "q", {number: f"{step}"}).status == 200
                stored.setdefault((receiver, number), f"{step}")
            case "kill":
                broker.kill()
                broker.start()
            case _:
                pass  # Nothing was received that could have a result.
    assert stored
    for (receiver, number), expected_result in stored.items():
        assert result(broker, "q", number, receiver) == expected_result


def test_a_token_is_asked_for(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    body = json.dumps({"messages": {"q": ["x"]}}).encode()
    assert broker.request("POST", "/post", body=body).status == 401
    assert broker.request("GET", "/v1/results/q/1").status == 401
    assert broker.request("POST", "/post", {"Authorization": "Bearer secret"}, body).json() == {"q": [1]}


def test_a_post_may_be_as_large_as_the_broker_takes(broker: Broker) -> None:
    messages = ["x" * (1 << 20)] * 15
    assert post(broker, "large", *messages) == list(range(1, 16))
    seen = []
    while found := pull(broker, "r", "large"):
        seen.append(len(found))
    assert (sum(seen), seen[0]) == (15, 4), "4 MiB at a time"
    with broker.connect() as connection:
        connection.send(
            b"POST /post HTTP/1.1\r\nHost: penstock.localhost\r\nContent-Length: 16777217\r\n\r\n" + b" " * 20_000
        )
        assert connection.read_response().status == 413
