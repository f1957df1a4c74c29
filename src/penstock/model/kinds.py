"""The table of event kinds: one row a kind, with everything that other rooms need to know about it.

Encoders, Arrow columns, the writer's sets, followers, notices, traces, the message document, the lake's SQL, the
picture in `docs/architecture.md` and the table in `docs/log-format.md` are derived from these rows or checked against
them. So a new kind is a row here, a class in `events.py`, a step of `evolve` and the decision that makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import ClassVar, Literal

from msgspec import Struct

from penstock.model.values import Nanos


class State(IntEnum):
    """Where a message is now. The number is what its row holds."""

    GONE = 0  # Not, or no longer, in the queue.
    READY = 1
    DELAYED = 2  # Waits for its time.
    LEASED = 3  # With a consumer.
    KEPT = 4  # No longer for workers, still there for receivers: in a queue that keeps everything.
    DAMAGED = 5  # Set aside: its bytes on the disk cannot be read.


_GONE, _READY, _DELAYED, _LEASED, _KEPT, _DAMAGED = State
_WAITING = (_READY, _DELAYED)
_DONE = (_GONE, _KEPT)  # The queue's `keep` decides which.
_SOUND = (*_WAITING, _LEASED, _KEPT)

States = dict[State, tuple[State, ...]]


def _from(sources: tuple[State, ...], targets: tuple[State, ...]) -> States:
    return dict.fromkeys(sources, targets)


def _stays(sources: tuple[State, ...]) -> States:
    return {state: (state,) for state in sources}


# A consumer reports an outcome. Where several have to confirm the message, that may change nothing.
_OUTCOME: States = (
    {state: (*_DONE, state) for state in (*_WAITING, _LEASED)} | _stays((_KEPT,)) | {_DAMAGED: (_GONE,)}
)
_SUCCESS = _from((*_WAITING, _LEASED), _DONE) | {_DAMAGED: (_GONE,)}
_ENDED = _from((*_SOUND, _DAMAGED), (_GONE,))


About = Literal["message", "receiver", "queue", "name", "batch", "request", "schedule", "token", "shard"]


class Row(Struct, frozen=True):
    """What holds for every event of a kind."""

    number: int
    letters: str = ""  # What a reader of the Event Log sees: one letter, or several that happen together.
    stores: tuple[str, ...] = ()  # The fields of its event; for a message in a queue, those after `MESSAGE_FIELDS`.
    states: States = {}  # For each state that a message may be in before it: those that it may be in after it.
    about: About = "message"
    whose: Literal["workers", "receivers", "any"] = "workers"  # Whose deliveries `receives` and `consumer` are about.
    notice: Literal["assign", "finish", "retry", "drop"] | None = None  # For a sender that follows its message.
    reason: str = ""  # Why it happened, where the letter alone does not say it.
    only_if: dict[str, str] = {}  # A letter that is there only if this field of the event is true.
    begins: bool = False  # The message enters a queue, or at least takes a sequence there.
    moves: bool = False  # The message goes from one queue to another.
    wakes: bool = False  # The message may now be ready: in its queue, or in the one that it moves to.
    ends: bool = False  # Those who follow the message hear nothing more.
    clears: bool = False  # Receivers that stopped before the message may continue.


MESSAGE_FIELDS = ("queue", "sequence", "created", "receives", "consumer")
_LEASE = ("visible_at",)
_RESULT = ("result",)
_REASON = ("reason",)  # What the consumer reports as the cause; mostly empty.
_AGAIN = (*_LEASE, *_REASON)
_TARGET = ("to_queue", "to_sequence")
_ARRIVAL = ("visible_at", "expires_at", *_TARGET)
_NAMES = ("content_type", "sender", "object", "topics")
_CONTENT = ("key", "headers", "digest", "body")
_LOGGED = ("queue", "sequence", "visible_at", "expires_at", "priority", *_NAMES, "lease_ns", *_CONTENT)
_QUEUED = ("queue", "sequence", "created", "visible_at", "expires_at", "priority", *_NAMES, *_TARGET)
_UNCHANGED = ("queue", "sequence", "priority", *_NAMES, *_TARGET, "key", "headers")
_SCHEDULE_RAN = ("schedule", "planned", "next", "runs", "missed", "queue", "sequence")
_SCHEDULE_SKIPPED = ("schedule", "next", "due_at", "missed", "error")
_ROUTED = ("queue", "sequence", "messages", "options")
_LEARNED = ("queue", "sequence", "created", "object", "key", "content")
_SENT = ("shard", "target")
_PROMISED = ("shard", "wish", "target")
_DECIDED = ("forgotten", "origin", "outcomes")
_STAGED = ("query", "batch", "part", "chunk", "rows", "expires_at", "data")


class Kind(IntEnum):
    """The number of an event on disk, never reused and never renumbered; with its row."""

    row: Row

    def __new__(cls, row: Row) -> Kind:
        kind = int.__new__(cls, row.number)
        kind._value_ = row.number
        kind.row = row
        return kind

    # Housekeeping, and queues.
    NAME_DEFINED = Row(1, stores=("number", "text"), about="name")
    QUEUE_CREATED = Row(2, stores=("queue", "name", "settings"), about="queue")
    QUEUE_CHANGED = Row(3, stores=("queue", "settings"), about="queue")
    QUEUE_REMOVED = Row(4, "D", ("queue",), about="queue", wakes=True)  # One D for it and every message in it.
    CARRIED = Row(5, stores=("extent", *_TARGET))
    RECEIVER_MOVED = Row(6, stores=("queue", "sequence", "consumer"), about="receiver")
    RESULT_CARRIED = Row(7, stores=_RESULT)
    STAGED = Row(8, stores=_STAGED, about="batch")
    BATCH_COMMITTED = Row(9, stores=("query", "batch", "parts"), about="batch")
    ADMITTED = Row(10, stores=("query", "batch", "chunk", "row"), about="batch")
    UNSTAGED = Row(11, stores=("query", "batch"), about="batch")
    NAME_FORGOTTEN = Row(12, stores=("number", "text"), about="name")
    ANSWERED = Row(13, stores=("forgotten", "key", "digest", "answer"), about="request")
    SCHEDULE_SET = Row(41, stores=("schedule", "definition", "next"), about="schedule")
    SCHEDULE_RAN = Row(42, stores=_SCHEDULE_RAN, about="schedule")
    SCHEDULE_SKIPPED = Row(43, stores=_SCHEDULE_SKIPPED, about="schedule")
    SCHEDULE_REMOVED = Row(44, stores=("schedule",), about="schedule")
    TOKEN_SET = Row(45, stores=("token", "definition"), about="token")
    TOKEN_REVOKED = Row(46, stores=("token",), about="token")
    ROUTED = Row(47, stores=_ROUTED, about="shard")
    TAKEN = Row(50, stores=("shard", "serial"), about="shard")
    COLLECTED = Row(53, stores=("shard", "offset", "serial"), about="shard")
    VERSIONED = Row(55, stores=("queue", "sequence", "messages"), about="shard")
    LEARNED = Row(56, stores=_LEARNED, about="shard")
    DECIDED = Row(57, stores=_DECIDED, about="shard")
    PROMISED = Row(58, stores=_PROMISED, about="shard")
    # The life of a message.
    LOGGED = Row(16, "LQ", _LOGGED, {_GONE: _WAITING}, begins=True, wakes=True)
    FETCHED = Row(17, "F", (*_LEASE, "ahead"), {_READY: (_LEASED,)}, notice="assign")
    HANDED_OVER = Row(18, "K", (), {_READY: _DONE}, notice="finish", ends=True)
    SUCCEEDED = Row(
        *(19, "SX", ("complete", "result"), _SUCCESS),
        only_if={"X": "complete"},
        notice="finish",
        ends=True,
        clears=True,
    )
    RETRIED = Row(20, "R", _AGAIN, {_LEASED: _WAITING}, notice="retry", wakes=True)
    FAILED = Row(21, "E", _REASON, {_LEASED: _DONE}, notice="drop", ends=True)
    DEAD_LETTERED = Row(
        *(22, "FEQ", ("fetched", *_ARRIVAL, *_REASON), _from(_SOUND, (_GONE,))),
        only_if={"F": "fetched"},
        notice="drop",
        moves=True,
        wakes=True,
    )
    EXPIRED = Row(23, "Z", (), _ENDED, ends=True, clears=True)
    DELETED = Row(24, "D", (), _ENDED, ends=True, clears=True)
    DELIVERED = Row(25, "F", ("visible_at", "leased"), _stays(_SOUND), whose="receivers", notice="assign")
    HANDED_TO_RECEIVER = Row(26, "K", (), _stays(_SOUND), whose="receivers", notice="finish")
    RESULT_STORED = Row(27, "S", _RESULT, _stays((*_SOUND, _DAMAGED)), whose="receivers", notice="finish")
    QUEUED = Row(28, "Q", _QUEUED, {_GONE: _WAITING}, begins=True, wakes=True)
    UNCHANGED = Row(29, "LU", _UNCHANGED, {_GONE: (_GONE,)}, begins=True)
    INVALID = Row(30, "I", _REASON, _OUTCOME, whose="any", notice="drop", ends=True, clears=True)
    NOT_INTERESTED = Row(31, "N", (), _OUTCOME, whose="any", notice="drop", ends=True, clears=True)
    EXTENDED = Row(32, "", (*_LEASE, "begun"), _stays(_SOUND), whose="any")
    RESCHEDULED = Row(33, "", _AGAIN, {_DELAYED: _WAITING}, wakes=True)
    MOVED = Row(34, "Q", _ARRIVAL, _from(_WAITING, (_GONE,)), moves=True, wakes=True)
    COMPLETED = Row(35, "X", (), _from(_SOUND, _DONE), whose="any", ends=True)
    GIVEN_BACK = Row(36, "R", _AGAIN, _stays(_SOUND), whose="receivers", notice="retry")
    FAILED_FOR_ALL = Row(37, "E", _REASON, _from(_SOUND, _DONE), whose="any", notice="drop", ends=True)
    DAMAGED = Row(38, "B", (), _from(_SOUND, (_DAMAGED,)), clears=True)
    RESTORED = Row(39, "R", _AGAIN, {_DAMAGED: (*_WAITING, _KEPT)}, reason="restored", wakes=True)
    TIMED_OUT = Row(
        *(40, "R", (*_AGAIN, "ahead"), _from((_LEASED,), _WAITING)),
        reason="timed out",
        notice="retry",
        wakes=True,
    )
    SENT = Row(48, "D", _SENT, _from(_WAITING, (_GONE,)), reason="moved to another shard", clears=True)
    SENT_AS_DEAD = Row(
        *(49, "E", (*_SENT, *_REASON), _from(_SOUND, (_GONE,))),
        reason="moved to another shard",
        notice="drop",
        ends=True,
        clears=True,
    )
    ARRIVED = Row(51, "Q", (*_LOGGED, "created"), {_GONE: _WAITING}, begins=True, wakes=True)
    CAME_FROM = Row(52, "", (*_TARGET, "origin", *_REASON), _stays(_WAITING))
    COPIED_FROM = Row(54, "", _TARGET, _stays(_WAITING))
    INVALID_FOR_ONE = Row(
        *(59, "I", _REASON, _stays(_SOUND)), whose="receivers", notice="drop", ends=True, clears=True
    )
    NOT_INTERESTED_FOR_ONE = Row(
        *(60, "N", (), _stays(_SOUND)), whose="receivers", notice="drop", ends=True, clears=True
    )


def kinds_where(is_meant: Callable[[Row], object]) -> frozenset[Kind]:
    """The kinds whose row meets a condition."""
    return frozenset(kind for kind in Kind if is_meant(kind.row))


LETTERS = {kind: kind.row.letters for kind in Kind if kind.row.letters}
ENDS = kinds_where(lambda row: row.ends)
MOVES = kinds_where(lambda row: row.moves)
BEGINS = kinds_where(lambda row: row.begins)
WITH_CONTENT = kinds_where(lambda row: row.begins and "body" in row.stores)
DEFINES = kinds_where(lambda row: "name" in row.stores or "text" in row.stores)  # What a number stands for.
ABOUT_MESSAGES = kinds_where(lambda row: row.about == "message")


class Event(Struct, frozen=True, gc=False):
    """Something that happened. `Engine.evolve` applies it, live and in replay alike."""

    kind: ClassVar[Kind]
    time: Nanos

    @property
    def records(self) -> int:
        """How many records it is in the log."""
        return 1
