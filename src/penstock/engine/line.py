"""A line: messages ordered by a time. It is the one mechanism for ready order, delays, leases and lifetimes.

An entry is a pair (time, sequence). Most arrive in order and go to the end of a FIFO of flat integer arrays, at 16
bytes each; the others go to a heap. So adding is O(1) if times grow and O(log n) otherwise.

A message that leaves from the middle stays as a stale entry. The owner knows which entries still hold: an entry holds
if the message is still in that state with exactly that time. Stale entries are dropped when they reach the head; when
they outnumber the others, one chunk is swept with each departure, so that no call takes long.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, merge

import numpy as np
from numpy.typing import NDArray

from penstock.limits import NEVER_NS

Holds = Callable[[int, int], bool]

_PAIRS_PER_CHUNK = 1024
_CHUNK = 2 * _PAIRS_PER_CHUNK
_STALE_ALLOWED = 256
_NO_PAIRS = np.empty((0, 2), dtype=np.int64)


class Line:
    __slots__ = (
        "_chunks",
        "_early",
        "_head",
        "_last_sequence",
        "_last_time",
        "_swept",
        "_tail",
        "entries",
        "live",
    )

    def __init__(self) -> None:
        self._tail = array("q")
        self._chunks: deque[array[int]] = deque([self._tail])
        self._head = 0  # Index of the first pair in the first chunk.
        self._swept = 0  # The chunk swept last.
        self._last_time = -1
        self._last_sequence = -1
        self._early: list[tuple[int, int]] = []  # A heap of entries that arrived out of order.
        self.entries = 0
        self.live = 0

    def add(self, time: int, sequence: int) -> None:
        self.live += 1
        self.entries += 1
        if time > self._last_time or (time == self._last_time and sequence > self._last_sequence):
            self._last_time = time
            self._last_sequence = sequence
            tail = self._tail
            if len(tail) >= _CHUNK:
                tail = self._tail = array("q")
                self._chunks.append(tail)
            tail.append(time)
            tail.append(sequence)
        else:
            heappush(self._early, (time, sequence))

    def add_run(self, time: int, first: int, count: int) -> None:
        """Add consecutive sequences, all with the same time."""
        if time < self._last_time or (time == self._last_time and first <= self._last_sequence):
            for sequence in range(first, first + count):
                self.add(time, sequence)
            return
        self.live += count
        self.entries += count
        self._last_time, self._last_sequence = time, first + count - 1
        pairs = np.empty(2 * count, dtype=np.int64)
        pairs[0::2] = time
        pairs[1::2] = np.arange(first, first + count)
        room = _CHUNK - len(self._tail)
        self._tail.frombytes(pairs[:room].tobytes())
        for start in range(room, 2 * count, _CHUNK):
            self._tail = array("q", pairs[start : start + _CHUNK].tobytes())
            self._chunks.append(self._tail)

    def extend(self, times: NDArray[np.int64], sequences: NDArray[np.int64]) -> None:
        """Fill an empty line at memory speed."""
        assert self.entries == 0
        order = np.lexsort((sequences, times))
        pairs = np.empty(2 * len(order), dtype=np.int64)
        pairs[0::2] = times[order]
        pairs[1::2] = sequences[order]
        self._chunks = deque(
            array("q", pairs[start : start + _CHUNK].tobytes()) for start in range(0, len(pairs), _CHUNK)
        )
        if not self._chunks:
            self._chunks.append(array("q"))
        self._tail = self._chunks[-1]
        self._head = 0
        self.entries = self.live = len(order)
        if len(order):
            self._last_time, self._last_sequence = int(pairs[-2]), int(pairs[-1])

    def first(self) -> tuple[int, int] | None:
        """The head. It holds, because every departure trims the line."""
        early = self._early
        head = self._head
        chunk = self._chunks[0]
        if head < len(chunk):
            pair = (chunk[head], chunk[head + 1])
            return early[0] if early and early[0] < pair else pair
        return early[0] if early else None

    def peek(self, count: int, holds: Holds, until: int = NEVER_NS) -> list[tuple[int, int]]:
        """The first `count` entries that hold, in order and none later than `until`. Changes nothing."""
        chosen: list[tuple[int, int]] = []
        for pair in merge(self._in_order(), self._early_in_order()) if self._early else self._in_order():
            if len(chosen) >= count or pair[0] > until:
                break
            # A message that came back to this line with the same time as its stale entry has two entries that hold.
            if holds(*pair) and pair not in chosen[-1:]:
                chosen.append(pair)
        return chosen

    def leave(self, time: int, sequence: int, holds: Holds) -> None:
        """Remove a message from any place in the line."""
        self.live -= 1
        head = self._head
        chunk = self._chunks[0]
        if head < len(chunk) and chunk[head + 1] == sequence and chunk[head] == time:
            if head + 2 < len(chunk):
                self._head = head + 2
                self.entries -= 1
            else:
                self._drop_in_order()
        elif self._early and self._early[0] == (time, sequence):
            self._drop_early()
        if self.entries > self.live:
            self._trim(holds)
            if self.entries > 2 * self.live + _STALE_ALLOWED:
                self._sweep(holds)

    def leave_many(self, sequences: list[int], holds: Holds) -> None:
        """Like `leave`, for messages in the order of their sequences, each once."""
        self.live -= len(sequences)
        at = 0
        while at < len(sequences) and (dropped := self._drop_run(sequences, at)):
            at += dropped
        if self.entries > self.live:
            self._trim(holds)
            if self.entries > 2 * self.live + _STALE_ALLOWED:
                self._sweep(holds)

    def _drop_run(self, sequences: list[int], at: int) -> int:
        """Drop entries at the head of the first chunk as long as they match the sequences from `at` on. Returns how
        many."""
        chunk, head = self._chunks[0], self._head
        count = min((len(chunk) - head) // 2, len(sequences) - at)
        if chunk[head + 1 : head + 2 * count : 2].tolist() != sequences[at : at + count]:
            same = zip(chunk[head + 1 : head + 2 * count : 2], sequences[at : at + count], strict=True)
            count = next((index for index, (here, gone) in enumerate(same) if here != gone), count)
        self._drop_to(head + 2 * count)
        return count

    def head_run(self, count: int) -> NDArray[np.int64]:
        """The first entries as pairs of time and sequence, at most `count`, as long as their sequences are
        consecutive and none arrived out of order."""
        if self._early:
            return _NO_PAIRS
        pairs = np.frombuffer(self._chunks[0], dtype=np.int64)[self._head : self._head + 2 * count]
        if len(pairs) < 2 * count and len(self._chunks) > 1:
            more = np.frombuffer(self._chunks[1], dtype=np.int64)[: 2 * count - len(pairs)]
            pairs = np.concatenate((pairs, more))
        sequences = pairs[1::2]
        broken = np.flatnonzero(sequences[1:] - sequences[:-1] != 1)
        length = int(broken[0]) + 1 if len(broken) else len(sequences)
        return pairs[: 2 * length].reshape(-1, 2).copy()

    def sequences(self) -> NDArray[np.int64]:
        """The sequences of all entries, in order and each once, including stale ones."""
        pairs = np.concatenate([np.frombuffer(chunk.tobytes(), dtype=np.int64) for chunk in self._chunks])
        early = np.array([sequence for _, sequence in self._early], dtype=np.int64)
        return np.unique(np.concatenate((pairs[self._head + 1 :: 2], early)))

    def until(self, time: int) -> NDArray[np.int64]:
        """The sequences of all entries up to this time, in no order, including stale ones."""
        early = np.array([sequence for each, sequence in self._early if each <= time], dtype=np.int64)
        found = [early]
        start = self._head
        for chunk in self._chunks:
            pairs = np.array(chunk, dtype=np.int64)[start:].reshape(-1, 2)
            found.append(pairs[: np.searchsorted(pairs[:, 0], time, side="right"), 1])
            if len(found[-1]) < len(pairs):
                break
            start = 0
        return np.concatenate(found)

    def _in_order(self) -> Iterator[tuple[int, int]]:
        start = self._head
        for chunk in self._chunks:
            for index in range(start, len(chunk), 2):
                yield chunk[index], chunk[index + 1]
            start = 0

    def _early_in_order(self) -> Iterator[tuple[int, int]]:
        """The entries of the heap in order, without changing it: no child comes before its parent."""
        early = self._early
        frontier = [(early[0], 0)] if early else []
        while frontier:
            pair, index = heappop(frontier)
            yield pair
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(early):
                    heappush(frontier, (early[child], child))

    def _drop_in_order(self) -> None:
        self._drop_to(self._head + 2)

    def _drop_to(self, head: int) -> None:
        """Drop the entries before `head` in the first chunk."""
        self.entries -= (head - self._head) // 2
        self._head = head
        while self._head >= len(self._chunks[0]):  # A swept chunk may be empty.
            self._head = 0
            if len(self._chunks) == 1:
                del self._chunks[0][:]
                break
            self._chunks.popleft()

    def _drop_early(self) -> None:
        self.entries -= 1
        heappop(self._early)

    def _trim(self, holds: Holds) -> None:
        """Drop stale entries from both heads."""
        while self._early and not holds(*self._early[0]):
            self._drop_early()
        while self._head < len(self._chunks[0]):
            chunk, head = self._chunks[0], self._head
            if holds(chunk[head], chunk[head + 1]):
                break
            self._drop_in_order()

    def _sweep(self, holds: Holds) -> None:
        """Drop the stale entries of one chunk, or of the heap if most of them are there."""
        if len(self._early) > self.live + _STALE_ALLOWED:
            self.entries -= len(self._early)
            self._early = [pair for pair in self._early if holds(*pair)]
            heapify(self._early)
            self.entries += len(self._early)
            return
        if self._head:
            del self._chunks[0][: self._head]
            self._head = 0
        self._swept = (self._swept + 1) % len(self._chunks)
        chunk = self._chunks[self._swept]
        kept = array("q")
        for index in range(0, len(chunk), 2):
            if holds(chunk[index], chunk[index + 1]):
                kept.append(chunk[index])
                kept.append(chunk[index + 1])
        self.entries -= (len(chunk) - len(kept)) // 2
        chunk[:] = kept
        if self._swept and len(kept) + len(self._chunks[self._swept - 1]) <= _CHUNK:
            self._chunks[self._swept - 1].extend(kept)
            if chunk is self._tail:
                self._tail = self._chunks[self._swept - 1]
            del self._chunks[self._swept]
            self._swept -= 1
        while not self._chunks[0] and len(self._chunks) > 1:
            self._chunks.popleft()
