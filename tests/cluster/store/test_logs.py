"""The logs of all shards: merged by time, or one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.http_client import Connection
from tests.support.sharded import Store, a_store

SHARDS = 4
QUEUES = {f"queue-{shard}": shard for shard in range(SHARDS)}
PUBLISHED = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with a_store(tmp_path_factory.mktemp("store") / "four", SHARDS, 2, QUEUES) as store:
        for name in QUEUES:
            assert store.request("PUT", f"/v1/queues/{name}", b"{}").status == 201
        for number in range(PUBLISHED):
            publish(store, f"queue-{number % SHARDS}", f"message {number}")
        yield store


def publish(store: Store, queue: str, text: str) -> None:
    body = json.dumps({"message": text}).encode()
    assert store.request("POST", f"/v1/queues/{queue}/messages", body).status == 201


def events_of(store: Store, query: str = "", **headers: str) -> list[dict[str, Any]]:
    answer = store.request("GET", f"/v1/events?{query}", headers=headers)
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["message"] for event in events if "message" in event]


def facts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without their cursors: events that nobody sees may come before the next one, or after."""
    return [event | {"next": ""} for event in events]


def test_events_of_all_shards_come_in_the_order_of_their_times(store: Store) -> None:
    events = events_of(store)
    times = [event["time"] for event in events]
    assert times == sorted(times)
    assert [text for text in texts(events) if text.startswith("message")] == [
        f"message {number}" for number in range(PUBLISHED)
    ]
    for event in events:
        assert event["shard"] == QUEUES[event["queue"]]


def test_each_cursor_leads_to_what_comes_after_it(store: Store) -> None:
    events = events_of(store)
    for index in range(0, len(events), 7):
        rest = facts(events[index + 1 :])
        assert facts(events_of(store, f"from={events[index]['next']}")) == rest
        assert facts(events_of(store, **{"Last-Event-ID": events[index]["next"]})) == rest


def test_0_is_the_beginning_of_every_shard(store: Store) -> None:
    whole = facts(events_of(store))
    assert facts(events_of(store, "from=0")) == facts(events_of(store, **{"Last-Event-ID": "0"})) == whole
    assert rows_of(batches_of(store, "from=0")[1]) == rows_of(batches_of(store)[1])
    with store.connect() as connection:
        followed = Followed(connection, "from=0")
        shown: list[dict[str, Any]] = []
        while len(shown) < len(whole):  # Where nothing matches, only the cursor moves.
            shown += [event] if (event := followed.next()[1]) else []
        assert facts(shown) == whole


@pytest.mark.parametrize("name", ["from", "Last-Event-ID"])
def test_another_number_is_refused_with_the_form_that_is_wanted(store: Store, name: str) -> None:
    query, headers = ("from=17", {}) if name == "from" else ("", {name: "17"})
    answer = store.request("GET", f"/v1/events?{query}", headers=headers)
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")
    assert answer.json()["error"].startswith(f"{name} must be ")
    assert "0:17,1:4" in answer.json()["error"]


def test_parts_of_the_stream_are_the_whole(store: Store) -> None:
    whole, parts = events_of(store), list[dict[str, Any]]()
    cursor = "earliest"
    while part := events_of(store, f"limit=8&from={cursor}"):
        assert len(part) <= 8
        parts += part
        cursor = part[-1]["next"]
    assert facts(parts) == facts(whole)


def test_filters_are_those_of_each_shard(store: Store) -> None:
    assert {event["queue"] for event in events_of(store, "queue=queue-1&queue=queue-2")} == {"queue-1", "queue-2"}
    assert {event["state"] for event in events_of(store, "state=L")} == {"L"}
    assert events_of(store, "from=latest") == []
    assert texts(events_of(store, "text=sage%202&state=L")) == ["message 2", *[f"message 2{n}" for n in range(10)]]


