"""Events as text: what the Event Log shows of a row."""

from __future__ import annotations

import json

import pytest

from penstock.dialects.native.event_text import EventWriter
from penstock.ids import MessageIds
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
    (line,) = writer.lines([event])
    shown = json.loads(line)
    assert (shown["state"], shown["event"], shown.get("reason")) == ("R", "retry", reason)
