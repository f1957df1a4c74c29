"""Arithmetic with offsets of several shards: what a checkpoint has, how a limit is shared, how a range is divided.

A checkpoint has `{"<shard>": offset}`: the first event of each shard that was not read yet. For a log that was
restored from a backup it also has the id of the log, because offsets of both may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import EventsLostError
from penstock.pipeline.source.log import Extent

Offset = dict[str, int | str]


class Piece(NamedTuple):
    """Offsets of one shard, from `start` up to, but not including, `end`."""

    shard: int
    start: int
    end: int


# ── In a checkpoint ───────────────────────────────────────────────────────────────────────────────────────────


def offset_at(offsets: Sequence[int], extents: Sequence[Extent]) -> Offset:
    found: Offset = {str(extent.shard): offset for extent, offset in zip(extents, offsets, strict=True)}
    return found | {_log_key(extent.shard): extent.id for extent in extents if extent.ancestors}


def offsets_of(offset: Offset, extents: Sequence[Extent]) -> list[int]:
    """The offset of each shard in a checkpoint. Raises `EventsLostError` if the checkpoint is one of another log."""
    known = {str(extent.shard) for extent in extents}
    strange = [name for name in offset if name.isdigit() and name not in known]
    if strange:
        raise EventsLostError(
            f"the checkpoint belongs to shard {', '.join(strange)} of another log: this one has"
            f" {len(extents)} of them, numbered from 0. Start with a new checkpoint"
        )
    return [_offset_of(offset, extent) for extent in extents]


def _offset_of(offsets: Offset, extent: Extent) -> int:
    is_known = str(extent.shard) in offsets
    log = offsets.get(_log_key(extent.shard if is_known else 0))
    end = extent.same_until(None if log is None else str(log))
    if not is_known:
        return _first_of_new_shard(end, extent)
    offset = int(offsets[str(extent.shard)])
    if end is not None and offset > end:
        raise EventsLostError(
            f"the log was restored from a backup that ends at offset {end}, but the checkpoint has read up to"
            f" {offset}: events that the query has processed do not exist any more. Restore the checkpoint and the"
            " output of the query from before the backup, or start with a new checkpoint"
        )
    return offset


def _first_of_new_shard(end: int | None, extent: Extent) -> int:
    """Where to begin in a shard that was made from the log of the checkpoint: shard 0 has everything before."""
    if not end:
        raise EventsLostError(
            f"the checkpoint has no offset of shard {extent.shard}: it belongs to another log."
            " Start with a new checkpoint"
        )
    return end


def _log_key(shard: int) -> str:
    return f"log {shard}" if shard else "log"


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────────────────


def level(sizes: Sequence[int], limit: int) -> int:
    """The most that each may take so that all together take no more than `limit`. What the small ones leave is for
    the others."""
    left = limit
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        share = left // (len(ordered) - index)
        if size > share:
            return share
        left -= size
    return limit


def limited(starts: Sequence[int], ends: Sequence[int], limit: int) -> list[int]:
    """Ends that are at most `limit` offsets away from the starts, all together. At least one offset is left."""
    sizes = [max(0, end - start) for start, end in zip(starts, ends, strict=True)]
    share = level(sizes, limit)
    if share:
        return [start + min(size, share) for start, size in zip(starts, sizes, strict=True)]
    # Fewer offsets than shards: the one that has most goes first, so that none falls behind.
    longest = sizes.index(max(sizes))
    return [start + (min(sizes[index], limit) if index == longest else 0) for index, start in enumerate(starts)]


# ── Tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def divided(ranges: Sequence[Piece], sizes: Sequence[int], count: int) -> list[list[Piece]]:
    """The same offsets in at most `count` parts of about the same size. `sizes`: the bytes of each range. A part may
    have offsets of several shards, and a range may be in several parts."""
    total = sum(sizes)
    parts: list[list[Piece]] = [[] for _ in range(count)]
    before = 0
    for piece, size in zip(ranges, sizes, strict=True):
        start = piece.start
        for number, part in enumerate(parts):
            reached = total * (number + 1) // count - before  # How many bytes of this range are in parts so far.
            end = piece.end if reached >= size else piece.start + (piece.end - piece.start) * max(reached, 0) // size
            if end > start:
                part.append(Piece(piece.shard, start, end))
                start = end
        before += size
    return [part for part in parts if part]
