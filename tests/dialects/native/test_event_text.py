"""Events as text: what the Event Log shows of a row."""

from __future__ import annotations

import json

import pytest

from penstock.dialects.native.event_text import EventStreamText, EventWriter
from penstock.ids import MessageIds
from penstock.model.event_log import Events, EventText
from penstock.model.kinds import Kind
from penstock.model.traces import Event


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Kind.TIMED_OUT, "timed out"), (Kind.RESTORED, "restored"), (Kind.RETRIED, None), (Kind.GIVEN_BACK, None)],
    ids=lambda value: str(value),
)
def test_the_reason_says_why_a_message_is_delivered_again(kind: Kind, reason: str | None) -> None:
    writer = EventWriter(MessageIds(bytes(16)), str, str, raw=False)
    event = Event(7, 0, "R", kind, 2000, 1, 3, 1000, 2000, None, None, 1, 0, 0, 0, 0, 0, None, None)
    (line,) = writer.documents([event])
    shown = json.loads(line)
    assert (shown["state"], shown["event"], shown.get("reason")) == ("R", "retry", reason)


def test_events_of_several_shards_have_a_place_in_each() -> None:
    text = EventStreamText(sent_events=True, shards=2)
    assert text(Events([b"4", b"7"], word="begin")) == b"id: 0:4,1:7\n\n"
    event = EventText(1, 1, 8, b"8.1", b'"state":"L"}')
    shown = text(Events([b"5", b"8.1"], [event], "past"))
    data = b'{"shard":1,"offset":8,"next":"0:4,1:8.1","state":"L"}'
    assert shown == b"id: 0:4,1:8.1\ndata: " + data + b"\n\nid: 0:5,1:8.1\n\n"
    assert text(Events([b"5", b"9"], word="beat")) == b": beat\nid: 0:5,1:9\n\n"


def test_events_of_one_shard_are_lines_without_its_number() -> None:
    text = EventStreamText(sent_events=False, shards=1)
    assert text(Events([b"4"], word="begin")) == text(b"") == b""
    event = EventText(1, 3, 8, b"9", b'"state":"L"}')
    assert text(Events([b"9"], [event])) == b'{"offset":8,"next":"9","state":"L"}\n'
    assert text(Events([b"9"], word="beat")) == b"\n"
