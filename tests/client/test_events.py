"""The stream of events, however it is cut into pieces."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import AsyncClient, Client
from penstock.client.errors import BadRequest, EventsRemoved
from penstock.client.events import _Reading
from tests.support.broker import Broker
from tests.support.endpoint import Endpoint, HangUp, Pushed, answer

EVENT = '{"offset":%d,"next":"%d","state":"L","event":"logged","time":"2026-01-01T00:00:00Z","message":"é"}'
STREAM = (
    b"id: 0\n\n"
    + b"".join(f"id: {n + 1}\ndata: {EVENT % (n, n + 1)}\n\n".encode() for n in range(4))
    + b": beat\nid: 9\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_any_split_of_the_bytes_gives_the_same_events(cuts: list[int]) -> None:
    reading = _Reading("earliest")
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in itertools.pairwise(edges) for event in reading._parsed(STREAM[start:end])]
    assert [event.offset for event in events] == [0, 1, 2, 3]
    assert reading.place == "9"
    assert events[0].body == "é".encode()


def test_a_stream_that_breaks_off_goes_on_after_its_last_whole_event() -> None:
    asked: list[str] = []

    def serve(pushed: Pushed) -> bytes:
        asked.append(pushed.line)
        if len(asked) == 1:  # In the middle of the third event.
            raise HangUp(
                b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + STREAM[: STREAM.find(b'"offset":2') + 5]
            )
        return answer(200, "", STREAM[STREAM.find(b"id: 3") :])

    with Endpoint(serve) as endpoint, Client(f"http://127.0.0.1:{endpoint.port}") as client:
        assert [event.offset for event in client.events(follow=False)] == [0, 1, 2, 3]
    assert ["from=earliest" in asked[0], "from=2&" in asked[1]] == [True, True]


def test_a_reader_that_follows_gets_what_comes_later(broker: Broker) -> None:
    async def run() -> list[str]:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("events-later")
            await client.publish("events-later", "before")
            seen = []
            async for event in client.events(queue="events-later"):
                seen.append(event.state)
                if event.state == "Q" and len(seen) < 4:
                    await client.publish("events-later", "after")
                if len(seen) == 4:
                    return seen
        raise AssertionError

    assert asyncio.run(run()) == ["L", "Q", "L", "Q"]


def test_what_is_wrong_with_a_reader_is_said(broker: Broker) -> None:
    with Client(broker.url) as client:
        with pytest.raises(BadRequest):
            next(iter(client.events(from_="yesterday")))
        with pytest.raises(BadRequest, match="past the end"):
            next(iter(client.events(from_=10**15)))


def test_events_that_are_gone_are_named() -> None:
    gone = answer(410, "", b'{"error": "they are past retention", "code": "events_removed", "earliest": 7}')
    with Endpoint(gone) as endpoint, Client(f"http://127.0.0.1:{endpoint.port}") as client:
        with pytest.raises(EventsRemoved) as raised:
            next(iter(client.events(from_=1)))
        assert raised.value.facts == {"earliest": 7}
