"""The rows of a queue: what is kept in memory of each message, 80 bytes, found by sequence.

Rows are in chunks of neighbouring sequences, each one flat byte string that is freed with its last message. So ten
million waiting messages need well under a gigabyte, and a snapshot is a copy of bytes. Bodies are not in memory: a
row has the position of the message's extent in the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.limits import NEVER_NS, ROWS_PER_CHUNK
from penstock.model.lifecycle import DELAYED, GONE, LEASED, READY

_ROW = Struct("<qIIBBHIQqqIIIIqII")
_LEASE = Struct("<qIIBB")  # The part of a row that changes; it comes first.
_EXPIRES_AT = Struct("<q")
_POSITION = Struct("<Q")
_STATE_OFFSET = 16
_POSITION_OFFSET = 24
_EXPIRES_AT_OFFSET = 40

ROW_BYTES = _ROW.size
_SHIFT = ROWS_PER_CHUNK.bit_length() - 1
_MASK = ROWS_PER_CHUNK - 1
_LIVE = ROWS_PER_CHUNK * ROW_BYTES  # The last byte of a chunk counts its live rows.
_EMPTY_CHUNK = bytes(_LIVE + 1)
_EMPTY_ROW = bytes(ROW_BYTES)
_CHUNKS_PER_TABLE = 128  # A piece of a snapshot takes about half a millisecond.
_NEAR_CHUNKS = 64

# Marks of a row. A change of its state removes them, unless it says otherwise.
NAMELESS = 1  # A consumer without a name has the delayed message, a dead letter: its last delivery.
AHEAD = 2  # It was leased ahead of its use, so `max_receives` was not looked at yet.
UNBEGUN = 4  # And its consumer has not begun it.
_TIMES = 3  # From this bit on: how many leases in a row have ended like that.

Columns = tuple[NDArray[Any], ...]

ROW_DTYPE = np.dtype(
    [
        ("visible_at", "<i8"),
        ("receives", "<u4"),
        ("consumer", "<u4"),
        ("state", "u1"),
        ("marks", "u1"),
        ("key_bytes", "<u2"),
        ("priority", "<u4"),
        ("position", "<u8"),
        ("created", "<i8"),
        ("expires_at", "<i8"),
        ("body_bytes", "<u4"),
        ("headers_bytes", "<u4"),
        ("content_type", "<u4"),
        ("sender", "<u4"),
        ("lease_ns", "<i8"),
        ("object", "<u4"),
        ("topics", "<u4"),
    ]
)
assert ROW_BYTES == ROW_DTYPE.itemsize == 80
_OLD_NAMES = [name for name in ROW_DTYPE.names or () if name not in ("object", "topics")]
_OLD_ROW_DTYPE = np.dtype([(name, ROW_DTYPE[name]) for name in _OLD_NAMES])  # In snapshots of format 2.


class Row(NamedTuple):
    visible_at: int  # When the message is ready; while it is leased, when the lease runs out.
    receives: int
    consumer: int  # Who has, or had, the lease.
    state: int
    marks: int  # See above.
    key_bytes: int
    priority: int
    position: int
    created: int
    expires_at: int
    body_bytes: int
    headers_bytes: int
    content_type: int
    sender: int
    lease_ns: int  # Of this message; 0 if that of the queue applies.
    object: int
    topics: int

    def holder(self, time: int) -> int:
        """Who has, or had, the message. Nobody has a delayed one whose time has come; a replay may not have made it
        ready yet."""
        return 0 if self.state == DELAYED and self.visible_at <= time else self.consumer

    @property
    def is_held_namelessly(self) -> bool:
        return self.marks & NAMELESS != 0

    @property
    def is_unbegun(self) -> bool:
        return self.marks & UNBEGUN != 0

    @property
    def times_unbegun(self) -> int:
        """How many leases in a row, before this one, have ended without a beginning."""
        return self.marks >> _TIMES

    @property
    def marks_ahead(self) -> int:
        """The marks of this message when it is leased ahead."""
        return AHEAD | UNBEGUN | self.times_unbegun << _TIMES

    @property
    def marks_unbegun(self) -> int:
        """The marks of this message when its lease has ended without a beginning."""
        return self.times_unbegun + 1 << _TIMES

    @property
    def names(self) -> tuple[int, ...]:
        return self.content_type, self.sender, self.object, self.topics, self.consumer


_as_row = tuple.__new__  # Like `Row._make` without its check of the length, in half the time.


class Rows:
    __slots__ = ("_chunks", "_read", "_row", "count")

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self.count = 0
        # The row read last: `evolve` usually asks for the row that `decide` has just read.
        self._read = -1
        self._row: Row | None = None

    def add(self, sequence: int, row: tuple[int, ...]) -> None:
        number = sequence >> _SHIFT
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = bytearray(_EMPTY_CHUNK)
        _ROW.pack_into(chunk, (sequence & _MASK) * ROW_BYTES, *row)
        chunk[_LIVE] += 1
        self.count += 1

    def add_run(self, first: int, rows: NDArray[Any]) -> None:
        """Add the rows of consecutive sequences."""
        data = rows.tobytes()
        at = 0
        for number, start, stop in spans(first, len(rows)):
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = bytearray(_EMPTY_CHUNK)
            size = (stop - start) * ROW_BYTES
            chunk[start * ROW_BYTES : stop * ROW_BYTES] = data[at : at + size]
            chunk[_LIVE] += stop - start
            at += size
        self.count += len(rows)

    def get(self, sequence: int) -> Row | None:
        if sequence == self._read:
            return self._row
        chunk = self._chunks.get(sequence >> _SHIFT)
        if chunk is None:
            return None
        at = (sequence & _MASK) * ROW_BYTES
        if chunk[at + _STATE_OFFSET] == GONE:
            return None
        self._read = sequence
        self._row = row = _as_row(Row, _ROW.unpack_from(chunk, at))
        return row

    def run(self, first: int, count: int) -> NDArray[Any] | None:
        """The rows of consecutive sequences; None if a whole chunk is missing."""
        pieces = []
        for number, start, stop in spans(first, count):
            chunk = self._chunks.get(number)
            if chunk is None:
                return None
            pieces.append(memoryview(chunk)[start * ROW_BYTES : stop * ROW_BYTES])
        return np.frombuffer(b"".join(pieces), dtype=ROW_DTYPE)

    def many(self, sequences: list[int]) -> NDArray[Any] | None:
        """The rows of messages, in the order asked for; None if one does not exist or is asked for twice."""
        first, last = min(sequences), max(sequences)
        if last - first + 1 == len(sequences):
            rows, wanted = self.run(first, len(sequences)), np.array(sequences) - first
        else:
            found = [self._bytes_of(sequence) for sequence in sequences]
            rows, wanted = np.frombuffer(b"".join(found), dtype=ROW_DTYPE), np.arange(len(sequences))
        if rows is None or len(set(sequences)) < len(sequences) or len(rows) < len(sequences):
            return None
        rows = rows[wanted]
        return None if (rows["state"] == GONE).any() else rows

    def _bytes_of(self, sequence: int) -> bytes | bytearray:
        chunk = self._chunks.get(sequence >> _SHIFT)
        at = (sequence & _MASK) * ROW_BYTES
        return chunk[at : at + ROW_BYTES] if chunk is not None else b""

    # These four methods decide whether an entry of a line still holds: see `Line`.

    def is_ready(self, time: int, sequence: int) -> bool:
        return self._holds(sequence, READY, time)

    def is_leased(self, time: int, sequence: int) -> bool:
        return self._holds(sequence, LEASED, time)

    def is_delayed(self, time: int, sequence: int) -> bool:
        return self._holds(sequence, DELAYED, time)

    def _holds(self, sequence: int, state: int, visible_at: int) -> bool:
        chunk = self._chunks.get(sequence >> _SHIFT)
        if chunk is None:
            return False
        now_visible_at, _, _, now_state, _ = _LEASE.unpack_from(chunk, (sequence & _MASK) * ROW_BYTES)
        return bool(now_state == state and now_visible_at == visible_at)

    def is_alive(self, time: int, sequence: int) -> bool:
        """Whether the message exists and expires at this time."""
        chunk = self._chunks.get(sequence >> _SHIFT)
        if chunk is None:
            return False
        at = (sequence & _MASK) * ROW_BYTES
        return bool(
            chunk[at + _STATE_OFFSET] != GONE and _EXPIRES_AT.unpack_from(chunk, at + _EXPIRES_AT_OFFSET)[0] == time
        )

    def change(
        self, sequence: int, visible_at: int, receives: int, consumer: int, state: int, marks: int = 0
    ) -> None:
        self._read = -1
        chunk = self._chunks[sequence >> _SHIFT]
        _LEASE.pack_into(chunk, (sequence & _MASK) * ROW_BYTES, visible_at, receives, consumer, state, marks)

    def lease_run(self, first: int, visible_at: int, receives: list[int], consumer: int, *, ahead: bool) -> None:
        """Like `change`, for consecutive sequences that are leased."""
        self._read = -1
        rows = self.run(first, len(receives))
        assert rows is not None
        rows = rows.copy()
        rows["visible_at"] = visible_at
        rows["receives"] = receives
        rows["consumer"] = consumer
        rows["state"] = LEASED
        rows["marks"] = (rows["marks"] >> _TIMES << _TIMES) | (AHEAD | UNBEGUN) if ahead else 0
        data = rows.tobytes()
        at = 0
        for number, start, stop in spans(first, len(rows)):
            size = (stop - start) * ROW_BYTES
            self._chunks[number][start * ROW_BYTES : stop * ROW_BYTES] = data[at : at + size]
            at += size

    def move(self, sequence: int, position: int) -> None:
        self._read = -1
        chunk = self._chunks[sequence >> _SHIFT]
        _POSITION.pack_into(chunk, (sequence & _MASK) * ROW_BYTES + _POSITION_OFFSET, position)

    def remove(self, sequence: int) -> None:
        self._read = -1
        number = sequence >> _SHIFT
        chunk = self._chunks[number]
        chunk[(sequence & _MASK) * ROW_BYTES + _STATE_OFFSET] = GONE
        chunk[_LIVE] -= 1
        self.count -= 1
        if not chunk[_LIVE]:
            del self._chunks[number]

    def remove_many(self, sequences: list[int]) -> list[int]:
        """Like `remove`, for several in order. Returns those that had an expiry time."""
        if sequences and sequences[-1] - sequences[0] == len(sequences) - 1:
            return self._remove_run(sequences[0], len(sequences))
        self._read = -1
        chunks, expires_at_of = self._chunks, _EXPIRES_AT.unpack_from
        mortal: list[int] = []
        for sequence in sequences:
            number, at = sequence >> _SHIFT, (sequence & _MASK) * ROW_BYTES
            chunk = chunks[number]
            chunk[at + _STATE_OFFSET] = GONE
            if expires_at_of(chunk, at + _EXPIRES_AT_OFFSET)[0] != NEVER_NS:
                mortal.append(sequence)
            chunk[_LIVE] -= 1
            if not chunk[_LIVE]:
                del chunks[number]
        self.count -= len(sequences)
        return mortal

    def _remove_run(self, first: int, count: int) -> list[int]:
        self._read = -1
        rows = self.run(first, count)
        assert rows is not None
        for number, start, stop in spans(first, count):
            chunk = self._chunks[number]
            chunk[start * ROW_BYTES + _STATE_OFFSET : stop * ROW_BYTES : ROW_BYTES] = bytes(stop - start)
            chunk[_LIVE] -= stop - start
            if not chunk[_LIVE]:
                del self._chunks[number]
        self.count -= count
        mortal: list[int] = (np.flatnonzero(rows["expires_at"] != NEVER_NS) + first).tolist()
        return mortal

    def oldest(self) -> Row | None:
        """The message with the lowest sequence. Chunks are kept in order."""
        for number, chunk in self._chunks.items():
            for slot in range(ROWS_PER_CHUNK):
                if chunk[slot * ROW_BYTES + _STATE_OFFSET] != GONE:
                    return self.get(number * ROWS_PER_CHUNK + slot)
        return None

    def window(self, first: int, count: int) -> NDArray[Any]:
        """The rows of consecutive sequences as a table; a row that does not exist has the state GONE."""
        chunks = [
            (self._chunks.get(number, _EMPTY_CHUNK), start, stop) for number, start, stop in spans(first, count)
        ]
        pieces = [memoryview(chunk)[start * ROW_BYTES : stop * ROW_BYTES] for chunk, start, stop in chunks]
        return np.frombuffer(b"".join(pieces), dtype=ROW_DTYPE)

    def first_from(self, sequence: int) -> int | None:
        """The first sequence from this one on that has a message."""
        number = self._chunk_from(sequence >> _SHIFT)
        while number is not None:
            chunk = self._chunks[number]
            for each in range(max(sequence, number << _SHIFT), (number + 1) << _SHIFT):
                if chunk[(each & _MASK) * ROW_BYTES + _STATE_OFFSET] != GONE:
                    return each
            number = self._chunk_from(number + 1)
        return None

    def _chunk_from(self, number: int) -> int | None:
        """The first existing chunk from this one on, which usually is this one or near it. Chunks are kept in
        order."""
        chunks = self._chunks
        if number in chunks:
            return number
        if not chunks or number > next(reversed(chunks)):
            return None
        near = max(number, next(iter(chunks)))
        for each in range(near, near + _NEAR_CHUNKS):
            if each in chunks:
                return each
        numbers = list(chunks)
        return numbers[bisect_right(numbers, near)]

    def piece_from(self, sequence: int, chunks: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The messages from this sequence on, of at most `chunks` chunks, as sequences and a table."""
        sequences, rows = self._table(self._chunks_from(sequence >> _SHIFT, chunks))
        chosen = slice(int(np.searchsorted(sequences, sequence)), None)
        return sequences[chosen], rows[chosen]

    def _chunks_from(self, number: int, count: int) -> list[int]:
        """The next chunks from this one on. If they are far apart, listing all chunks is cheaper than searching
        each."""
        chunks = self._chunks
        end = number + max(_NEAR_CHUNKS, 8 * count)
        near = [each for each in range(number, min(end, number + count)) if each in chunks]
        if len(near) < count:
            near += [each for each in range(number + count, end) if each in chunks][: count - len(near)]
        if len(near) == count or not chunks or next(reversed(chunks)) < end:
            return near
        every = list(chunks)
        start = bisect_left(every, end)
        return near + every[start : start + count - len(near)]

    def at(self, sequences: list[int]) -> NDArray[Any]:
        """The rows of messages, in the order asked for; a row that does not exist has the state GONE."""
        rows = [self._bytes_of(sequence) or _EMPTY_ROW for sequence in sequences]
        return np.frombuffer(b"".join(rows), dtype=ROW_DTYPE)

    def is_there(self, sequence: int) -> bool:
        chunk = self._chunks.get(sequence >> _SHIFT)
        return chunk is not None and chunk[(sequence & _MASK) * ROW_BYTES + _STATE_OFFSET] != GONE

    def newest_first(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """All rows in pieces, the last piece first: the first sequence of each, and a table like that of `window`."""
        for number in reversed(self._chunks):
            yield number << _SHIFT, self.window(number << _SHIFT, ROWS_PER_CHUNK)

    # Snapshots

    def tables(self) -> Iterator[Columns]:
        """All rows with their sequences, in bounded pieces."""
        numbers = sorted(self._chunks)
        for start in range(0, len(numbers), _CHUNKS_PER_TABLE):
            yield self._table(numbers[start : start + _CHUNKS_PER_TABLE])

    def _table(self, numbers: list[int]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The messages of some chunks, as sequences and a table."""
        joined = b"".join([memoryview(self._chunks[number])[:_LIVE] for number in numbers])
        rows = np.frombuffer(joined, dtype=ROW_DTYPE)
        first = np.repeat(np.array(numbers, dtype=np.int64) * ROWS_PER_CHUNK, ROWS_PER_CHUNK)
        sequences = first + np.tile(np.arange(ROWS_PER_CHUNK, dtype=np.int64), len(numbers))
        living = rows["state"] != GONE
        return sequences[living], rows[living]

    def restore(self, columns: Columns) -> None:
        """Load one piece."""
        sequences = columns[0].view(np.int64)
        rows = columns[1].view(ROW_DTYPE) if _has_all(columns) else _widened(columns[1].view(_OLD_ROW_DTYPE))
        self.count += len(sequences)
        numbers, first = np.unique(sequences >> _SHIFT, return_index=True)
        full = np.zeros(len(numbers) * ROWS_PER_CHUNK, dtype=ROW_DTYPE)
        full[np.searchsorted(numbers, sequences >> _SHIFT) * ROWS_PER_CHUNK + (sequences & _MASK)] = rows
        data = full.tobytes()
        counts = np.diff(first, append=len(sequences)).tolist()
        for index, number in enumerate(numbers.tolist()):
            chunk = bytearray(data[index * _LIVE : (index + 1) * _LIVE])
            chunk.append(counts[index])
            self._chunks[number] = chunk


def spans(first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Where the rows of consecutive sequences are: chunk, first slot, and the slot after the last one."""
    last = first + count
    while first < last:
        slot = first & _MASK
        stop = min(ROWS_PER_CHUNK, slot + last - first)
        yield first >> _SHIFT, slot, stop
        first += stop - slot


def _has_all(columns: Columns) -> bool:
    sequences, rows = columns
    return rows.nbytes * 8 == sequences.nbytes * ROW_BYTES


def _widened(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of an older snapshot, whose object and topics are not known, in the current format."""
    wide = np.zeros(len(rows), dtype=ROW_DTYPE)
    wide[_OLD_NAMES] = rows
    return wide