def test_one_shard_has_its_own_offsets(store: Store) -> None:
    alone = events_of(store, "shard=2")
    assert {event["queue"] for event in alone} == {"queue-2"}
    assert events_of(store, f"shard=2&from={alone[3]['next']}") == alone[4:]
    together = [event for event in events_of(store) if event["shard"] == 2]
    assert [event["offset"] for event in together] == [event["offset"] for event in alone]


@pytest.mark.parametrize(
    "query", ["from=17", "from=0:1,1:2", "from=0:1,1:1,2:1,3:1,4:1", "from=0:1,0:1,2:1,3:1", "shard=x", "limit=0"]
)
def test_a_wrong_question_is_refused(store: Store, query: str) -> None:
    answer = store.request("GET", f"/v1/events?{query}")
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")


def test_a_shard_that_does_not_exist_is_not_found(store: Store) -> None:
    answer = store.request("GET", "/v1/events?shard=9")
    assert (answer.status, answer.json()["error"]) == (404, "the shard does not exist: 9; the last one is 3")


def test_a_cursor_past_the_end_is_refused(store: Store) -> None:
    assert store.request("GET", "/v1/events?from=0:1,1:1,2:999999,3:1").json()["code"] == "past_end"


# ── Arrow ─────────────────────────────────────────────────────────────────────────────────────────────────────

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


def batches_of(store: Store, query: str = "") -> tuple[str, list[tuple[pa.RecordBatch, str]]]:
    """The cursor where the stream begins, and all record batches, each with the cursor after it."""
    answer = store.request("GET", f"/v1/events?{query}", headers=ARROW)
    assert (answer.status, answer.header("Content-Type")) == (200, ARROW["Accept"]), answer
    reader = pa.ipc.open_stream(answer.body)
    found: list[tuple[pa.RecordBatch, str]] = []
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return reader.schema.metadata[b"from"].decode(), found
        found.append((batch, metadata[b"next"].decode()))


def rows_of(batches: list[tuple[pa.RecordBatch, str]]) -> list[tuple[int, int, str, str]]:
    names = ("shard", "offset", "letter", "queue_name")
    return [tuple(row[name] for name in names) for batch, _ in batches for row in batch.select(names).to_pylist()]


def test_arrow_has_the_events_of_all_shards(store: Store) -> None:
    _, batches = batches_of(store)
    shown = [(each["shard"], each["offset"], each["state"], each["queue"]) for each in events_of(store)]
    assert sorted(rows_of(batches)) == sorted(shown)
    texts = {body.decode() for batch, _ in batches for body in batch["body"].to_pylist() if body}
    assert texts >= {f"message {number}" for number in range(PUBLISHED)}
    for shard in range(SHARDS):
        offsets = [row[1] for row in rows_of(batches) if row[0] == shard]
        assert offsets == sorted(offsets)


def test_arrow_is_read_on_from_each_cursor(store: Store) -> None:
    start, batches = batches_of(store)
    assert rows_of(batches_of(store, f"from={start}")[1]) == rows_of(batches)
    for index, (_, cursor) in enumerate(batches):
        assert sorted(rows_of(batches_of(store, f"from={cursor}")[1])) == sorted(rows_of(batches[index + 1 :]))


def test_parts_of_arrow_are_the_whole(store: Store) -> None:
    whole, parts, cursor = rows_of(batches_of(store)[1]), list[tuple[int, int, str, str]](), "earliest"
    while part := batches_of(store, f"limit=7&bodies=false&from={cursor}")[1]:
        assert sum(len(batch) for batch, _ in part) <= 7
        parts += rows_of(part)
        cursor = part[-1][1]
    assert sorted(parts) == sorted(whole)


def test_arrow_has_filters_and_one_shard_alone(store: Store) -> None:
    _, batches = batches_of(store, "queue=queue-1&state=L")
    assert {row[2:] for row in rows_of(batches)} == {("L", "queue-1")}
    assert batches_of(store, "from=latest")[1] == []
    answer = store.request("GET", "/v1/events?shard=3", headers=ARROW)
    assert "shard" not in pa.ipc.open_stream(answer.body).schema.names


