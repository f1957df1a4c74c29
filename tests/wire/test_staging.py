"""Staging over real sockets: what is refused, what is said again, and a broker that is killed in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.event_history import events, make_queue, settle
from tests.support.http_client import Response, encode_request
from tests.support.staged_rows import Rows, arrow


def messages(count: int, queue: str = "work", prefix: str = "") -> Rows:
    return {"body": [f"{prefix}{number}" for number in range(count)], "queue": [queue] * count}


def shared_value(value: bytes, count: int) -> Rows:
    """Rows that all have one value of a dictionary."""
    indices = pa.array([0] * count, pa.int8())
    return {"body": pa.DictionaryArray.from_arrays(indices, pa.array([value])), "queue": ["work"] * count}


def stage(
    broker: Broker, rows: Rows, part: str = "a", *, chunk: int = 0, query: str = "q", batch: int = 0
) -> Response:
    return broker.request("POST", f"/v1/stage/{query}/{batch}/{part}?chunk={chunk}", body=arrow(rows))


def commit(broker: Broker, *, query: str = "q", batch: int = 0, **parts: int) -> Response:
    named = [{"part": part, "chunks": chunks} for part, chunks in parts.items()]
    body = json.dumps({"parts": named}).encode()
    return broker.request("POST", f"/v1/stage/{query}/{batch}/commit", body=body)


def status(broker: Broker, queue: str = "work") -> dict[str, Any]:
    found: dict[str, Any] = broker.request("GET", f"/v1/queues/{queue}").json()["status"]
    return found


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that refuses all it gets, so that tests can share it."""
    broker = Broker(tmp_path_factory.mktemp("refusing-broker") / "data").start()
    make_queue(broker, "work")
    yield broker
    broker.stop()


@pytest.fixture
def own(start_broker: StartBroker) -> Broker:
    own = start_broker()
    make_queue(own, "work")
    return own


def test_a_batch_is_staged_committed_and_there(own: Broker) -> None:
    assert stage(own, messages(3)).json() == {"rows": 3}
    assert own.request("GET", "/v1/stage/q").json() == {"query": "q", "committed": None, "admitting": 0, "staged": 3}
    assert status(own)["messages"] == 0
    assert commit(own, a=1).json() == {"query": "q", "batch": 0}
    assert own.request("GET", "/v1/stage/q").json() == {"query": "q", "committed": 0, "admitting": 0, "staged": 0}
    assert status(own)["ready"] == 3


def test_every_column_reaches_the_message(own: Broker) -> None:
    make_queue(own, "other")
    rows = {
        "body": [b"\xff\x00", b"", b"later", b"first"],
        "queue": ["work", "other", "work", "work"],
        "key": ["k", None, None, None],
        "object": ["thing", None, None, None],
        "priority": [1, None, 0, 9],
        "delay": [None, None, 3600, 0],
        "content_type": ["a/b", None, None, None],
        "headers": pa.array([[("Content-Encoding", "gzip")], None, [], None], pa.map_(pa.utf8(), pa.utf8())),
    }
    assert stage(own, rows).status == 201
    assert commit(own, a=1).status == 200
    assert (status(own)["ready"], status(own)["delayed"], status(own, "other")["ready"]) == (2, 1, 1)
    assert own.request("GET", "/messages/work").body == b"first"
    second = own.request("GET", "/messages/work")
    assert second.body == b"\xff\x00"
    assert (second.header("Content-Type"), second.header("Content-Encoding")) == ("a/b", "gzip")
    (logged,) = [row for row in events(own, "state=L") if row.get("object") == "thing"]
    assert logged["key"] == "k"


