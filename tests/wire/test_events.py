"""The Event Log, as spectators see it: every event, in every form, once, from wherever they ask."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from penstock.model.commands import CreateQueue, NewMessage, Publish
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings
from penstock.storage.arrow.columns import decode
from penstock.storage.arrow.names import Names
from penstock.storage.directory import DataDirectory
from penstock.storage.log.batch import HEADER_BYTES, Header, read_header
from penstock.storage.log.segments import SegmentLog
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import events, make_history, make_queue, publish, settle
from tests.support.http_client import Connection
from tests.support.live_loop import a_loop, ask
from tests.support.waiting import wait_until

Row = dict[str, Any]

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
SENT_EVENTS = {"Accept": "text/event-stream"}
TIMES = ("time", "created", "visible_at", "expires_at")
TEXTS = {"body": "message", "result": "result", "key": "key"}
SMALL_SEGMENTS = ("log.segment_bytes=65536", "log.snapshot_bytes=65536")


def sent_events(body: bytes) -> list[tuple[str, Row]]:
    """The id and the data of each; comments left out."""
    found = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((fields["id"], json.loads(fields["data"])))
    return found


def arrow(body: bytes) -> list[Row]:
    return rows_of(pa.ipc.open_stream(body).read_all())


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Times as numbers, since Python has no nanoseconds."""
    plain = {}
    for field in table.schema:
        if field.name == "kind":
            continue  # Text has the letter alone.
        column = table.column(field.name)
        plain[field.name] = (column.cast(pa.int64()) if field.name in TIMES else column).to_pylist()
    return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def as_columns(event: Row) -> Row:
    """An event in JSON as a row of the columns that Arrow has."""
    row: Row = {
        "letter": event["state"],
        "queue": event["queue_number"],
        "queue_name": event["queue"],
        "digest": bytes.fromhex(event["sha256"]) if "sha256" in event else None,
        "topics": "\n".join(event["topics"]) if "topics" in event else None,
        "to_queue": event.get("to_queue_number"),
    }
    row |= {"offset": event["offset"], "receives": event.get("receives", 0)}
    for name in ("sequence", "priority", "to_sequence", "consumer", "content_type", "sender", "object"):
        row[name] = event.get(name)
    for name in TIMES:
        row[name] = nanos(event[name]) if name in event else None
    for column, name in TEXTS.items():
        row[column] = bytes_of(event, name)
    row["headers"] = headers_of(event)
    return row


def bytes_of(event: Row, name: str) -> bytes | None:
    text, encoded = event.get(name), event.get(f"{name}_base64")
    return base64.b64decode(encoded) if encoded is not None else text.encode() if text is not None else None


def headers_of(event: Row) -> bytes | None:
    """As they are stored: the producer's time is one of them."""
    if "headers_base64" in event:
        return bytes_of(event, "headers")
    named = {name: event[name] for name in ("timestamp",) if name in event} | event.get("headers", {})
    packed = {name.encode(): text.encode() for name, text in named.items()}
    return msgspec.msgpack.encode(packed) if packed else None


def nanos(text: str) -> int:
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(seconds).replace(tzinfo=UTC).timestamp()) * 10**9 + int(fraction)


def follow(broker: Broker, query: str, headers: dict[str, str] | None = None) -> Connection:
    connection = broker.connect()
    head = connection.begin(f"/v1/events?follow=true&{query}", headers)
    assert head.status == 200, head
    return connection


class Lines:
    """The lines of a stream, one by one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = b""

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._connection.read_chunk():
            self._buffer += chunk
            *whole, self._buffer = self._buffer.split(b"\n")
            yield from whole

    def events(self) -> Iterator[Row]:
        return (json.loads(line) for line in self if line)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a history that does not change."""
    broker = Broker(tmp_path_factory.mktemp("history") / "data", *SMALL_SEGMENTS).start()
    make_history(broker)
    yield broker
    broker.stop()


# One history in every form