def test_arrow_is_followed(store: Store) -> None:
    with store.connect(0) as connection:
        connection.send_request("GET", "/v1/events?follow=true&from=latest&limit=4", ARROW)
        store.until(lambda: sum(each.services.event_streams.open for each in all_shards(store)) == SHARDS)
        for number in (0, 3):  # Two events each: logged, and queued.
            publish(store, f"queue-{number}", "followed")
        table = pa.ipc.open_stream(connection.read_response().body).read_all()
    assert sorted(set(table["shard"].to_pylist())) == [0, 3]


def all_shards(store: Store) -> list[Any]:
    return [shard for worker in store.all for shard in worker.shards.values()]


class Followed:
    """Server-Sent Events of a connection."""

    def __init__(self, connection: Connection, query: str) -> None:
        headers = {"Accept": "text/event-stream"}
        assert connection.begin(f"/v1/events?follow=true&{query}", headers).status == 200
        self._connection = connection
        self._buffer = b""

    def next(self) -> tuple[str, dict[str, Any] | None]:
        """The id of the next event, and its document."""
        while b"\n\n" not in self._buffer:
            self._buffer += self._connection.read_chunk()
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        fields = dict(line.partition(": ")[::2] for line in block.decode().splitlines())
        return fields["id"], json.loads(fields["data"]) if "data" in fields else None

    def until(self, text: str) -> tuple[str, list[str]]:
        """Everything up to a message, and where to continue."""
        seen: list[str] = []
        while True:
            following, event = self.next()
            seen += texts([event]) if event else []
            assert event is None or event["next"] == following
            if seen and seen[-1] == text:
                return following, seen


def test_a_reader_follows_all_shards(store: Store) -> None:
    with store.connect() as connection:
        followed = Followed(connection, "from=latest")
        begun, event = followed.next()
        assert event is None
        for number in range(8):
            publish(store, f"queue-{number % SHARDS}", f"live {number}")
            assert followed.until(f"live {number}")[1] == [f"live {number}"]
    with store.connect() as connection:
        seen = Followed(connection, f"from={begun}").until("live 7")[1]
        assert seen == [f"live {number}" for number in range(8)]
    streams = [shard.services.event_streams for worker in store.all for shard in worker.shards.values()]
    store.until(lambda: not any(each.open for each in streams))


def test_the_logs_of_all_shards_are_described(store: Store) -> None:
    described = store.request("GET", "/v1/log").json()
    assert described["shards"] == SHARDS
    for shard in range(SHARDS):
        alone = store.request("GET", f"/v1/log?shard={shard}").json()
        assert (alone["shard"], alone["shards"]) == (shard, SHARDS)
        assert described["logs"][shard] == alone
        batches = store.request("GET", f"/v1/log/batches?shard={shard}&from=0")
        assert batches.header("X-Penstock-End-Offset") == str(alone["end"])
        assert batches.body
    assert "there are 4" in store.request("GET", "/v1/log/batches?from=0").json()["error"]
    assert store.request("GET", "/v1/log/nothing?shard=0").status == 404


def test_each_shard_has_a_backup(store: Store) -> None:
    described = store.request("GET", "/v1/backup").json()
    assert (described["shards"], len(described["backups"])) == (SHARDS, SHARDS)
    for shard in range(SHARDS):
        alone = store.request("GET", f"/v1/backup?shard={shard}").json()
        assert alone["log"] == described["backups"][shard]["log"]
        assert len(store.request("GET", f"/v1/backup/log?shard={shard}&from=0&to=16").body) == 16
        assert store.request("GET", f"/v1/backup/moment?shard={shard}").json()["log"] == alone["log"]
    assert store.request("GET", "/v1/backup/history").status == 400
