"""How much of each segment is still alive: counted on the way of a snapshot's sections to the disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.model import Position
from penstock.storage.port import Section


class Living(NamedTuple):
    """A message that a segment still holds."""

    queue: int
    sequence: int
    position: Position
    size: int


class _QueueNumber(msgspec.Struct):
    number: int


class Tally:
    def __init__(self, base_positions: Sequence[Position]) -> None:
        self._bases = np.array(base_positions, dtype=np.uint64)
        self._alive = np.zeros(len(base_positions), dtype=np.int64)

    @property
    def alive(self) -> list[int]:
        """Living messages, by segment."""
        return self._alive.tolist()

    def watch(self, sections: Iterable[Section]) -> Iterator[Section]:
        """Pass sections on, counting."""
        for section in sections:
            if section[0] == "rows" and len(self._bases):
                found = self._segment_of(section[2][1]["position"])
                self._alive += np.bincount(found, minlength=len(self._bases))
            yield section

    def living_in(self, sections: Iterable[Section], chosen: Sequence[bool], most: int) -> list[Living]:
        """The messages that the chosen segments hold, `most` of them at most."""
        wanted = np.array(chosen, dtype=bool)
        living: list[Living] = []
        queue = 0
        for kind, facts, columns in sections:
            if kind == "queue":
                queue = msgspec.json.decode(facts, type=_QueueNumber).number
            elif kind == "rows" and wanted.any():
                sequences, rows = columns
                inside = wanted[self._segment_of(rows["position"])]
                rows = rows[inside]
                sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
                places = zip(sequences[inside].tolist(), rows["position"].tolist(), sizes.tolist(), strict=True)
                living.extend(Living(queue, *place) for place in places)
                if len(living) >= most:
                    break
        return living[:most]

    def _segment_of(self, positions: np.ndarray) -> np.ndarray:
        # A message without a body may stand at the very end of the log, before its segment is there.
        return np.maximum(np.searchsorted(self._bases, positions, side="right") - 1, 0)
