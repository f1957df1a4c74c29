"""Bincode 1 with its defaults: little-endian, integers of fixed width, u64 lengths, one byte before what is optional.

A reader for what comes, and a few packers for what goes. What the bytes mean is the dialect's business.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TypeVar

from penstock.errors import ProtocolError

Value = TypeVar("Value")

_I16 = Struct("<h")
_U32 = Struct("<I")
_U64 = Struct("<Q")
_F32 = Struct("<f")

pack_i16 = _I16.pack
pack_u32 = _U32.pack
pack_u64 = _U64.pack
pack_f32 = _F32.pack


def pack_bytes(value: bytes) -> bytes:
    """A string, or a vector of bytes: its length, then itself."""
    return pack_u64(len(value)) + value


class Reader:
    """Takes one value after the other; raises `ProtocolError` where the bytes are not what they should be."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self._at

    def next_is(self, value: int) -> bool:
        """Whether the next byte has this value."""
        return self._data[self._at : self._at + 1] == bytes((value,))

    def holds_options(self, *sizes: int) -> bool:
        """Whether exactly these are left: one optional value of each size."""
        at, data = self._at, self._data
        for size in sizes:
            if at >= len(data) or data[at] > 1:
                return False
            at += 1 + size * data[at]
        return at == len(data)

    def _take(self, size: int, what: str) -> int:
        """Step over the next value; where it begins."""
        at = self._at
        if size > len(self._data) - at:
            raise ProtocolError(f"the bytes end within {what}")
        self._at = at + size
        return at

    def i16(self, what: str) -> int:
        return int(_I16.unpack_from(self._data, self._take(2, what))[0])

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._data, self._take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._data, self._take(8, what))[0])

    def f32(self, what: str) -> float:
        return float(_F32.unpack_from(self._data, self._take(4, what))[0])

    def boolean(self, what: str) -> bool:
        value = self._data[self._take(1, what)]
        if value > 1:
            raise ProtocolError(f"{what} is neither 0 nor 1")
        return bool(value)

    def octets(self, what: str) -> bytes:
        at = self._take(self.u64(what), what)
        return self._data[at : self._at]

    def text(self, what: str) -> str:
        try:
            return self.octets(what).decode()
        except UnicodeDecodeError:
            raise ProtocolError(f"{what} is not UTF-8") from None

    def option(self, read: Callable[[str], Value], what: str) -> Value | None:
        return read(what) if self.boolean(f"the mark before {what}") else None

    def end(self) -> None:
        if self.left:
            raise ProtocolError(f"{self.left} bytes are left over")
