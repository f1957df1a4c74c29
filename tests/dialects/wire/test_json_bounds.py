"""What is cheap to send is cheap to refuse: long lists and many keys are noticed before they are built.

Effort is counted in objects that are allocated, not in time.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from struct import pack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.etzel.codec import explained
from penstock.dialects.glovebox.codec import decode_bincode, decode_json, label_in
from penstock.dialects.wire.http import decoded
from penstock.dialects.wire.json_bounds import check_keys, longer_than
from penstock.dialects.wire.multipart import split_parts
from penstock.errors import Fault, ProtocolError

MEBIBYTE = 1 << 20


def allocated_bytes(call: Callable[[], object]) -> int:
    """The most memory that a call held at once."""
    call()  # What is made only once, such as a larger table of all names of the process, does not count.
    tracemalloc.start()
    try:
        call()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def a_list(element: bytes, size: int = 4 * MEBIBYTE) -> bytes:
    return b"[" + b",".join([element] * (size // (len(element) + 1))) + b"]"


def test_a_long_list_is_noticed_at_its_first_element_too_many() -> None:
    body = a_list(b"{}")
    assert allocated_bytes(lambda: longer_than(1000)(body)) < MEBIBYTE
    assert longer_than(1000)(body)


@given(
    st.lists(st.one_of(st.none(), st.text(), st.dictionaries(st.text(), st.integers())), max_size=8),
    st.integers(0, 8),
)
def test_a_list_is_longer_than_what_it_has_fewer_of(elements: list[object], most: int) -> None:
    padded = [*elements, "x" * (32 << 10)]
    assert longer_than(most)(json.dumps(padded).encode()) == (len(padded) > most)


def test_what_is_no_list_is_left_to_whoever_decodes_it() -> None:
    assert not longer_than(3)(b"[" + b"x" * (64 << 10))


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text()),
    lambda values: st.one_of(st.lists(values), st.dictionaries(st.text(), values)),
)


def keys_in(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(keys_in, value.values()))
    return sum(map(keys_in, value)) if isinstance(value, list) else 0


@given(JSON_VALUES, st.integers(0, 6), st.sampled_from([(",", ":"), (" , ", " : "), ("\n,", "\t:\n")]))
def test_keys_are_counted_wherever_they_stand_and_nothing_else_is(
    value: object, most: int, separators: tuple[str, str]
) -> None:
    body = json.dumps(value, separators=separators).encode()
    if keys_in(value) > most:
        with pytest.raises(ProtocolError, match=f"at most {most} keys"):
            check_keys(body, most)
    else:
        check_keys(body, most)


def test_a_text_full_of_colons_is_no_object_full_of_keys() -> None:
    inner = json.dumps({str(number): "\\" for number in range(1000)})
    check_keys(json.dumps({"messages": {"q": [inner, "\\", ':"']}}).encode(), 2)


def a_post(count: int, stages: int) -> bytes:
    head = bytes(8) + pack("<Q", 1) + b"q" + pack("<Q", 0)
    return head + pack("<IQQ", 0, 0, count) + bytes(4 * stages)


def test_a_bincode_post_lists_at_most_64_stages() -> None:
    assert decode_bincode(a_post(64, 64)).notify == ["ready"] * 64  # type: ignore[union-attr]
    with pytest.raises(ProtocolError, match="notify lists at most 64 stages, got 2000000"):
        decode_bincode(a_post(2_000_000, 2_000_000))


def test_a_long_list_of_bincode_stages_is_refused_without_reading_it() -> None:
    frame = a_post(1_000_000, 1_000_000)

    def refused() -> None:
        with pytest.raises(ProtocolError):
            decode_bincode(frame)

    assert allocated_bytes(refused) < MEBIBYTE


def test_a_json_post_lists_at_most_64_stages() -> None:
    post = b'{"type":"post","queue":"q","message":"","notify":[%b]}'
    assert len(decode_json(post % b",".join([b'"sync"'] * 64)).notify) == 64  # type: ignore[union-attr]
    with pytest.raises(msgspec.ValidationError, match="64"):
        decode_json(post % b",".join([b'"sync"'] * 65))


@pytest.mark.parametrize(
    ("label", "number"),
    [
        (b"7", 7),
        (b"18446744073709551615", (1 << 64) - 1),
        (b"18446744073709551616", 0),
        (b"-1", 0),
        (b"1.5", 0),
        (b'"7"', 0),
        (b"null", 0),
        (b"9" * 5000, 0),
    ],
)
def test_the_label_of_a_wrong_request_is_found_if_it_is_one(label: bytes, number: int) -> None:
    assert label_in(b'{"type":"post","label":%b,"priority":"x"}' % label) == number


def test_a_label_that_is_a_long_list_is_not_built() -> None:
    frame = b'{"type":"post","label":%b,"priority":"x"}' % a_list(b"[]")
    assert allocated_bytes(lambda: label_in(frame)) < 2 * len(frame)
    assert label_in(frame) == 0


def test_a_command_that_is_a_long_list_is_not_built() -> None:
    frame = b'{"cmd":%b}' % a_list(b"[]")
    assert b"BAD_CMD" in explained(frame)
    assert allocated_bytes(lambda: explained(frame)) < 3 * len(frame)


def test_a_batch_with_too_many_parts_is_not_split_to_the_end() -> None:
    body = b"--b\r\n\r\n" * 500_000 + b"--b--"

    def refused() -> None:
        with pytest.raises(ProtocolError, match="at most 1000 messages"):
            split_parts(body, b"b", 1000)

    assert allocated_bytes(refused) < 3 * len(body)


def test_a_part_has_at_most_32_headers() -> None:
    def body(count: int) -> bytes:
        return b"--b\r\n" + b"a: b\r\n" * count + b"\r\nhello\r\n--b--\r\n"

    assert split_parts(body(32), b"b", 1000)[0][1] == b"hello"
    with pytest.raises(ProtocolError, match="at most 32 headers"):
        split_parts(body(33), b"b", 1000)


@pytest.mark.parametrize("body", [b'{"message":' + b"[" * 5000, b"[" * 200_000], ids=["in a field", "alone"])
def test_json_that_is_nested_too_deeply_is_refused_as_such(body: bytes) -> None:
    assert longer_than(1000)(body) is False
    with pytest.raises(ProtocolError, match="the JSON is nested too deeply") as refused:
        decoded(msgspec.json.decode, body)
    assert refused.value.fault is Fault.BAD_JSON
