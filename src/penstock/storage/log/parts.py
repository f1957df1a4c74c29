"""What readers need of a log's storage: parts, each a stretch of bytes that is removed as a whole.

In the embedded log a part is a segment file. Whatever has parts like these can be read by everything that is built on
them: indexes, views, cursors, traces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar

from penstock.errors import DamagedLogError, EventsRemovedError
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import HEADER_BYTES, MAGIC, Header, read_header

Known = TypeVar("Known")

_WALK_BYTES = 16 << 10  # Read at once while walking from header to header.
_AHEAD_BYTES = 256 << 10


class PartFile(Protocol):
    """A part, open for reading."""

    def read(self, position: Position, size: int) -> bytes:
        """Bytes from a position on; fewer than asked for at the end of the part."""

    def end(self) -> Position:
        """Where the part ends now. The newest one may end with reserved room, which is zeros."""

    def close(self) -> None: ...


class Part(Protocol):
    """A value: two are equal if they are the same part."""

    @property
    def base_offset(self) -> int: ...
    @property
    def base_position(self) -> Position:
        """Where its first batch begins."""

    @property
    def created(self) -> Nanos: ...

    def end(self) -> Position:
        """Where a part ends that is no longer written. Raises `FileNotFoundError` if it has been removed."""

    def open(self) -> PartFile:
        """Raises `FileNotFoundError` if it has been removed."""


@contextmanager
def opened(part: Part, earliest: int) -> Iterator[PartFile]:
    """Open a part for a while. Raises `EventsRemovedError` with `earliest` if it has been removed."""
    try:
        file = part.open()
    except FileNotFoundError:
        raise EventsRemovedError(earliest) from None
    try:
        yield file
    finally:
        file.close()


class PartCache(Generic[Known]):
    """What readers have found out about parts; the least recently used is forgotten first. For any thread."""

    def __init__(
        self, make: Callable[[Part], Known], most: int, size_of: Callable[[Known], int] = lambda _: 1
    ) -> None:
        self._make = make
        self._most = most  # The sum of all sizes.
        self._size_of = size_of
        self._lock = Lock()
        self._known: OrderedDict[int, tuple[Part, Known]] = OrderedDict()  # By the first offset of a part.

    def of(self, part: Part) -> Known:
        with self._lock:
            known = self._known.get(part.base_offset)
            if known is None or known[0] != part:
                known = self._known[part.base_offset] = part, self._make(part)
                while sum([self._size_of(each) for _, each in self._known.values()]) > self._most:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(part.base_offset)
            return known[1]


class ReadAhead:
    """A part whose batches are read one after the other. Small batches are read together; of a large one, only what
    is asked for."""

    def __init__(self, file: PartFile) -> None:
        self._file = file
        self._data, self._base = b"", 0
        self._ahead = _WALK_BYTES

    def read(self, position: Position, size: int) -> bytes:
        start = position - self._base
        if start >= 0 and start + size <= len(self._data):
            return self._data[start : start + size]
        is_next = 0 <= start <= len(self._data)  # Whoever skips more than was read ahead is better off with less.
        self._ahead = min(2 * self._ahead, _AHEAD_BYTES) if is_next else _WALK_BYTES
        self._data, self._base = self._file.read(position, max(size, self._ahead)), position
        return self._data[:size]

    def end(self) -> Position:
        return self._file.end()

    def close(self) -> None:
        self._file.close()


def part_at(parts: Sequence[Part], position: Position) -> int:
    """The index of the last part that begins at or before a position; -1 if there is none."""
    return bisect_right(parts, position, key=lambda part: part.base_position) - 1


def holds(parts: Sequence[Part], position: Position) -> bool:
    """Is a position in one of these parts? The last one has no end. A hole may follow any other."""
    at = part_at(parts, position)
    return at >= 0 and (at == len(parts) - 1 or position < parts[at].end())


def walk(
    file: PartFile, position: Position, end: Position | None = None, *, over_damage: bool = False
) -> Iterator[Header]:
    """The headers of the batches from a position on. `over_damage`: skip what cannot be read, up to `end`."""
    ahead = file if isinstance(file, ReadAhead) else ReadAhead(file)
    while end is None or position < end:
        header = read_header(ahead.read(position, HEADER_BYTES))
        if header is None or header.base_position != position:
            if not over_damage or end is None:
                raise DamagedLogError(f"there is no batch at position {position}")
            header = next_header(file.read(position, end - position), position)
            if header is None:
                return
        yield header
        position = header.base_position + header.total_bytes


def next_header(data: bytes, position: Position) -> Header | None:
    """The first header in some bytes of the log, after their beginning, that is at its own position."""
    at = data.find(MAGIC, 1)
    while at >= 0:
        header = read_header(data[at : at + HEADER_BYTES])
        if header and header.base_position == position + at:
            return header
        at = data.find(MAGIC, at + 1)
    return None