def test_arrow_and_json_and_sent_events_and_the_log_offline_tell_the_same(told: Broker) -> None:
    said = events(told)
    as_arrow = arrow(told.request("GET", "/v1/events", ARROW).body)
    assert [as_columns(event) for event in said] == as_arrow
    assert [data for _, data in sent_events(told.request("GET", "/v1/events", SENT_EVENTS).body)] == said
    assert {event["state"] for event in said} >= set("LQFREZSX")
    offline = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "log", "inspect", "--events", str(told.data)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    inspected = [json.loads(line) for line in offline.stdout.splitlines()]
    assert [
        (row["offset"], row["letter"], row["queue_name"], row.get("sequence"), row["time"]) for row in inspected
    ] == [(event["offset"], event["state"], event["queue"], event.get("sequence"), event["time"]) for event in said]
    assert [row.get("body", row.get("body_base64")) for row in inspected] == [
        event.get("message", event.get("message_base64")) for event in said
    ]


def test_raw_ranges_decode_to_the_same_events(told: Broker) -> None:
    described = told.request("GET", "/v1/log").json()
    tables = ({int(number): text for number, text in described[kind].items()} for kind in ("texts", "queues"))
    names = Names(*tables)
    said = [as_columns(event) for event in events(told)]
    for bytes_max in (1, 2000, 1 << 20):
        offset, batches = described["earliest"], []
        while offset < described["end"]:
            target = f"/v1/log/batches?from={offset}&to={described['end']}&max_bytes={bytes_max}"
            answer = told.request("GET", target)
            assert answer.status == 200
            assert answer.header("Content-Type") == "application/vnd.penstock.log"
            found = split_batches(answer.body)
            assert found[0][0].base_offset == int(answer.header("X-Penstock-First-Offset") or -1) == offset
            offset = int(answer.header("X-Penstock-Next-Offset") or -1)
            assert found[-1][0].base_offset + found[-1][0].records == offset
            assert len(found) == 1 or len(answer.body) <= bytes_max
            batches += found
        assert rows_of(decode(batches, names=names)) == said


def split_batches(data: bytes) -> list[tuple[Header, bytes]]:
    found = []
    while data:
        header = read_header(data[:HEADER_BYTES])
        assert header is not None
        found.append((header, data[HEADER_BYTES : header.total_bytes]))
        data = data[header.total_bytes :]
    return found


def test_events_without_bodies_are_the_same_but_for_the_bodies(told: Broker) -> None:
    heap = {"message", "message_base64", "result", "result_base64", "headers", "headers_base64", "sha256"}
    stripped = [{name: value for name, value in event.items() if name not in heap} for event in events(told)]
    assert events(told, "bodies=false") == stripped
    names = arrow(told.request("GET", "/v1/events?bodies=false&limit=1", ARROW).body)[0].keys()
    assert not names & {"body", "result", "key", "headers", "digest"}


def test_an_event_has_names_an_id_and_words(told: Broker) -> None:
    logged, queued = events(told, "queue=hopeless&state=LQ&limit=2")
    assert (logged["state"], logged["event"], logged["message"]) == ("L", "logged", "0")
    assert (queued["state"], queued["event"]) == ("Q", "queued")
    assert logged["offset"] == queued["offset"]
    assert logged["next"] == f"{logged['offset']}.1"
    assert queued["next"] == str(logged["offset"] + 1)
    assert logged["content_type"] == "text/plain"
    assert logged["id"] == queued["id"]
    moved = events(told, "queue=hopeless&state=E&limit=1")[0]
    arrived = events(told, "queue=dead&state=Q&limit=1")[0]
    assert (moved["to_queue"], moved["to_id"], moved["offset"]) == ("dead", arrived["id"], arrived["offset"])
    (posted, _) = events(told, "queue=kept&state=L&limit=2")
    assert posted["sender"] == "me"


def test_a_message_is_found_by_the_id_that_its_events_tell(broker: Broker) -> None:
    name = f"events-{secrets.token_hex(6)}"
    make_queue(broker, name)
    sent = broker.request("POST", f"/messages/{name}", body=b"x")
    (logged,) = events(broker, f"queue={name}&state=L")
    assert logged["id"] == sent.header("X-MQS-MESSAGE-ID")


# Filters


@pytest.mark.parametrize("states", ["L", "Q", "FR", "SX", "EZ", "D"])
def test_only_the_states_asked_for_are_told(told: Broker, states: str) -> None:
    assert events(told, f"state={states}") == [event for event in events(told) if event["state"] in states]


