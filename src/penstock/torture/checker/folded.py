"""Numbers that are settled, folded into ranges: a producer counts, so they stay few."""

from __future__ import annotations

from bisect import bisect_right


class Folded:
    """Names such as `mqs-1.17`, as ranges of numbers for each producer."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[list[int]]] = {}  # First and last of each, in order.

    def __contains__(self, name: str) -> bool:
        producer, number = split(name)
        ranges = self._ranges.get(producer, [])
        at = bisect_right(ranges, [number, 1 << 62]) - 1
        return at >= 0 and number <= ranges[at][1]

    def add(self, name: str) -> None:
        if name in self:
            return
        producer, number = split(name)
        ranges = self._ranges.setdefault(producer, [])
        at = bisect_right(ranges, [number, 0])
        ranges.insert(at, [number, number])
        _join(ranges, at)
        _join(ranges, at - 1)

    @property
    def count(self) -> int:
        return sum(map(len, self._ranges.values()))


def _join(ranges: list[list[int]], at: int) -> None:
    if 0 <= at < len(ranges) - 1 and ranges[at][1] + 1 == ranges[at + 1][0]:
        ranges[at][1] = ranges.pop(at + 1)[1]


def split(name: str) -> tuple[str, int]:
    """The producer and the number of a message's name."""
    producer, _, number = name.rpartition(".")
    return producer, int(number) if number.isdecimal() else -1
