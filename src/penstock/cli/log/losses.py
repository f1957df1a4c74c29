"""What a salvage has lost, by queue and sequence: for people, for programs, and in a file beside the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

Range = tuple[int, int | None]  # The first and the last; None: nobody knows how many follow.


class QueueLosses(msgspec.Struct, kw_only=True):
    number: int
    name: str
    messages: int = 0  # That are there.
    lost: list[Range] = []  # Sequences that cannot be read. Some may have been finished.
    unknown: list[Range] = []  # Sequences that may have been given out, or not: nothing of them is left.
    may_return: int = 0  # Messages that may have been finished: the event that says so would be lost.
    notes: list[str] = []


class Losses(msgspec.Struct, kw_only=True):
    directory: str
    log: str  # The identity of the new log.
    offset: int  # Where it ends.
    snapshot: int | None  # The offset of the snapshot that was used.
    events: list[Range] = []  # Offsets of events that cannot be read and that no snapshot covers.
    queues: list[QueueLosses] = []
    notes: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost that anybody could miss."""
        return not (self.events or self.notes or any(each.lost or each.unknown or each.notes for each in self.queues))


def ranges(numbers: Iterable[int]) -> list[Range]:
    """Numbers in order, as ranges."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return list(found)


def lines(losses: Losses) -> Iterator[str]:
    """The report as text."""
    since = f"the snapshot at offset {losses.snapshot:,}" if losses.snapshot is not None else "no snapshot"
    yield f"{losses.directory}: a log that ends at offset {losses.offset:,}, made with {since}."
    if losses.events:
        yield f"Events lost: offsets {_text(losses.events)}."
    for queue in losses.queues:
        yield from _queue_lines(queue)
    yield from losses.notes
    if losses.is_whole:
        yield "Nothing is lost."


def _queue_lines(queue: QueueLosses) -> Iterator[str]:
    yield f"Queue {queue.name}: {queue.messages:,} messages."
    if queue.lost:
        yield f"  Lost, unless they were finished before: sequences {_text(queue.lost)}."
    if queue.unknown:
        yield f"  Lost, if they were ever given out: sequences {_text(queue.unknown)}."
    if queue.may_return:
        yield f"  Up to {queue.may_return:,} messages may be delivered again: events that finish them may be lost."
    for note in queue.notes:
        yield f"  {note}"


def _text(found: list[Range]) -> str:
    return ", ".join(
        f"{first:,} and later" if last is None else f"{first:,}" if first == last else f"{first:,} to {last:,}"
        for first, last in found
    )
