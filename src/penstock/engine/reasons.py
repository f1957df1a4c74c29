"""Why messages became dead letters, as far as their consumers reported it.

The log has each reason in full. Memory has the first line of it, up to a bounded length, so that dead letters can be
searched by reason. Equal texts are stored once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.engine.rows import Columns
from penstock.limits import REASON_CHARACTERS_KEPT
from penstock.model.values import Place

_SECTION_REASONS_MAX = 4096


class Reasons:
    def __init__(self) -> None:
        self.by_place: dict[Place, str] = {}  # Where the dead letter is now.

    def __bool__(self) -> bool:
        return bool(self.by_place)

    def of(self, place: Place) -> str:
        """Empty if there is none."""
        return self.by_place.get(place, "")

    def note(self, place: Place, reason: bytes) -> None:
        if first_line := kept(reason):
            self.by_place[place] = sys.intern(first_line)

    def forget(self, place: Place) -> None:
        self.by_place.pop(place, None)

    def part(self, is_mine: Callable[[int], bool]) -> Reasons:
        """Those of the dead letters in some queues, by their numbers."""
        part = Reasons()
        part.by_place = {place: text for place, text in self.by_place.items() if is_mine(place[0])}
        return part

    # Snapshots

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        all_of_them = iter(self.by_place.items())
        while some := list(islice(all_of_them, _SECTION_REASONS_MAX)):
            places = np.array([place for place, _ in some], dtype=np.int64)
            yield "reasons", msgspec.json.encode([text for _, text in some]), (places,)

    def restore(self, facts: bytes, columns: Columns) -> None:
        places = columns[0].view(np.int64).reshape(-1, 2).tolist()
        for (queue, sequence), text in zip(places, decode_json(facts, list[str]), strict=True):
            self.by_place[queue, sequence] = sys.intern(text)


def kept(reason: bytes) -> str:
    """What memory keeps of a reason."""
    lines = reason.decode(errors="replace").strip().splitlines()
    return lines[0][:REASON_CHARACTERS_KEPT] if lines else ""


def matches(pattern: str, text: str) -> bool:
    """Whether the text is like the pattern, in which a star stands for any characters."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or at > end:
        return False
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