def test_only_the_queues_asked_for_are_told(told: Broker) -> None:
    every = events(told)
    odd = quote('odd "ñame"\\')
    for query, names in (
        ("queue=hopeless", {"hopeless"}),
        ("queue=hopeless&queue=gone", {"hopeless", "gone"}),
        (f"queue={odd}", {'odd "ñame"\\'}),
        ("queue=never", set()),
        ("queue=", set()),
    ):
        assert events(told, query) == [event for event in every if event["queue"] in names]


def test_only_the_topics_asked_for_are_told(start_broker: StartBroker, tmp_path: Path) -> None:
    topics = [("fruit.sweet",), ("fruit.sour", "food.healthy"), ("fruitless",), (), ("food.fast",)]
    write_messages(tmp_path / "topical", [NewMessage(b"%d" % at, topics=each) for at, each in enumerate(topics)])
    broker = start_broker(data=tmp_path / "topical")
    for query, expected in (
        ("topic=fruit.*", ["0", "1"]),
        ("topic=fruit*", ["0", "1", "2"]),
        ("topic=food.healthy", ["1"]),
        ("topic=food.*&topic=fruitless", ["1", "2", "4"]),
        ("topic=fruit", []),
        ("topic=*", ["0", "1", "2", "4"]),
        ("topic=", []),
    ):
        assert [event["message"] for event in events(broker, f"state=L&{query}")] == expected, query
    assert [event.get("topics") for event in events(broker, "state=Q")] == [list(each) or None for each in topics]


def test_everything_that_a_producer_says_of_a_message_is_told(start_broker: StartBroker, tmp_path: Path) -> None:
    message = NewMessage(
        b"body", "a/b", priority=7, sender="me", object="customer", topics=("a.b", "c"), key=b"XYZ", headers=b"\xff"
    )
    write_messages(tmp_path / "rich", [message, NewMessage(b"x", key=b"\xff", expires_ns=10**18)])
    broker = start_broker(data=tmp_path / "rich")
    first, _, second, _ = events(broker)
    assert (
        first
        | {
            "message": "body",
            "content_type": "a/b",
            "priority": 7,
            "sender": "me",
            "object": "customer",
            "topics": ["a.b", "c"],
            "key": "XYZ",
            "headers_base64": "/w==",
        }
        == first
    )
    assert "expires_at" not in first
    assert second["key_base64"] == "/w=="
    assert nanos(second["expires_at"]) == nanos(second["created"]) + 10**18
    assert arrow(broker.request("GET", "/v1/events", ARROW).body) == [as_columns(event) for event in events(broker)]


def test_what_dialects_keep_with_a_message_is_told_by_name(start_broker: StartBroker) -> None:
    broker = start_broker()
    body = {"topics": ["fruit.sweet"], "message": "hello", "timestamp": "2026-05-07T01:01:00Z"}
    assert broker.request("POST", "/v1/publish", body=json.dumps(body).encode()).status == 201
    traced = {"X-TRACE-ID": "00000000-0000-4000-8000-000000000000"}
    assert broker.request("POST", "/messages/fruit", traced, b"traced").status == 201
    first, second = events(broker, "state=L")
    assert (first["timestamp"], "headers" in first) == ("2026-05-07T01:01:00Z", False)
    assert (second["headers"], "timestamp" in second) == ({"x-trace-id": traced["X-TRACE-ID"]}, False)
    assert arrow(broker.request("GET", "/v1/events", ARROW).body) == [as_columns(event) for event in events(broker)]


def write_messages(path: Path, messages: list[NewMessage]) -> None:
    """A data directory with a queue that holds them, made without a broker."""

    async def work() -> None:
        loop = a_loop(log)
        await ask(loop, CreateQueue("work", QueueSettings()))
        await ask(loop, Publish("work", messages))

    directory = DataDirectory(path)
    directory.open()
    log = SegmentLog(directory, segment_bytes=64 << 10)
    assert list(log.recover().events) == []
    asyncio.run(work())
    log.close()
    directory.close()


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_no_more_than_the_limit_is_told(told: Broker, limit: int) -> None:
    every = events(told)
    assert events(told, f"limit={limit}") == every[:limit]
    assert arrow(told.request("GET", f"/v1/events?limit={limit}", ARROW).body) == [
        as_columns(e) for e in every[:limit]
    ]
    assert events(told, f"limit={limit}&state=S") == [event for event in every if event["state"] == "S"][:limit]