def test_rows_to_topics_reach_queues_and_channels_and_what_has_not_changed_does_not(own: Broker) -> None:
    settings = json.dumps({"topics": ["fruit.*"]}).encode()
    assert own.request("PUT", "/v1/channels/fruits", body=settings).status == 201
    rows = {
        "body": ["one", "two", "three", "three"] * 10 + ["plain"],
        "topics": ["fruit.red", "fruit.red\nnews", "news", "news"] * 10 + [None],
        "queue": [None] * 40 + ["work"],
        "object": ["o"] * 40 + [None],
        "key": [f"{row // 4}-{min(row % 4, 2)}" for row in range(40)] + [None],
    }
    assert stage(own, rows).status == 201
    assert commit(own, a=1).status == 200
    found = {name: status(own, name)["ready"] for name in ("fruit", "news", "work")}
    assert found | {"fruits": own.request("GET", "/v1/channels/fruits").json()["status"]["ready"]} == {
        "fruit": 20,
        "news": 20,
        "work": 1,
        "fruits": 20,
    }
    refused = stage(own, {"body": ["x"], "topics": ["news\nfruits.red"]}, batch=2)
    assert (refused.status, "fruits" in refused.json()["error"]) == (409, True), refused


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"queue": ["work"]}, "the column body is missing"),
        ({"body": ["x"]}, "a row has no queue and no topics"),
        ({"body": ["x"], "queue": pa.array([None], pa.utf8())}, "a row has no queue and no topics"),
        ({"body": ["x"], "queue": ["work"], "topics": ["fruit.red"]}, "a row has both a queue and topics"),
        ({"body": ["x"], "topics": ["fruit.red\n.green"]}, "a topic begins with the name of a queue"),
        ({"body": ["x"], "topics": ["\n".join(["t"] * 101)]}, "a row has at most 100 topics"),
        ({"body": pa.array([None], pa.binary()), "queue": ["work"]}, "a row has no body"),
        ({"body": ["x"], "queue": ["a\nb"]}, "a queue name must not have control characters"),
        ({"body": ["x"], "queue": ["work"], "color": ["red"]}, "unknown column color; the columns are body"),
        ({"body": [b"x" * (1 << 20) + b"x"], "queue": ["work"]}, "a body has at most 1048576 bytes"),
        ({"body": ["x"], "queue": ["work"], "key": ["k" * 1025]}, "a key has at most 1024 bytes"),
        ({"body": ["x"], "queue": ["work"], "priority": [-1]}, "priority must be a number from 0"),
        ({"body": ["x"], "queue": ["work"], "delay": [float("nan")]}, "delay must be a number from 0"),
        ({"body": ["x"], "queue": ["work"], "content_type": ["a\r\nb"]}, "must not have control characters"),
        ({"body": [1], "queue": ["work"]}, "the body is not an Arrow stream of messages"),
        (shared_value(b"x" * 100_000, 1000), "the column body has at most 67108864 bytes, got 100000000"),
        ({"body": pa.array(["x"], pa.string_view()), "queue": ["work"]}, "the type string_view"),
        (messages(10_001), "a chunk has 1 to 10000 rows"),
        ({"body": pa.array([], pa.utf8()), "queue": pa.array([], pa.utf8())}, "a chunk has 1 to 10000 rows"),
    ],
)
def test_rows_that_cannot_become_messages_are_refused(refusing: Broker, rows: Rows, said: str) -> None:
    answer = stage(refusing, rows)
    assert answer.status == 400
    assert said in answer.json()["error"]


@pytest.mark.parametrize("rows", [messages(100), shared_value(b"x", 3)], ids=["plain", "dictionary"])
def test_a_stream_that_is_compressed_is_refused_before_it_is_read(own: Broker, rows: Rows) -> None:
    for compression in ("zstd", "lz4"):
        answer = own.request("POST", "/v1/stage/q/0/a", body=arrow(rows, compression))
        assert (answer.status, answer.json()["error"]) == (
            400,
            "the Arrow stream is compressed; send it without compression",
        )
    assert stage(own, rows).status == 201


