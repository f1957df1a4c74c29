"""Bodies in JSON answers: as JSON where every parser makes the same of it, else as text."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from penstock.dialects.wire.json_bodies import given_bytes, json_of, says_json
from penstock.errors import ProtocolError

JSON = "application/json"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"to": 1}', b'{"to":1}'),
        (b' [1, 2.50, -0, 1e5, "a b\\u00e9\\/\\"" ]\n', b'[1,2.50,-0,1e5,"a b\\u00e9\\/\\""]'),
        (b"17", b"17"),
        (b"null", b"null"),
        (b'{"a": {"a": [{"a": 1}, {"a": 2}]}}', b'{"a":{"a":[{"a":1},{"a":2}]}}'),
        (b'{"id": "12345678901234567890"}', b'{"id":"12345678901234567890"}'),
        (b'{"id": "x\\"12345678901234567890"}', b'{"id":"x\\"12345678901234567890"}'),
        (b"[9007199254740992, 0.30000000000000004, 1.7976931348623157e308]",) * 2,
        (b'{"a\\"": 1, "\\"a": 2, "b": ":"}', b'{"a\\"":1,"\\"a":2,"b":":"}'),
    ],
)
def test_json_is_given_as_it_was_written_without_blanks(body: bytes, shown: bytes) -> None:
    assert json_of(body, JSON) == shown.replace(b", ", b",")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a": 1} {"b": 2}',
        b"NaN",
        b'{"a": Infinity}',
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "\\u0061": 2}',
        b'[{"b": {"a": 1, "a": 2}, "c": "\\":"}]',
        b"9007199254740993",
        b"[-12345678901234567890]",
        b"1e400",
        b"[1e-400]",
        b"0.1234567890123456789",
        b'"text in JSON"',
        b'{"a": "\xff"}',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_a_parser_would_change_stays_text(body: bytes) -> None:
    assert json_of(body, JSON) is None


@pytest.mark.parametrize(
    ("content_type", "yes"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json; charset="utf-8"', True),
        ("application/vnd.api+json", True),
        ("text/json", True),
        ("application/json; charset=utf-16", False),
        ("application/json-seq", False),
        ("application/x-ndjson", False),
        ("text/plain", False),
        ("", False),
    ],
)
def test_the_content_type_says_whether_a_body_is_json(content_type: str, yes: bool) -> None:
    assert says_json(content_type) is yes


@pytest.mark.parametrize("body", [b"0e22345678901234567890", b"[0E-99999999999999999999]"])
def test_a_number_whose_exponent_nobody_can_hold_is_given_as_text(body: bytes) -> None:
    assert json_of(body, JSON) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
@example(6.103515625e-05, False, None)  # Short as it was written, long as it is written again.
@settings(deadline=None)
def test_whatever_a_parser_keeps_is_given_as_json(value: object, ascii_only: bool, indent: int | None) -> None:
    try:
        body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return
    shown = json_of(body, JSON)
    if isinstance(value, str):
        assert shown is None
    elif shown is not None:
        assert json.loads(shown) == value
        assert b"\n" not in shown
    else:
        assert "\\ud" in body.decode()  # A lone surrogate.


@pytest.mark.parametrize("text", [b'"\xf5"', b'"\\ud800"', b'"\\x"'])
def test_a_message_that_is_no_text_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="message is not valid text"):
        given_bytes(Raw(text), UNSET, "message")
