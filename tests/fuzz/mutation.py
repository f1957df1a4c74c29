"""Changes to known inputs, for machines without a coverage-guided fuzzer. The same seed makes the same changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

_NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1]
_TEXTS = [b"\r\n", b"\n", b"\0", b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"-1", b"1e999", b"null", b"%00"]
_TEXTS += [b"\xff", b"\xed\xa0\x80", b"\\ud800", b"9" * 30, b"[" * 3000, b'{"a":' * 3000, b"--", b"*/0"]
_BYTES_MAX = 1 << 16


def mutations(known: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Endless. Each is a known input with a few changes."""
    chance = Random(seed)
    while True:
        data = bytearray(chance.choice(known)) if known else bytearray()
        for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
            chance.choice(_CHANGES)(data, known, chance)
        yield bytes(data[:_BYTES_MAX])


def _span(data: bytearray, chance: Random) -> slice:
    start = chance.randint(0, len(data))
    return slice(start, min(len(data), start + chance.choice((0, 1, 2, 4, 8, 32))))


def _flip(data: bytearray, _: Sequence[bytes], chance: Random) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set_byte(data: bytearray, _: Sequence[bytes], chance: Random) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _remove(data: bytearray, _: Sequence[bytes], chance: Random) -> None:
    del data[_span(data, chance)]


def _cut(data: bytearray, _: Sequence[bytes], chance: Random) -> None:
    del data[chance.randint(0, len(data)) :]


def _repeat(data: bytearray, _: Sequence[bytes], chance: Random) -> None:
    span = _span(data, chance)
    data[span.stop : span.stop] = data[span] * chance.choice((1, 2, 100))


def _put_text(data: bytearray, _: Sequence[bytes], chance: Random) -> None:
    data[_span(data, chance)] = chance.choice(_TEXTS)


def _put_number(data: bytearray, _: Sequence[bytes], chance: Random) -> None:
    """In binary, over what is there; or in digits."""
    number, size = chance.choice(_NUMBERS), chance.choice((1, 2, 4, 8))
    start = chance.randint(0, len(data))
    if chance.randrange(3):
        data[start : start + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, chance.choice(("little", "big")))
    else:
        data[_span(data, chance)] = b"%d" % number


def _splice(data: bytearray, known: Sequence[bytes], chance: Random) -> None:
    other = chance.choice(known) if known else b""
    start, end = sorted((chance.randint(0, len(other)), chance.randint(0, len(other))))
    data[_span(data, chance)] = other[start:end]


_CHANGES: list[Callable[[bytearray, Sequence[bytes], Random], None]] = [
    _flip,
    _set_byte,
    _remove,
    _cut,
    _repeat,
    _put_text,
    _put_number,
    _splice,
]
