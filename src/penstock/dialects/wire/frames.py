"""WebSocket frames (RFC 6455, section 5): bytes to messages, and messages to bytes. No I/O.

All whole frames of a read are taken in one loop, since that loop is paid for every message (ADR 11 has the numbers).
What nearly every frame is, a whole text, comes first in it; anything else is left to slower code.
"""

from __future__ import annotations

from struct import Struct

from penstock.limits import WS_MESSAGE_BYTES_MAX

try:
    from websockets.speedups import apply_mask
except ImportError:  # Built without a compiler: the same in Python.
    from websockets.utils import apply_mask

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

# Why a connection is closed (section 7.4.1).
NORMAL, GOING_AWAY, PROTOCOL_ERROR, NO_CODE = 1000, 1001, 1002, 1005
NOT_UTF8, POLICY, TOO_BIG, INTERNAL, TRY_LATER = 1007, 1008, 1009, 1011, 1013
_CODES = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))  # Those that may be sent.

_FINAL = _MASKED = 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127  # Lengths that say in how many bytes the length follows.
_WHOLE_TEXT = _FINAL | TEXT
_CONTROL_BYTES_MAX = 125
_pack_head = Struct(">BBH").pack
SHORT_HEADS = [[bytes((_FINAL | opcode, size)) for size in range(_TWO_BYTES)] for opcode in range(16)]


class FrameError(Exception):
    """The peer's fault: the connection fails with this close code. `size`: of a message that is too large."""

    def __init__(self, code: int, reason: str, size: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.size = size


class FrameReader:
    """What a client sends: bytes in, whole messages and control frames out, however the bytes are split."""

    __slots__ = ("_begun", "_needed", "_opcode", "_partial", "bytes_max")

    def __init__(self) -> None:
        self.bytes_max = WS_MESSAGE_BYTES_MAX  # Of a message.
        self._partial: bytearray | None = None  # A frame that is not whole yet.
        self._needed = 0  # Bytes it has when it is whole; 0: not known yet.
        self._begun: bytearray | None = None  # A message of which more frames must come.
        self._opcode = 0  # Of that message.

    @property
    def buffered_bytes(self) -> int:
        """The bytes kept of an incomplete message."""
        partial, begun = self._partial, self._begun
        return (len(partial) if partial else 0) + (len(begun) if begun else 0)

    @property
    def unfinished(self) -> bool:
        """A message has begun and is not complete."""
        return self._partial is not None or self._begun is not None

    @property
    def missing_bytes(self) -> int:
        """The bytes missing from the frame that has begun; 0: there is none, or its size is not known yet."""
        return max(0, self._needed - len(self._partial)) if self._partial else 0

    def receive(self, data: bytes, messages: list[tuple[int, bytes]]) -> None:
        """Append what is whole now, as opcode and payload. `FrameError` is raised after what came before the fault
        has been appended. Nothing can be received after it, but a message that was too large once it is allowed."""
        if self._partial is not None:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data = bytes(self._partial)
            self._partial = None
        at, size, most = 0, len(data), self.bytes_max
        self._needed = 0
        while size - at >= 6:  # The shortest frame: two bytes and the mask.
            length = data[at + 1] - _MASKED
            start = at + 6
            if length >= _TWO_BYTES:
                start = at + 8 if length == _TWO_BYTES else at + 14
                if start > size:
                    break
                length = int.from_bytes(data[at + 2 : start - 4], "big")
            end = start + length
            if data[at] == _WHOLE_TEXT and self._begun is None and 0 <= length <= most and end <= size:
                payload = apply_mask(data[start:end], data[start - 4 : start])
                if not payload.isascii():
                    _check_text(payload)
                messages.append((TEXT, payload))
            else:
                try:
                    self._check(data[at], data[at + 1], length)
                except FrameError:
                    self._partial = bytearray(data[at:])
                    raise
                if end > size:
                    self._needed = end - at
                    break
                self._take(data[at], apply_mask(data[start:end], data[start - 4 : start]), messages)
            at = end
        if at < size:
            if size - at > 1:
                self._check(data[at], data[at + 1], 0)  # A fault is noticed however little follows it.
            self._partial = bytearray(data[at:])

    def _check(self, first: int, second: int, length: int) -> None:
        opcode = first & 0x0F
        if first & 0x70:
            raise FrameError(PROTOCOL_ERROR, "reserved bits are set")
        if second < _MASKED:
            raise FrameError(PROTOCOL_ERROR, "the frame is not masked")
        if opcode >= CLOSE:
            if opcode > PONG:
                raise FrameError(PROTOCOL_ERROR, "the opcode is reserved")
            if not first & _FINAL or second - _MASKED > _CONTROL_BYTES_MAX:
                raise FrameError(PROTOCOL_ERROR, "a control frame must be whole, with at most 125 bytes")
            return
        if opcode > BINARY:
            raise FrameError(PROTOCOL_ERROR, "the opcode is reserved")
        if (opcode == CONTINUATION) != (self._begun is not None):
            raise FrameError(PROTOCOL_ERROR, "the frame does not follow the one before it")
        size = length + len(self._begun or b"")
        if size > self.bytes_max:
            raise FrameError(TOO_BIG, f"the message is over {self.bytes_max} bytes", size)

    def _take(self, first: int, payload: bytes, messages: list[tuple[int, bytes]]) -> None:
        """A correct frame that is not a whole text."""
        opcode = first & 0x0F
        if opcode >= CLOSE or (first & _FINAL and self._begun is None):
            messages.append((opcode, payload))
            return
        if self._begun is None:
            self._begun, self._opcode = bytearray(), opcode
        self._begun += payload
        if first & _FINAL:
            payload, self._begun = bytes(self._begun), None
            if self._opcode == TEXT:
                _check_text(payload)
            messages.append((self._opcode, payload))


def head(opcode: int, size: int) -> bytes:
    """The header of a frame to a client with a payload of this size."""
    if size < _TWO_BYTES:
        return SHORT_HEADS[opcode][size]
    if size < 1 << 16:
        return _pack_head(_FINAL | opcode, _TWO_BYTES, size)
    return bytes((_FINAL | opcode, _EIGHT_BYTES)) + size.to_bytes(8, "big")


def close_payload(code: int, reason: str) -> bytes:
    """The payload of a close frame; a reason that is too long is cut, between two characters."""
    cut = reason.encode()[: _CONTROL_BYTES_MAX - 2].decode("utf-8", "ignore")
    return code.to_bytes(2, "big") + cut.encode()


def close_code(payload: bytes) -> int:
    """The code in a close frame of the peer. Raises `FrameError` for a code that is not allowed."""
    if not payload:
        return NO_CODE
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or code not in _CODES:
        raise FrameError(PROTOCOL_ERROR, "the close code is not allowed")
    _check_text(payload[2:])
    return code


def _check_text(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise FrameError(NOT_UTF8, "the text is not UTF-8") from None


class DeafReader(FrameReader):
    """Ignores what comes after a fault. It is still read, so that our close frame arrives."""

    __slots__ = ()

    def receive(self, data: bytes, messages: list[tuple[int, bytes]]) -> None: ...
