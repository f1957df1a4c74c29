"""What a client writes is what the broker reads, and the other way round."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from penstock.client.encoding import PublishDocument, content_of, encode, query, result_fields
from penstock.client.results import MessageFacts, Outcome
from penstock.dialects.native.publish import MessageDocument, message_of
from penstock.dialects.wire.json_bodies import message_field

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def carried(message: object) -> tuple[bytes, str]:
    """The body and type that the broker stores of what a client publishes."""
    document = msgspec.json.decode(encode(PublishDocument(*content_of(message, None))), type=MessageDocument)
    stored = message_of(document)
    return stored.body, stored.content_type


@given(st.text())
def test_text_is_stored_as_it_is(text: str) -> None:
    assert carried(text) == (text.encode(), "text/plain; charset=utf-8")


@given(st.binary())
def test_bytes_are_stored_as_they_are(data: bytes) -> None:
    assert carried(data) == (data, "application/octet-stream")


@given(values.filter(lambda value: not isinstance(value, str)))
def test_anything_else_is_stored_as_its_json(value: object) -> None:
    assert carried(value) == (msgspec.json.encode(value), "application/json")


def test_what_becomes_a_json_string_is_stored_as_json_too() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert carried(moment) == (b'"2026-01-01T00:00:00Z"', "application/json")
    assert carried(Raw(b'"text"')) == (b'"text"', "application/json")
    assert carried(Raw(b' {"a": 1}')) == (b'{"a": 1}', "application/json")


def test_a_text_that_is_more_than_a_text_is_stored_as_text() -> None:
    class Color(str, Enum):  # noqa: UP042 - The older form of it.
        RED = "red"

    assert carried(Color.RED) == (b"red", "text/plain; charset=utf-8")


@given(st.binary())
def test_a_delivered_body_is_read_to_the_byte(body: bytes) -> None:
    document = {"id": "1", "queue": "q", "receives": 1, "created": "2026-01-01T00:00:00.123456789Z"}
    document |= {"visible_at": "2026-01-01T00:00:30Z"} | message_field(body, "application/json", raw=True)
    assert msgspec.json.decode(encode(document), type=MessageFacts).body == body


@pytest.mark.parametrize(
    ("result", "fields"),
    [
        (None, {}),
        ("done", {"result": "done"}),
        ({"a": 1}, {"result": '{"a":1}'}),
        (b"\xff", {"result_base64": "/w=="}),
    ],
)
def test_results_are_text_or_bytes(result: object, fields: dict[str, str]) -> None:
    assert result_fields(result) == fields


def test_a_query_leaves_out_what_is_not_given() -> None:
    assert query(a=None, b=True, c=["x", "y z"], d=1.5) == "?b=true&c=x&c=y+z&d=1.5"
    assert query(a=None) == ""


def test_an_outcome_shows_what_became_of_its_message() -> None:
    outcome = Outcome(id="1", outcome="success", state="X", _result='{"ok":true}')
    assert repr(outcome) == """Outcome(id='1', outcome='success', state='X', result=b'{"ok":true}')"""
