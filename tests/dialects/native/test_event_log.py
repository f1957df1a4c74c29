"""What a reader of the Event Log asks for: where it begins, in one shard or in several."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dialects.native.event_log import EventLog
from penstock.dialects.wire import http
from penstock.errors import ProtocolError, RequestError
from penstock.model.event_log import From, ReadEvents


def query_of(shards: int, query: str, last_seen: str = "") -> ReadEvents:
    asked: list[Any] = []
    log = EventLog(lambda _, query, __: asked.append(query), shards)  # type: ignore[arg-type]
    headers = {b"last-event-id": last_seen.encode()} if last_seen else {}
    log.routes[b"v1/events", 2][b"GET"](http.Request(b"GET", b"/v1/events?" + query.encode(), headers), b"events")
    found: ReadEvents = asked[0]
    return found


@pytest.mark.parametrize(
    ("shards", "query", "start", "starts"),
    [
        (1, "", "earliest", ()),
        (1, "from=now", "latest", ()),
        (1, "from=17.1", From(17, 1), ()),
        (1, "from=0:17.1", From(17, 1), ()),  # As nodes with one shard wrote it.
        (2, "from=0", "earliest", ()),
        (2, "from=0:17,1:4.1", "earliest", (From(17), From(4, 1))),
        (2, "shard=1&from=17", From(17), ()),
        (2, "shard=1&from=0", From(0), ()),
    ],
)
def test_a_reader_begins_at_a_place_of_its_shard_or_of_all(
    shards: int, query: str, start: Any, starts: tuple[From, ...]
) -> None:
    found = query_of(shards, query)
    assert (found.start, found.starts) == (start, starts)


def test_the_place_that_a_client_has_seen_last_counts() -> None:
    assert query_of(2, "from=0:1,1:1", "0:2,1:2").starts == (From(2), From(2))
    assert query_of(2, "from=0:1,1:1", "now").starts == ()
    assert query_of(1, "from=1", "2.1").start == From(2, 1)


@pytest.mark.parametrize("query", ["from=17", "from=0:1", "from=0:1,1:1,2:1", "from=1:1,0:1", "shard=0&from=0:1,1:1"])
def test_a_place_that_is_not_of_this_store_is_refused(query: str) -> None:
    with pytest.raises(ProtocolError):
        query_of(2, query)


def test_only_shards_that_are_there_are_asked() -> None:
    assert [query_of(1, "").shard, query_of(2, "").shard, query_of(2, "shard=1").shard] == [0, None, 1]
    with pytest.raises(RequestError, match="the last one is 1"):
        query_of(2, "shard=2")
