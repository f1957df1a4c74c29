"""Reads extents from segments for delivery, and refuses those in damaged batches.

Recovery reads only what the snapshot does not cover. So a finished segment is read whole and checked, once, before
the first extent is taken from it: a damaged body is never delivered.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict

from penstock.errors import DamagedExtentError
from penstock.model.values import Position
from penstock.storage.log.parts import part_at
from penstock.storage.log.segment import Gap, Segment, SegmentFile, gaps_of

logger = logging.getLogger(__name__)

_OPEN_FILES_MAX = 128


class CheckedSegments:
    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._checked: set[int] = set()  # Finished segments that were read whole, by their first offset.
        self._gaps: dict[int, list[Gap]] = {}  # What is damaged in each, by its first offset.
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()  # By first offset, least recently read first.

    def read(self, position: Position, size: int, ahead: int, end: Position) -> bytes:
        """An extent, with up to `ahead` bytes in all, nothing at or after `end` and nothing damaged among them."""
        index = part_at(self._segments, position)
        if index < 0:
            first = self._segments[0].base_position if self._segments else position + size
            raise DamagedExtentError(f"no segment holds position {position}", [(0, first)])
        segment = self._segments[index]
        if segment.base_offset not in self._checked and segment is not self._segments[-1]:
            self.note_gaps(segment, gaps_of(segment, self._segments[index + 1]))
            self._checked.add(segment.base_offset)
        wanted = max(size, min(ahead, end - position))
        if gaps := self._gaps.get(segment.base_offset):
            wanted = _before_gaps(segment, gaps, position, size, wanted)
        try:
            data = self._file(segment).read(position, wanted)
        except OSError as error:  # It was readable when it was checked.
            text = f"{segment}: position {position} cannot be read: {error}"
            raise DamagedExtentError(text, [(position, position + size)]) from error
        if len(data) < size:  # The segment that held the position is gone.
            following = self._segments[index + 1].base_position if index + 1 < len(self._segments) else end
            raise DamagedExtentError(f"no segment holds position {position}", [(segment.end(), following)])
        return data

    def _file(self, segment: Segment) -> SegmentFile:
        file = self._open.get(segment.base_offset)
        if file is None:
            file = self._open[segment.base_offset] = segment.open()
            if len(self._open) > _OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(segment.base_offset)
        return file

    def note_gaps(self, segment: Segment, gaps: list[Gap]) -> None:
        """Remember what is damaged, and log each gap once."""
        for gap in gaps:
            if gap not in self._gaps.get(segment.base_offset, ()):
                logger.critical(
                    "batch_damaged",
                    extra={
                        "path": str(segment.path),
                        "at_byte": segment.file_offset(gap.start),
                        "bytes": gap.end - gap.start,
                        "first_offset": gap.first_offset,
                        "last_offset": gap.end_offset - 1,
                    },
                )
        if gaps:
            self._gaps[segment.base_offset] = gaps

    @property
    def damaged(self) -> list[tuple[Position, Position]]:
        return [(gap.start, gap.end) for gaps in self._gaps.values() for gap in gaps]

    def forget(self, segment: Segment) -> None:
        """The segment is about to be removed."""
        self._checked.discard(segment.base_offset)
        self._gaps.pop(segment.base_offset, None)
        file = self._open.pop(segment.base_offset, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def _before_gaps(segment: Segment, gaps: list[Gap], position: Position, size: int, wanted: int) -> int:
    """How many of the wanted bytes are before the next gap. Raises if the gap is among those that must be read."""
    index = bisect_right(gaps, position, key=lambda gap: gap.end)
    if index < len(gaps) and gaps[index].start < position + wanted:
        gap = gaps[index]
        if gap.start < position + size:
            at, last = segment.file_offset(gap.start), gap.end_offset - 1
            text = f"{segment}: damaged at byte {at}: events {gap.first_offset} to {last}"
            raise DamagedExtentError(text, [(each.start, each.end) for each in gaps])
        return gap.start - position
    return wanted
