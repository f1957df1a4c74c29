"""Content that may be stored once only: by deduplication, by an idempotency key, or because it has not changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.torture.checker.rules import Violation, violation
from penstock.torture.history import AnyEvent, Finishing, Sent, Stored, Taken

NAMES_MAX = 20_000  # The oldest are forgotten.


@dataclass(slots=True)
class Copy:
    promise: str
    sends: int = 0
    stored: bool = False
    id: str = ""  # Of the only one there is, or "" if it is not known.
    known_at: float = 0.0
    ended: str = ""  # The last one whose finish was asked for.


RULE = {"dedup": "one-per-dedup-key", "idempotency": "one-per-idempotency-key", "change": "changed-only"}


@dataclass
class Copies:
    names: dict[str, Copy] = field(default_factory=dict)

    def observe(self, event: AnyEvent) -> Iterator[Violation]:
        if isinstance(event, Sent) and event.promise in RULE:
            self.names.setdefault(event.about, Copy(event.promise)).sends += 1
            if len(self.names) > NAMES_MAX:
                del self.names[next(iter(self.names))]
        elif isinstance(event, Stored | Taken | Finishing) and event.about in self.names:
            yield from self._seen(event, self.names[event.about])

    def _seen(self, event: Stored | Taken | Finishing, copy: Copy) -> Iterator[Violation]:
        match event:
            case Stored():
                yield from self._stored(event, copy)
            case Taken():
                yield from self._same(event, copy, event.asked_at)
            case Finishing() if copy.promise == "dedup":
                copy.ended = event.id
                copy.id = "" if event.id == copy.id else copy.id

    def _stored(self, event: Stored, copy: Copy) -> Iterator[Violation]:
        if copy.promise == "change" and event.new and copy.stored:
            yield violation("changed-only", event.about, event.at, "it had not changed, and was queued again")
        elif copy.promise == "change" and not event.new and not copy.stored and copy.sends == 1:
            yield violation(
                "changed-only", event.about, event.at, "it had changed, and the answer is that it had not"
            )
        if event.new or copy.promise != "change":  # The answer that nothing changed has an id of its own.
            yield from self._same(event, copy, event.at)
        copy.stored = True

    def _same(self, event: Stored | Taken, copy: Copy, at: float) -> Iterator[Violation]:
        if copy.id and event.id and copy.id != event.id and at > copy.known_at:
            yield violation(RULE[copy.promise], event.about, event.at, f"there are two: {copy.id} and {event.id}")
        elif event.id and not copy.id and event.id != copy.ended and self._is_kept(event, copy):
            copy.id, copy.known_at = event.id, event.at

    @staticmethod
    def _is_kept(event: Stored | Taken, copy: Copy) -> bool:
        """With deduplication, what was taken may be gone already: its finish may be on the way."""
        return copy.promise != "dedup" or isinstance(event, Stored)
