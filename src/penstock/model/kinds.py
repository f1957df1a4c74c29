"""The kinds of events: their numbers on disk, and the letters that readers of the Event Log see."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The number of an event on disk. Never reused, never renumbered."""

    NAME_DEFINED = 1
    QUEUE_CREATED = 2
    QUEUE_CHANGED = 3
    QUEUE_REMOVED = 4
    CARRIED = 5
    RECEIVER_MOVED = 6
    RESULT_CARRIED = 7
    STAGED = 8
    BATCH_COMMITTED = 9
    ADMITTED = 10
    UNSTAGED = 11
    NAME_FORGOTTEN = 12
    LOGGED = 16
    FETCHED = 17
    KICKED = 18
    SUCCEEDED = 19
    RETRIED = 20
    EXASPERATED = 21
    DEAD_LETTERED = 22
    EXPIRED = 23
    DELETED = 24
    DELIVERED = 25
    HANDED_OVER = 26
    RESULT_STORED = 27
    QUEUED = 28
    UNCHANGED = 29
    INVALID = 30
    NOT_INTERESTED = 31
    EXTENDED = 32
    RESCHEDULED = 33
    MOVED = 34
    COMPLETED = 35
    GIVEN_BACK = 36
    FAILED = 37
    DAMAGED = 38
    RESTORED = 39


# What a reader of the Event Log sees of each: a letter, or several that happen together. Housekeeping shows nothing.
LETTERS: dict[Kind, str] = {
    Kind.QUEUE_REMOVED: "D",  # Of the queue, and so of every message in it: one event, which has no sequence.
    Kind.LOGGED: "LQ",
    Kind.FETCHED: "F",
    Kind.KICKED: "K",
    Kind.SUCCEEDED: "SX",  # X only if this confirmation was the last one needed.
    Kind.RETRIED: "R",
    Kind.EXASPERATED: "E",
    Kind.DEAD_LETTERED: "FEQ",  # F only if the delivery that used up the retries is part of the record.
    Kind.EXPIRED: "Z",
    Kind.DELETED: "D",
    Kind.DELIVERED: "F",
    Kind.HANDED_OVER: "K",
    Kind.RESULT_STORED: "S",
    Kind.QUEUED: "Q",
    Kind.UNCHANGED: "LU",
    Kind.INVALID: "I",
    Kind.NOT_INTERESTED: "N",
    Kind.MOVED: "Q",
    Kind.COMPLETED: "X",
    Kind.GIVEN_BACK: "R",
    Kind.FAILED: "E",
    Kind.DAMAGED: "B",
    Kind.RESTORED: "R",
}
