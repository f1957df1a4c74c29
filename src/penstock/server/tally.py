"""How much of each segment is still alive: counted on the way of a snapshot's sections to the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.engine.groups import STORED
from penstock.model import Position
from penstock.storage.port import Section


class Living(NamedTuple):
    """A message, or a receiver's result for one, that a segment still holds."""

    queue: int
    sequence: int
    position: Position
    size: int
    receiver: int = 0  # Of a result.


class _QueueNumber(msgspec.Struct):
    number: int


class Tally:
    def __init__(self, base_positions: Sequence[Position]) -> None:
        self._bases = np.array(base_positions, dtype=np.uint64)
        self._alive = np.zeros(len(base_positions), dtype=np.int64)

    @property
    def alive(self) -> list[int]:
        """Living messages and results, by segment."""
        return self._alive.tolist()

    def watch(self, sections: Iterable[Section]) -> Iterator[Section]:
        """Pass sections on, counting."""
        for section in sections:
            kind, _, columns = section
            if kind in _ALIVE and len(self._bases):
                positions = _ALIVE[kind](columns)
                self._alive += np.bincount(self._segment_of(positions), minlength=len(self._bases))
            yield section

    def living_in(self, sections: Iterable[Section], chosen: Sequence[bool], most: int) -> list[Living]:
        """The messages and results that the chosen segments hold, `most` of them at most."""
        wanted = np.array(chosen, dtype=bool)
        living: list[Living] = []
        queue = 0
        for kind, facts, columns in sections if wanted.any() else ():
            if kind == "queue":
                queue = msgspec.json.decode(facts, type=_QueueNumber).number
            elif kind == "rows":
                sequences, rows = columns
                rows, sequences = self._inside(wanted, rows["position"], rows, sequences)
                sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
                places = zip(sequences.tolist(), rows["position"].tolist(), sizes.tolist(), strict=True)
                living.extend(Living(queue, *place) for place in places)
            elif kind == "slots":
                places_of = columns[0][columns[1]["state"] == STORED]
                slots = _results(columns[1])
                slots, places_of = self._inside(wanted, slots["value"], slots, places_of)
                found = zip(places_of.tolist(), slots["value"].tolist(), slots["size"].tolist(), strict=True)
                living.extend(Living(queue, place[0], position, size, place[1]) for place, position, size in found)
            if len(living) >= most:
                break
        return living[:most]

    def _inside(self, wanted: np.ndarray, positions: np.ndarray, *columns: np.ndarray) -> Iterator[np.ndarray]:
        inside = wanted[self._segment_of(positions)]
        return (column[inside] for column in columns)

    def _segment_of(self, positions: np.ndarray) -> np.ndarray:
        # A message without a body may stand at the very end of the log, before its segment is there.
        return np.maximum(np.searchsorted(self._bases, positions, side="right") - 1, 0)


_ALIVE: dict[str, Callable[[tuple[np.ndarray, ...]], np.ndarray]] = {
    "rows": lambda columns: columns[1]["position"],
    "slots": lambda columns: _results(columns[1])["value"],
    "staging": lambda columns: columns[0],  # Not carried: it is gone soon enough.
}


def _results(slots: np.ndarray) -> np.ndarray:
    results: np.ndarray = slots[slots["state"] == STORED]
    return results
