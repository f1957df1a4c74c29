"""An index of messages by topic, so that a search by topic examines only those messages.

One number stands for all topics of a message. For each number, the sequences of a queue's messages are in chunks, in
order. A message that leaves stays as a stale entry; when stale entries outnumber the messages of the queue, some
chunks are swept with each change, so that no call takes long. A queue whose messages have no topics has no index.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from penstock.engine.names import Names

_PER_CHUNK = 256
_SWEPT_AT_ONCE = 128  # Entries, at least, if there are as many.
_STALE_ALLOWED = 1024
_NOTHING = np.empty(0, dtype=np.int64)


class TopicIndex:
    """The messages of one queue, by the number of their topics."""

    __slots__ = ("_chunks", "_swept", "_unswept", "_unswept_numbers", "entries")

    def __init__(self) -> None:
        self._chunks: dict[int, list[array[int]]] = {}
        # The current sweep: numbers still to be swept, the one being swept, and its chunks.
        self._unswept_numbers: list[int] = []
        self._swept = 0
        self._unswept: list[array[int]] = []
        self.entries = 0

    @classmethod
    def of(cls, topics: NDArray[np.uint32], sequences: NDArray[np.int64]) -> TopicIndex:
        """An index of messages, given by the numbers of their topics (0 for none) and their sequences."""
        index = cls()
        order = np.argsort(topics, kind="stable")
        numbers, first = np.unique(topics[order], return_index=True)
        for number, chosen in zip(numbers.tolist(), np.split(sequences[order], first[1:]), strict=True):
            if number:
                index.add_all(number, array("q", chosen.tobytes()))
        return index

    @property
    def numbers(self) -> Iterable[int]:
        return self._chunks.keys()

    def __contains__(self, number: int) -> bool:
        return number in self._chunks

    def add(self, number: int, sequence: int) -> None:
        chunks = self._chunks.get(number)
        if chunks is None:
            chunks = self._chunks[number] = [array("q")]
        elif len(chunks[-1]) >= _PER_CHUNK:
            chunks.append(array("q"))
        chunks[-1].append(sequence)
        self.entries += 1

    def add_all(self, number: int, sequences: array[int]) -> None:
        """Like `add`, for many sequences in order."""
        chunks = self._chunks.setdefault(number, [array("q")])
        room = _PER_CHUNK - len(chunks[-1])
        chunks[-1].extend(sequences[:room])
        for start in range(room, len(sequences), _PER_CHUNK):
            chunks.append(sequences[start : start + _PER_CHUNK])
        self.entries += len(sequences)

    def following(self, numbers: Iterable[int], after: int, count: int) -> NDArray[np.int64]:
        """The next sequences after `after` with one of these topics, in order, at most `count`. Some may be stale."""
        found = [part for number in numbers for part in self._following(number, after, count)]
        if not found:
            return _NOTHING
        joined = np.concatenate(found)
        joined.sort()
        return joined[:count]

    def _following(self, number: int, after: int, count: int) -> Iterable[NDArray[np.int64]]:
        chunks = self._chunks.get(number, [])
        at = bisect_right(chunks, after, key=lambda chunk: chunk[-1])
        while at < len(chunks) and count > 0:
            chunk = np.frombuffer(chunks[at].tobytes(), dtype=np.int64)
            chunk = chunk[np.searchsorted(chunk, after, side="right") :][:count]
            yield chunk
            count -= len(chunk)
            at += 1

    def trim(self, living: int, is_there: Callable[[int], bool]) -> None:
        """Sweep a little, if there are many more entries than the queue has messages."""
        if self.entries <= 2 * living + _STALE_ALLOWED:
            return
        room = _SWEPT_AT_ONCE
        while room > 0 and self.entries:
            if not self._unswept:
                self._unswept_numbers = self._unswept_numbers or list(self._chunks)
                self._swept = self._unswept_numbers.pop()
                self._unswept = list(self._chunks.get(self._swept, ()))
                continue
            chunk = self._unswept.pop()
            room -= len(chunk)
            self._sweep(self._swept, chunk, is_there)

    def _sweep(self, number: int, chunk: array[int], is_there: Callable[[int], bool]) -> None:
        kept = [sequence for sequence in chunk if is_there(sequence)]
        self.entries -= len(chunk) - len(kept)
        if len(kept) == len(chunk):
            return
        chunks = self._chunks[number]
        if kept:
            chunk[:] = array("q", kept)
            return
        del chunks[bisect_left(chunks, chunk[-1], key=lambda each: each[-1])]
        if not chunks:
            del self._chunks[number]


class TopicNames:
    """Every topic that a message has, or recently had, in order, with the numbers of the sets that contain it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._numbers: set[int] = set()
        self._topics: list[tuple[str, int]] = []  # Includes those of some numbers that were forgotten.
        self._stale = 0  # How many of these there are.

    def note(self, number: int) -> None:
        if number not in self._numbers:
            self._numbers.add(number)
            for topic in topics_of(self._names, number):
                insort(self._topics, (topic, number))

    def forget(self, number: int) -> None:
        if number not in self._numbers:
            return
        self._numbers.remove(number)
        self._stale += 1
        if self._stale > len(self._numbers) + _STALE_ALLOWED:
            self._stale = 0
            self._topics = [each for each in self._topics if each[1] in self._numbers]

    def note_all(self, numbers: Iterable[int]) -> None:
        """Like `note`, for many numbers."""
        fresh = set(numbers) - self._numbers
        if fresh:
            self._numbers |= fresh
            self._topics += [(topic, number) for number in fresh for topic in topics_of(self._names, number)]
            self._topics.sort()

    def matching(self, pattern: str, most: int) -> list[int] | None:
        """The numbers of the sets with a topic that matches the pattern: a name, or a prefix with a star at its end.
        None if there are more than `most`."""
        is_prefix = pattern.endswith("*")
        start = pattern.removesuffix("*")
        found: set[int] = set()
        for at in range(bisect_left(self._topics, (start, 0)), len(self._topics)):
            topic, number = self._topics[at]
            if not (topic.startswith(start) if is_prefix else topic == start):
                break
            if number in self._numbers:
                found.add(number)
            if len(found) > most:
                return None
        return sorted(found)


def topics_of(names: Names, number: int) -> list[str]:
    return names.texts[number].split("\n") if number else []


def has_topic(topics: Iterable[str], pattern: str) -> bool:
    """Whether one of the topics matches the pattern: a name, or a prefix with a star at its end."""
    if pattern.endswith("*"):
        return any(topic.startswith(pattern[:-1]) for topic in topics)
    return pattern in topics
