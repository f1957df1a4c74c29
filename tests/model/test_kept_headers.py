"""What is kept with a message, and how it comes back."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolError
from penstock.model.kept_headers import checked_headers, encode_headers, kept_header_lines, own_header_lines


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({"timestamp": "x"}, "use the field timestamp"),
        ({"": "x"}, "a header name has 1 to 128 characters"),
        ({"a b": "x"}, "a header name"),
        ({"a\r\nHost": "x"}, "a header name"),
        ({"ä": "x"}, "a header name"),
        ({"a" * 129: "x"}, "a header name"),
        ({str(number): "x" for number in range(65)}, "at most 64 headers, got 65"),
        ({"a": "ä" * 4096}, "at most 8192 bytes in all, got 8193"),
    ],
)
def test_a_header_that_cannot_be_kept_is_refused(headers: dict[str, str], complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        checked_headers(headers)


def test_as_many_headers_as_are_allowed_are_kept() -> None:
    headers = {f"{number:03}": "x" * 125 for number in range(64)}
    assert len(checked_headers(headers)) == 64


def test_a_push_has_each_header_once_under_a_name_that_says_whose_it_is() -> None:
    kept = encode_headers(
        {
            b"trace": b"a b",
            b"evil": b"x\r\nHost: y",
            b"umlaut": "ä".encode(),
            b"timestamp": b"2026-01-01T00:00:00Z",
            b"x-trace-id": b"7",
            b"not a token": b"from Spark",
        }
    )
    assert kept_header_lines(kept) == b"X-TRACE-ID: 7\r\n"
    assert own_header_lines(kept).splitlines() == [
        b"X-Penstock-Header-trace: a b",
        b"X-Penstock-Header-evil: x%0D%0AHost: y",
        b"X-Penstock-Header-umlaut: %C3%A4",
        b"X-Penstock-Timestamp: 2026-01-01T00:00:00Z",
    ]
