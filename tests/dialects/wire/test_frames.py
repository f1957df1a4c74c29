"""Frames against an independent implementation: what it writes is read, what it refuses is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri
from websockets.utils import apply_mask

from penstock.dialects.wire.frames import (
    BINARY,
    CLOSE,
    NO_CODE,
    NOT_UTF8,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    TOO_BIG,
    FrameError,
    FrameReader,
    close_code,
    close_payload,
    head,
)
from penstock.limits import WS_MESSAGE_BYTES_MAX

Messages = list[tuple[int, bytes]]


def read(*pieces: bytes) -> tuple[Messages, FrameError | None]:
    """What a new reader makes of these reads."""
    reader, messages = FrameReader(), Messages()
    try:
        for piece in pieces:
            reader.receive(piece, messages)
    except FrameError as error:
        return messages, error
    return messages, None


def written(*frames: tuple[int, bytes, bool]) -> bytes:
    """Frames of a client, as the other implementation writes them: opcode, payload, final."""
    return b"".join(Frame(Opcode(opcode), data, fin=final).serialize(mask=True) for opcode, data, final in frames)


def raw(first: int, payload: bytes = b"", *, masked: bool = True, length: bytes | None = None) -> bytes:
    """A frame with any faults."""
    size = bytes((len(payload) | 0x80 * masked,)) if length is None else length
    mask = b"mask" if masked else b""
    return bytes((first,)) + size + mask + (apply_mask(payload, mask) if masked else payload)


PAYLOADS = st.one_of(
    st.text(max_size=300).map(str.encode),
    st.sampled_from([125, 126, 127, 65535, 65536, 70_000]).map(lambda size: b"x" * size),
)
CONTROL = st.tuples(st.sampled_from([PING, PONG]), st.binary(max_size=125), st.just(True))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[tuple[int, bytes, bool]], Messages]:
    """Frames, and the messages that they make: some in fragments, with control frames in between."""
    frames: list[tuple[int, bytes, bool]] = []
    expected: Messages = []
    for _ in range(draw(st.integers(0, 5))):
        opcode = draw(st.sampled_from([TEXT, BINARY]))
        payload = draw(PAYLOADS)
        cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=3)))
        parts = [payload[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        for number, part in enumerate(parts):
            frames.append((0 if number else opcode, part, number == len(parts) - 1))
            if number < len(parts) - 1:
                for control in draw(st.lists(CONTROL, max_size=2)):
                    frames.append(control)
                    expected.append(control[:2])
        expected.append((opcode, payload))
    return frames, expected


@given(conversations(), st.data())
def test_what_a_client_writes_is_read_however_it_is_split(
    conversation: tuple[list[tuple[int, bytes, bool]], Messages], data: st.DataObject
) -> None:
    frames, expected = conversation
    whole = written(*frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(whole) == (expected, None)
    assert read(*pieces) == (expected, None)


@given(conversations())
def test_it_is_read_byte_by_byte(conversation: tuple[list[tuple[int, bytes, bool]], Messages]) -> None:
    frames, expected = conversation
    short = [frame for frame in frames if len(frame[1]) < 1000]
    if len(short) == len(frames):
        whole = written(*frames)
        assert read(*[whole[at : at + 1] for at in range(len(whole))]) == (expected, None)


@given(st.binary(max_size=200))
def test_random_bytes_are_taken_as_the_other_implementation_takes_them(data: bytes) -> None:
    messages, error = read(data)
    other = ServerProtocol(state=State.OPEN, max_size=WS_MESSAGE_BYTES_MAX)
    other.receive_data(data)
    # The other one closes when told to, and what follows that is not read. It also reads on where a head that is not
    # complete can already be seen to be wrong, and looks at the text of fragments one by one.
    if error is None and not any(opcode == CLOSE for opcode, _ in messages):
        assert other.parser_exc is None or other.close_code == NOT_UTF8


@given(st.binary(max_size=100), st.lists(st.binary(max_size=20), max_size=8))
def test_random_bytes_mean_the_same_however_they_are_split(start: bytes, pieces: list[bytes]) -> None:
    def told(result: tuple[Messages, FrameError | None]) -> tuple[Messages, int | None]:
        return result[0], result[1].code if result[1] else None

    frames = written((TEXT, start.hex().encode(), True), (BINARY, start, True))
    whole = frames + b"".join(pieces)
    assert told(read(frames, *pieces)) == told(read(whole))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw(0x81, b"hello", masked=False), PROTOCOL_ERROR),
        (raw(0x81, b"", masked=False), PROTOCOL_ERROR),
        (raw(0xC1, b"hello"), PROTOCOL_ERROR),  # A reserved bit, as compression would set it.
        (raw(0x83, b"hello"), PROTOCOL_ERROR),
        (raw(0x8B, b"hello"), PROTOCOL_ERROR),
        (raw(0x80, b"of nothing"), PROTOCOL_ERROR),
        (raw(0x01, b"be") + raw(0x81, b"gin"), PROTOCOL_ERROR),
        (raw(0x01, b"be") + raw(0x82, b"gin"), PROTOCOL_ERROR),
        (raw(0x09, b"ping in parts"), PROTOCOL_ERROR),
        (raw(0x89, length=b"\xfe\x00\x7e"), PROTOCOL_ERROR),
        (raw(0x81, b"\xff"), NOT_UTF8),
        (raw(0x81, "é".encode()[:1]), NOT_UTF8),
        (raw(0x01, b"\xc3") + raw(0x80, b"\x28"), NOT_UTF8),
        (raw(0x81, length=b"\xff" + (WS_MESSAGE_BYTES_MAX + 1).to_bytes(8, "big")), TOO_BIG),
        (raw(0x82, length=b"\xff" + b"\xff" * 8), TOO_BIG),
        (raw(0x01, b"x") + raw(0x80, length=b"\xff" + WS_MESSAGE_BYTES_MAX.to_bytes(8, "big")), TOO_BIG),
    ],
)
def test_a_fault_is_told_by_its_code_after_what_came_before_it(data: bytes, code: int) -> None:
    good = written((TEXT, b"good", True))
    for pieces in ([good + data], [good, data], [good, *[data[at : at + 1] for at in range(len(data))]]):
        messages, error = read(*pieces)
        assert messages == [(TEXT, b"good")]
        assert error
        assert error.code == code


def test_a_character_may_be_split_between_fragments() -> None:
    assert read(raw(0x01, "é".encode()[:1]) + raw(0x80, "é".encode()[1:])) == ([(TEXT, "é".encode())], None)


def test_the_largest_message_is_read_and_what_is_not_whole_is_counted() -> None:
    whole = written((BINARY, b"x" * WS_MESSAGE_BYTES_MAX, True))
    reader, messages = FrameReader(), Messages()
    reader.receive(whole[:-1], messages)
    assert (reader.buffered_bytes, messages) == (len(whole) - 1, [])
    reader.receive(whole[-1:], messages)
    assert (reader.buffered_bytes, len(messages[0][1])) == (0, WS_MESSAGE_BYTES_MAX)
    reader.receive(written((TEXT, b"begun", False)), messages)
    assert reader.buffered_bytes == 5


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 20, 105])
@pytest.mark.parametrize("second", [written((TEXT, b"y" * 101, True)), raw(0x02, b"y" * 60) + raw(0x80, b"y" * 41)])
def test_a_message_that_is_too_large_is_read_once_it_is_allowed(cut: int, second: bytes) -> None:
    reader, messages = FrameReader(), Messages()
    reader.bytes_max = 100
    reader.receive(written((TEXT, b"x" * 100, True)), messages)
    errors = []
    for piece in (second[:cut], second[cut:]):
        try:
            reader.receive(piece, messages)
        except FrameError as error:
            errors.append((error.code, error.size, len(messages)))
            reader.bytes_max = error.size
            reader.receive(b"", messages)
    assert errors == [(TOO_BIG, 101, 1)]
    assert (len(messages[1][1]), reader.buffered_bytes) == (101, 0)


@given(st.lists(st.tuples(st.sampled_from([TEXT, BINARY, PING, PONG]), PAYLOADS), max_size=5))
def test_what_we_write_the_other_implementation_reads(frames: Messages) -> None:
    client = ClientProtocol(parse_uri("ws://penstock.test/"), state=State.OPEN, max_size=None)
    sent = [(opcode, payload if opcode < CLOSE else payload[:125]) for opcode, payload in frames]
    client.receive_data(b"".join(head(opcode, len(payload)) + payload for opcode, payload in sent))
    assert client.parser_exc is None
    got = [(event.opcode, bytes(event.data)) for event in client.events_received() if isinstance(event, Frame)]
    assert got == sent


# ── Closing ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.sampled_from([1000, 1001, 1008, 1011, 3000, 4999]), st.text(max_size=200))
def test_a_close_frame_says_as_much_as_fits(code: int, reason: str) -> None:
    payload = close_payload(code, reason)
    assert len(payload) <= 125
    close = Close.parse(payload)
    assert close.code == code
    assert reason.startswith(close.reason)
    assert close_code(payload) == code


@pytest.mark.parametrize(
    "payload", [b"\x03", b"\x03\xe7", b"\x03\xed", b"\x03\xee", b"\x03\xf7", b"\x00\x00", b"\x13\x88"]
)
def test_a_close_code_that_may_not_be_sent_is_a_fault(payload: bytes) -> None:
    with pytest.raises(FrameError) as fault:
        close_code(payload)
    assert fault.value.code == PROTOCOL_ERROR


def test_a_close_frame_may_be_empty_but_its_reason_is_utf8() -> None:
    assert close_code(b"") == NO_CODE
    with pytest.raises(FrameError) as fault:
        close_code(b"\x03\xe8\xff")
    assert fault.value.code == NOT_UTF8
