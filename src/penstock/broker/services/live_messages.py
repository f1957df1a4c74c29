"""Counts the live messages in each part of the log, while a snapshot is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.engine.slots import STORED
from penstock.model.lifecycle import DAMAGED
from penstock.model.values import Position
from penstock.storage.port import Section

NOBODY = -1


class LiveMessage(NamedTuple):
    """A message, or a receiver's result for one, that a part of the log still holds."""

    queue: int
    sequence: int
    position: Position
    size: int
    receiver: int = NOBODY  # If this is a result: the receiver that gave it.


class _QueueNumber(msgspec.Struct):
    number: int


class LiveMessages:
    """The live messages of each part. `base_positions`: where the parts begin."""

    def __init__(self, base_positions: Sequence[Position]) -> None:
        self._bases = np.array(base_positions, dtype=np.uint64)
        self._alive = np.zeros(len(base_positions), dtype=np.int64)

    @property
    def alive(self) -> list[int]:
        """Live messages and results, by part."""
        return self._alive.tolist()

    def watch(self, sections: Iterable[Section]) -> Iterator[Section]:
        """Pass sections on, and count."""
        for section in sections:
            kind, _, columns = section
            if kind in _ALIVE and len(self._bases):
                positions = _ALIVE[kind](columns)
                self._alive += np.bincount(self._part_of(positions), minlength=len(self._bases))
            yield section

    def living_in(self, sections: Iterable[Section], chosen: Sequence[bool], most: int) -> list[LiveMessage]:
        """The first messages and results in the chosen parts, in the order of the log: `most`, or a few more, because
        all that share an extent are included."""
        wanted = np.array(chosen, dtype=bool)
        living = np.empty((0, len(LiveMessage._fields)), dtype=np.int64)
        queue = 0
        for kind, facts, columns in sections if wanted.any() else ():
            if kind == "queue":
                queue = decode_json(facts, _QueueNumber).number
            elif kind == "rows":
                readable = columns[1]["state"] != DAMAGED  # A message that cannot be read cannot be carried.
                sequences, rows = columns[0][readable], columns[1][readable]
                sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
                found = (queue, sequences, rows["position"], sizes, NOBODY)
                living = _first(living, self._inside(wanted, found), most)
            elif kind == "slots":
                places, slots = columns[0][columns[1]["state"] == STORED], _results(columns[1])
                found = (queue, places[:, 0], slots["value"], slots["size"], places[:, 1])
                living = _first(living, self._inside(wanted, found), most)
        return [LiveMessage(*facts) for facts in living.tolist()]

    def _inside(self, wanted: np.ndarray, found: tuple[Any, ...]) -> np.ndarray:
        """The rows that lie in wanted parts, as a table."""
        positions = found[LiveMessage._fields.index("position")]
        inside = wanted[self._part_of(positions)]
        columns = [np.broadcast_to(column, positions.shape)[inside] for column in found]
        return np.stack([column.astype(np.int64) for column in columns], axis=1)

    def _part_of(self, positions: np.ndarray) -> np.ndarray:
        # The position of a message without a body may be the end of the log, before a part exists there.
        return np.maximum(np.searchsorted(self._bases, positions, side="right") - 1, 0)


_ALIVE: dict[str, Callable[[tuple[np.ndarray, ...]], np.ndarray]] = {
    "rows": lambda columns: columns[1]["position"],
    "slots": lambda columns: _results(columns[1])["value"],
    **dict.fromkeys(("staging", "couriers"), lambda columns: columns[0]),  # Not carried: it is gone soon.
}


def _first(living: np.ndarray, more: np.ndarray, most: int) -> np.ndarray:
    """The rows that come first in the log: `most` of them, and all others at the same position as the last one."""
    together = np.concatenate([living, more])
    position = LiveMessage._fields.index("position")
    together = together[np.argsort(together[:, position], kind="stable")]
    if len(together) > most:
        together = together[together[:, position] <= together[most - 1, position]]
    return together


def _results(slots: np.ndarray) -> np.ndarray:
    results: np.ndarray = slots[slots["state"] == STORED]
    return results