def test_what_is_not_arrow_or_not_asked_for_right_is_refused(own: Broker) -> None:
    whole = arrow(messages(5))
    for cut in (0, 1, 100, len(whole) // 2):
        assert own.request("POST", "/v1/stage/q/0/a", body=whole[:cut]).status == 400
    for at in range(0, len(whole), 7):  # A flipped bit is an error or another value, never the end of the broker.
        flipped = bytes([*whole[:at], whole[at] ^ 0x41, *whole[at + 1 :]])
        assert own.request("POST", f"/v1/stage/flipped/0/{at}", body=flipped).status in (201, 400, 404)
    assert own.request("POST", "/v1/stage/q/x/a", body=whole).status == 400
    assert own.request("POST", "/v1/stage/q/0/a?chunk=x", body=whole).status == 400
    assert own.request("POST", "/v1/stage/q/0/a?part=1", body=whole).status == 400
    assert own.request("POST", "/v1/stage/q/0/commit", body=b"{}").status == 400
    assert stage(own, messages(1, "nowhere")).json() == {
        "error": "the queue does not exist: nowhere",
        "code": "no_queue",
    }
    assert stage(own, messages(1), chunk=1).status == 409
    assert commit(own, a=1).status == 409
    too_many = {"parts": [{"part": str(number), "chunks": 1} for number in range(10_001)]}
    assert own.request("POST", "/v1/stage/q/0/commit", body=json.dumps(too_many).encode()).status == 400
    assert own.request("GET", "/health").status == 200


def test_a_batch_that_is_dropped_is_not_there_and_may_come_again(own: Broker) -> None:
    stage(own, messages(2))
    assert own.request("DELETE", "/v1/stage/q/0").status == 204
    assert commit(own, a=1).status == 409
    stage(own, messages(2), "b")
    assert commit(own, b=1).status == 200
    assert own.request("DELETE", "/v1/stage/q/0").status == 204
    assert status(own)["ready"] == 2


def test_rows_beyond_the_room_are_refused_until_there_is_room(start_broker: StartBroker) -> None:
    broker = start_broker("staging.bytes_max=4194304")
    make_queue(broker, "work")
    large = {"body": [b"x" * (1 << 20)] * 3, "queue": ["work"] * 3}
    assert stage(broker, large).status == 201
    full = stage(broker, large, "b")
    assert (full.status, full.header("Retry-After")) == (503, "1")
    assert commit(broker, a=1).status == 200
    assert stage(broker, large, "c", batch=1).status == 201


def test_a_broker_that_is_killed_keeps_what_is_staged_and_finishes_what_is_committed(own: Broker) -> None:
    for chunk in range(10):
        stage(own, messages(10_000, prefix=f"{chunk}-"), chunk=chunk)
    own.kill()
    own.start()
    with own.connect() as connection:
        body = json.dumps({"parts": [{"part": "a", "chunks": 10}]}).encode()
        connection.send(encode_request("POST", "/v1/stage/q/0/commit", body=body))
        while own.request("GET", "/v1/stage/q").json()["committed"] is None:
            pass
        own.kill()  # Most likely while rows are let in.
    own.start()
    assert stage(own, messages(1), "again").status == 201
    assert commit(own, again=1).status == 200
    assert status(own)["messages"] == 100_000
    delivered = settle(own, "work")
    assert delivered.body.count(b"X-MQS-MESSAGE-RECEIVES: 1\r\n") == 1000


def test_a_broker_that_is_stopped_meanwhile_goes_on_when_it_is_started(own: Broker) -> None:
    for chunk in range(20):
        stage(own, messages(10_000), chunk=chunk)
    with own.connect() as connection:
        body = json.dumps({"parts": [{"part": "a", "chunks": 20}]}).encode()
        connection.send(encode_request("POST", "/v1/stage/q/0/commit", body=body))
        while own.request("GET", "/v1/stage/q").json()["committed"] is None:
            pass
        own.stop()
    own.start()
    assert commit(own, a=20).status == 200
    assert status(own)["messages"] == 200_000


def test_a_batch_survives_snapshots_and_segments_that_come_and_go(start_broker: StartBroker) -> None:
    settings = ("log.segment_bytes=65536", "log.snapshot_bytes=65536", "log.retention_seconds=0")
    broker = start_broker(*settings)
    make_queue(broker, "work")
    make_queue(broker, "other")
    stage(broker, messages(100, prefix="staged "))
    for number in range(30):
        stage(broker, messages(1000, "other"), query="churn", batch=number)
        assert commit(broker, query="churn", batch=number, a=1).status == 200
        while broker.request("GET", "/messages/other", {"X-MQS-MAX-MESSAGES": "1000"}).status == 200:
            broker.request("DELETE", "/v1/queues/other")
            make_queue(broker, "other")
    broker.stop()
    broker.start()
    assert commit(broker, a=1).status == 200
    assert status(broker)["ready"] == 100
