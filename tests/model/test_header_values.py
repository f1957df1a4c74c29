"""Values that go out as headers. What an earlier version stored without a check does no harm."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.header_values import content_type_header, is_header_value
from penstock.model.kept_headers import kept_header_lines

_pack = msgspec.msgpack.Encoder().encode


@given(st.text(st.characters(max_codepoint=255)))
def test_a_content_type_stored_by_an_earlier_version_never_ends_a_header_line(text: str) -> None:
    value = content_type_header(text)
    assert is_header_value(value)
    assert value in (text.encode("latin-1"), b"application/octet-stream")


def test_kept_headers_stored_by_an_earlier_version_are_left_out_if_they_would_end_a_line() -> None:
    kept = {b"content-encoding": b"gz\x1bip", b"x-trace-id": b"7a2f4c1e-5d7b-4b59-9c0e-2f6f1f0f8a11"}
    assert kept_header_lines(_pack(kept)) == b"X-TRACE-ID: 7a2f4c1e-5d7b-4b59-9c0e-2f6f1f0f8a11\r\n"