def test_until_a_time_everything_earlier_is_told(told: Broker) -> None:
    every = events(told)
    for event in every[:: len(every) // 7]:
        seconds, rest = divmod(nanos(event["time"]), 10**9)
        earlier = [each for each in every if nanos(each["time"]) < nanos(event["time"])]
        assert events(told, f"until={seconds}.{rest:09d}") == earlier
        assert events(told, f"until={seconds}.{rest:09d}&follow=true") == earlier, "it ends there"
    assert events(told, "until=2200-01-01T00:00:00Z") == every


def test_messages_are_found_by_what_they_were_published_for(start_broker: StartBroker) -> None:
    broker = start_broker()
    make_queue(broker, "work")
    cause, other = (
        json.loads(broker.request("POST", "/v1/queues/work/messages", body=b'{"message": "m"}').body)["id"]
        for _ in range(2)
    )
    sent = [
        {"message": "1", "headers": {"caused-by": cause}},
        {"message": "2", "headers": {"trace": "7f", "caused-by": cause}},
        {"message": "3", "headers": {"caused-by": other}},
        {"message": "4", "headers": {"trace": cause}},
        {"message": cause},
    ]
    assert broker.request("POST", "/v1/queues/work/messages", body=json.dumps(sent).encode()).status == 201
    found = events(broker, f"caused_by={cause.upper()}")
    assert [(event["state"], event["message"]) for event in found if event["state"] == "L"] == [
        ("L", "1"),
        ("L", "2"),
    ]
    assert broker.request("GET", "/v1/events?caused_by=it").status == 400


def test_messages_are_found_by_their_text_whatever_became_of_them(start_broker: StartBroker) -> None:
    broker = start_broker()
    make_queue(broker, "work")
    make_queue(broker, "other")
    publish(broker, "work", b"customer cust-4711 wants an invoice", b"customer cust-4712", b"\xff cust-4711 \x00")
    settle(broker, "work")
    publish(broker, "other", "cust-4711 über alles".encode(), b"")
    found = events(broker, "text=cust-4711&state=L")
    assert [(event["queue"], event["receives"]) for event in found] == [("work", 0), ("work", 0), ("other", 0)]
    assert found[0]["message"] == "customer cust-4711 wants an invoice"
    assert events(broker, "text=cust-4711&state=L&queue=other") == found[2:]
    assert events(broker, "text=cust-4711&state=L&limit=1") == found[:1]
    assert events(broker, f"text=cust-4711&state=L&from={found[1]['next']}") == found[2:]
    assert "message" not in events(broker, "text=cust-4711&bodies=false")[0]
    assert events(broker, f"text={quote('über')}&state=L") == found[2:]
    assert events(broker, "text=cust-4713") == []
    assert events(broker, "text=") == events(broker)
    answer = broker.request("GET", f"/v1/events?text={'x' * 1025}")
    assert (answer.status, answer.json()["error"]) == (400, "text has at most 1024 bytes")


def test_since_a_time_everything_later_is_told(told: Broker) -> None:
    every = events(told)
    for event in every[:: len(every) // 7]:
        later = [each for each in every if nanos(each["time"]) >= nanos(event["time"])]
        seconds, rest = divmod(nanos(event["time"]), 10**9)
        assert events(told, f"since={seconds}.{rest:09d}") == later
        zoned = datetime.fromtimestamp(seconds, UTC) + timedelta(hours=2)
        same = [each for each in every if nanos(each["time"]) >= seconds * 10**9]
        assert events(told, f"since={zoned:%Y-%m-%dT%H:%M:%S}%2B02:00") == same
        assert events(told, f"since={datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}Z") == same
        assert events(told, f"from={event['offset']}&since=0") == [e for e in every if e["offset"] >= event["offset"]]
    assert events(told, "since=2200-01-01T00:00:00Z") == []
    assert events(told, "since=1970-01-01T00:00:00Z") == every


# From where


def test_what_follows_any_event_can_be_asked_for(told: Broker) -> None:
    every = events(told)
    for at, event in enumerate(every):
        if at % 5 == 0:
            assert events(told, f"from={event['next']}&limit=4") == every[at + 1 : at + 5]
            assert events(told, "limit=4", **{"Last-Event-ID": event["next"]}) == every[at + 1 : at + 5]
    assert events(told, "from=latest") == events(told, "from=now") == []
    assert events(told, "from=earliest") == every
    assert [place for place, _ in sent_events(told.request("GET", "/v1/events", SENT_EVENTS).body)] == [
        event["next"] for event in every
    ]


def test_an_offset_beyond_the_end_is_refused(told: Broker) -> None:
    end = told.request("GET", "/v1/log").json()["end"]
    assert events(told, f"from={end}") == []
    for target in (f"/v1/events?from={end + 1}", f"/v1/log/batches?from={end + 1}"):
        answer = told.request("GET", target)
        assert (answer.status, answer.json()["end"]) == (416, end)
    empty = told.request("GET", f"/v1/log/batches?from={end}")
    assert (empty.status, empty.body, empty.header("X-Penstock-Next-Offset")) == (200, b"", str(end))


def test_the_log_of_one_shard_is_asked_for_by_its_number(told: Broker) -> None:
    described = told.request("GET", "/v1/log").json()
    assert (described["shard"], described["shards"]) == (0, 1)
    for target in ("/v1/log?", "/v1/log/batches?from=0&", "/v1/events?"):
        of_shard, of_all = (told.request("GET", f"{target}{asked}") for asked in ("shard=0", ""))
        assert (of_shard.status, of_shard.body) == (200, of_all.body)
        refused = told.request("GET", f"{target}shard=1")
        assert (refused.status, refused.json()["error"]) == (
            404,
            "the shard does not exist: 1; the last one is 0",
        )


@pytest.mark.parametrize(
    "query",
    [
        "from=-1",
        "from=x",
        "from=1.2.3",
        "from=",
        "from=9999999999999999999999",
        "limit=0",
        "limit=-1",
        "limit=x",
        "state=",
        "state=l",
        "state=LQ1",
        "follow=yes",
        "bodies=1",
        "since=yesterday",
        "since=2026-01-01T00:00:00",
        "since=",
        "since=1e5",
        "colour=blue",
        "from=1&from=2",
        "from=%ff",
    ],
)
def test_a_wrong_parameter_is_refused_by_name(told: Broker, query: str) -> None:
    answer = told.request("GET", f"/v1/events?{query}")
    assert answer.status == 400, answer
    name = query.partition("=")[0]
    assert name in answer.json()["error"] or "query string" in answer.json()["error"]


NAMES = st.sampled_from(["from", "since", "queue", "topic", "state", "limit", "bodies", "to", "max_bytes", "x"])
VALUES = st.one_of(
    st.text(max_size=12),
    st.integers(-5, 200).map(str),
    st.sampled_from(
        ["earliest", "latest", "now", "5.1", "0.9", "true", "false", "LQ", "fruit.*", "2026-01-01T00:00:00Z"]
    ),
)


@given(
    st.sampled_from(["/v1/events", "/v1/log", "/v1/log/batches", "/v1/queues"]),
    st.lists(st.tuples(NAMES, VALUES), max_size=4),
    st.sampled_from(["*/*", "text/event-stream", ARROW["Accept"], "text/*;q=0.1", "a/b", ";;q=", ""]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_query_makes_the_broker_fail(told: Broker, path: str, query: list[tuple[str, str]], accept: str) -> None:
    target = path + "?" + "&".join(f"{name}={quote(value)}" for name, value in query)
    answer = told.request("GET", target, {"Accept": accept})
    assert answer.status in (200, 400, 406, 410, 416), (target, answer)


# Forms


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "application/x-ndjson"),
        ("*/*", "application/x-ndjson"),
        ("application/*", "application/x-ndjson"),
        ("text/event-stream", "text/event-stream"),
        ("text/*", "text/event-stream"),
        ("application/x-ndjson;q=0.5, text/event-stream", "text/event-stream"),
        ("text/html, application/vnd.apache.arrow.stream;q=0.9, */*;q=0.1", "application/vnd.apache.arrow.stream"),
        ("application/x-ndjson;q=0, */*", "text/event-stream"),
    ],
)
def test_the_form_is_the_one_that_the_client_likes_best(told: Broker, accept: str, content_type: str) -> None:
    answer = told.request("GET", "/v1/events?limit=1", {"Accept": accept})
    assert (answer.status, answer.header("Content-Type")) == (200, content_type)


def test_a_form_that_there_is_not_is_refused(told: Broker) -> None:
    assert told.request("GET", "/v1/events", {"Accept": "text/html"}).status == 406


def test_an_arrow_stream_without_rows_has_a_schema(told: Broker) -> None:
    whole = pa.ipc.open_stream(told.request("GET", "/v1/events?from=latest", ARROW).body).read_all()
    assert whole.num_rows == 0
    assert "queue_name" in whole.schema.names


# Following


def test_a_follower_is_told_what_comes_as_it_comes(start_broker: StartBroker) -> None:
    broker = start_broker()
    make_queue(broker, "work")
    with follow(broker, "queue=work&state=L") as connection:
        told = Lines(connection).events()
        for number in range(20):
            publish(broker, "work", b"%d" % number)
            assert next(told)["message"] == str(number)


def test_a_follower_with_a_limit_comes_to_an_end(start_broker: StartBroker) -> None:
    broker = start_broker()
    make_queue(broker, "work")
    with follow(broker, "limit=3&from=now") as connection:
        publish(broker, "work", b"1", b"2")
        assert len(list(Lines(connection).events())) == 3
        assert connection.request("GET", "/health").body == b"green", "and the connection goes on"


def test_a_follower_that_nothing_is_told_is_told_that_it_still_listens(start_broker: StartBroker) -> None:
    broker = start_broker("events.heartbeat_seconds=0.05")
    make_queue(broker, "work")
    end = broker.request("GET", "/v1/log").json()["end"]
    with follow(broker, "from=now", SENT_EVENTS) as connection:
        assert connection.read_chunk() == b"id: %d\n\n" % end
        assert connection.read_chunk() == b": beat\nid: %d\n\n" % end
    with follow(broker, "from=now") as connection:
        assert connection.read_chunk() == b"\n"
    with follow(broker, "from=now", ARROW) as connection:
        assert connection.read_chunk()
        publish(broker, "work", b"x")


def test_a_follower_of_sent_events_that_was_told_nothing_yet_comes_back_to_its_place(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    make_queue(broker, "work")
    with follow(broker, "from=now", SENT_EVENTS) as connection:
        place = connection.read_chunk().decode().removeprefix("id: ").strip()
    publish(broker, "work", b"in the gap")
    with follow(broker, "from=now", SENT_EVENTS | {"Last-Event-ID": place}) as connection:
        assert connection.read_chunk().decode() == f"id: {place}\n\n"
        assert b"in the gap" in connection.read_chunk()
    with follow(broker, f"from={place}.1", SENT_EVENTS) as connection:
        assert connection.read_chunk().decode() == f"id: {place}.1\n\n"


def test_a_stop_ends_followers_cleanly(start_broker: StartBroker) -> None:
    broker = start_broker("stop_seconds=3600")
    make_queue(broker, "work")
    publish(broker, "work", b"x")
    connections = [follow(broker, "", headers) for headers in ({}, SENT_EVENTS, ARROW)]
    assert connections[1].read_chunk().startswith(b"id: ")
    for connection in connections:
        assert connection.read_chunk()
    broker.stop()
    ends = []
    for connection in connections:
        rest = b""
        while chunk := connection.read_chunk():
            rest += chunk
        ends.append(rest)
        connection.close()
    assert ends[:2] == [b"", b""]
    assert ends[2], "an Arrow stream has an end of its own"


def test_a_spectator_is_told_every_event_once_across_stops_and_kills(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    data = tmp_path / "spectated"
    broker = start_broker(*SMALL_SEGMENTS, data=data)
    make_queue(broker, "work", visibility_timeout=0)
    told: list[Row] = []
    place = "earliest"
    for life in range(6):
        with follow(broker, f"from={place}") as connection:
            stream = Lines(connection).events()
            for number in range(5):
                publish(broker, "work", *[b"%d-%d-%d" % (life, number, each) for each in range(7)])
                settle(broker, "work")
            for _ in range(40):  # Some of it, not all: the last line may be in the middle of a record.
                told.append(next(stream))
            place = told[-1]["next"]
            if life % 2:
                broker.kill()
            else:
                broker.stop()
        broker = start_broker(*SMALL_SEGMENTS, data=data)
    told += events(broker, f"from={place}")
    assert told == events(broker)
    assert Counter(event["state"] for event in told)["L"] == 6 * 5 * 7


# Queues that are gone, names that are new


def test_a_queue_that_is_gone_is_still_told_by_its_name(told: Broker) -> None:
    assert {event["queue"] for event in events(told)} == {
        "dead",
        "hopeless",
        "mortal",
        'odd "ñame"\\',
        "gone",
        "kept",
    }


def test_a_queue_that_was_gone_before_the_start_is_looked_up_in_the_log(start_broker: StartBroker) -> None:
    broker = start_broker()
    make_queue(broker, "gone")
    publish(broker, "gone", b"x")
    middle = broker.request("GET", "/v1/log").json()["end"]
    publish(broker, "gone", b"y")
    broker.request("DELETE", "/v1/queues/gone")
    make_queue(broker, "gone")
    broker.stop()
    broker = start_broker(data=broker.data)
    assert [(event["queue"], event["queue_number"]) for event in events(broker, f"from={middle}")] == [
        ("gone", 1)
    ] * 3
    assert broker.request("GET", "/v1/log").json()["queues"] == {"1": "gone", "2": "gone"}
    assert len(events(broker, "queue=gone")) == 5


# Retention


def first_event(broker: Broker, query: str) -> dict[str, Any]:
    """Asks again if the stream is cut off because retention has removed more meanwhile."""
    while True:
        try:
            return events(broker, f"{query}&limit=1")[0]
        except ConnectionError:
            assert broker.running


def test_what_retention_has_removed_is_answered_with_what_is_left(start_broker: StartBroker) -> None:
    broker = start_broker(*SMALL_SEGMENTS, "log.retention_seconds=0")
    make_queue(broker, "work")
    late = broker.connect()
    earliest = 0
    with broker.connect() as connection:
        while not earliest:
            for _ in range(20):
                assert connection.request("POST", "/messages/work", body=b"x" * 4000).status == 201
                message = connection.request("GET", "/messages/work")
                assert connection.request("DELETE", f"/messages/{message.header('X-MQS-MESSAGE-ID')}").status == 204
            earliest = connection.request("GET", "/v1/log").json()["earliest"]
        for target in ("/v1/events?from=0", "/v1/log/batches?from=0", "/v1/events?from=0&follow=true"):
            answer = connection.request("GET", target)
            assert (answer.status, answer.json()["earliest"] >= earliest) == (410, True), answer
        first = first_event(broker, "from=earliest")
        assert first["offset"] >= earliest
        assert first["queue"] == "work"
        assert first_event(broker, "since=0")["offset"] >= earliest
    late.close()


# Damage


def test_a_stream_that_meets_damage_breaks_off_and_the_broker_goes_on(start_broker: StartBroker) -> None:
    broker = start_broker(*SMALL_SEGMENTS)
    make_queue(broker, "work")
    for _ in range(10):
        publish(broker, "work", b"x" * 20_000)
    oldest = min((broker.data / "log").glob("*.log"))
    whole = oldest.read_bytes()
    with oldest.open("r+b") as file:
        file.seek(len(whole) // 2)
        file.write(b"y")
    with broker.connect() as connection:
        assert connection.begin("/v1/events").status == 200
        with pytest.raises(ConnectionError):
            list(Lines(connection))
    while not broker.times_logged("reader_failed"):  # The line comes by another way than the answers.
        assert broker.request("GET", "/health").body == b"green"
    following = broker.request("GET", "/v1/log").json()["segments"][1]["first"]
    assert events(broker, f"from={following}")[0]["offset"] == following
    with oldest.open("r+b") as file:
        file.write(whole)
    assert len(events(broker, "state=L")) == 10


# Bounds


def test_a_spectator_that_does_not_read_costs_the_broker_nothing(start_broker: StartBroker) -> None:
    broker = start_broker("events.readers_max=8")
    make_queue(broker, "work")
    body = b"x" * 20_000
    for _ in range(40):
        publish(broker, "work", *[body] * 50)
    idle = [broker.connect() for _ in range(6)]
    for connection in idle:
        connection.send_request("GET", "/v1/events?follow=true")
        connection._read_head()
    before = broker.resident_bytes()
    for _ in range(40):
        publish(broker, "work", *[body] * 50)
    assert len(events(broker, "state=L")) == 80 * 50, "others read on"
    assert broker.resident_bytes() - before < 120 << 20, "40 MB came, and nobody holds them for six who do not read"
    for connection in idle:
        connection.close()


def test_one_reader_more_than_there_may_be_is_refused_until_another_goes(start_broker: StartBroker) -> None:
    broker = start_broker("events.readers_max=2")
    first, second = follow(broker, "from=now"), follow(broker, "from=now", SENT_EVENTS)
    for target in ("/v1/events", "/v1/log/batches?from=0"):
        refused = broker.request("GET", target)
        assert (refused.status, refused.header("Retry-After")) == (503, "1")
    first.close()
    wait_until(lambda: broker.request("GET", "/v1/events").status == 200, "room for a reader")
    second.close()


def test_every_reader_is_let_go_of(broker: Broker) -> None:
    for _ in range(3):
        events(broker, "limit=1")
        broker.request("HEAD", "/v1/events")
        broker.request("GET", "/v1/events?from=99999999999")
        broker.request("GET", "/v1/log/batches?from=0")
        follow(broker, "from=now").close()
    nobody = b"penstock_event_readers 0.0\n"
    wait_until(lambda: nobody in broker.request("GET", "/metrics").body, "no readers")


def test_readers_need_a_token_as_everyone_does(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    for target in ("/v1/events", "/v1/log", "/v1/log/batches?from=0", "/v1/queues"):
        assert broker.request("GET", target).status == 401
        assert broker.request("GET", target, {"Authorization": "Bearer secret"}).status == 200


# The description of the log


def test_the_log_says_what_there_is_to_read(start_broker: StartBroker) -> None:
    broker = start_broker(*SMALL_SEGMENTS)
    empty = broker.request("GET", "/v1/log").json()
    assert (empty["earliest"], empty["end"], empty["segments"], empty["texts"]) == (0, 0, [], {})
    make_queue(broker, "work")
    for _ in range(10):
        publish(broker, "work", b"x" * 20_000)
    described = broker.request("GET", "/v1/log").json()
    assert (described["shard"], described["format"], described["earliest"]) == (0, 1, 0)
    assert described["end"] == 12  # The queue, the name of the content type, and the messages.
    assert (described["names_to"], described["texts"]) == (2, {"1": "text/plain"})
    assert described["queues"] == {"1": "work"}
    assert [segment["first"] for segment in described["segments"]] == sorted(
        int(path.stem) for path in (broker.data / "log").glob("*.log")
    )
    later = broker.request("GET", "/v1/log?names_from=1").json()
    assert (later["names_from"], later["texts"]) == (1, {"1": "text/plain"})
    known = broker.request("GET", f"/v1/log?names_from={later['names_to']}").json()
    assert (known["names_from"], known["names_to"], known["texts"]) == (2, 2, {})


@pytest.mark.parametrize("query", ["", "from=x", "from=2&to=1", "from=0&max_bytes=0", "from=0&what=1", "to=5"])
def test_a_wrong_range_is_refused(told: Broker, query: str) -> None:
    assert told.request("GET", f"/v1/log/batches?{query}").status == 400


def test_a_queue_that_is_removed_is_one_deleted_event_in_every_form(start_broker: StartBroker) -> None:
    broker = start_broker()
    make_queue(broker, "leaves")
    publish(broker, "leaves", b"a", b"b")
    assert broker.request("DELETE", "/v1/queues/leaves").status == 204
    (removed,) = events(broker, "queue=leaves&state=D")
    assert {name: value for name, value in removed.items() if name not in ("offset", "next", "time")} == {
        "state": "D",
        "event": "deleted",
        "queue": "leaves",
        "queue_number": 1,
    }
    assert removed["next"] == str(removed["offset"] + 1)
    sent = broker.request("GET", "/v1/events?state=D", {"Accept": "text/event-stream"}).body
    assert json.loads(sent.rpartition(b"data: ")[2]) == removed
    arrow = broker.request("GET", "/v1/events?state=D", {"Accept": "application/vnd.apache.arrow.stream"}).body
    (row,) = pa.ipc.open_stream(arrow).read_all().to_pylist()
    assert (row["letter"], row["kind"], row["queue_name"]) == ("D", Kind.QUEUE_REMOVED, "leaves")
    assert (row["queue"], row["sequence"], row["created"]) == (1, None, None)
    found = broker.request("GET", f"/v1/messages/{events(broker, 'state=L')[0]['id']}").json()
    assert (found["state"], found["queued"], found["modified"]) == ("D", False, removed["time"])
    assert found["events"][-1] == removed
