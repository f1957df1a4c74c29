"""Waiting until messages are taken, or done."""

from __future__ import annotations

from typing import ClassVar

from penstock.model.commands import Command, LookUp
from penstock.model.outcomes import OF_NOBODY, Outcome, Part, Until
from penstock.model.queries import Failed, Query
from penstock.model.traces import TextOf
from penstock.model.values import Nanos, Packed, Place


class AwaitMessages(Query, frozen=True):
    """Answered as soon as some of the messages have come so far, or when the time is over. Each is allowed, or
    refused, for itself."""

    seconds_max: ClassVar[float | None] = None  # That is in the question.
    waits_for_log: ClassVar[bool] = False  # What happened is durable before it is known.
    places: list[Place]
    until: Until = "done"
    seconds: float = 0
    part: Part = "all"
    reads: bool = False  # The client wants to read the message then, and needs what that needs.

    def needs(self) -> Command | None:
        return LookUp(*self.places[0]) if self.reads else None


class Fate(Packed, frozen=True):
    """What a message has come to. Without an `outcome`, it was only taken."""

    letter: str
    time: Nanos
    consumer: str | None
    outcome: str | None = None
    result: bytes = b""
    is_copied: bool = False  # Other shards may have copies, which are not done yet. Only shards say it to each other.


def fate_of(outcome: Outcome, name: TextOf) -> Fate:
    """`name`: of a consumer, by its number."""
    consumer = None if outcome.letter in OF_NOBODY else name(outcome.consumer)
    facts = (outcome.outcome, outcome.result, outcome.is_copied)
    return Fate(outcome.letter, outcome.time, consumer, *facts)


class Waited(Packed, frozen=True):
    """The messages of which something is known, or why not."""

    messages: list[tuple[Place, Fate | Failed]]
