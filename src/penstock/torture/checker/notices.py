"""Notices to senders: they follow the life of the message, and the last one comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.torture.checker.rules import Violation, violation
from penstock.torture.history import AnyEvent, Finished, Noticed, Sent, SessionCut

LATE_SECONDS = 30.0  # A notice of a finish comes in this time.
SWEEP_SECONDS = 5.0
FOLLOWED_MAX = 20_000  # The oldest are forgotten.
AFTER = {
    "": {"sync", "refused"},
    "sync": {"assign", "finish", "drop"},
    "assign": {"retry", "finish", "drop"},
    "retry": {"assign", "finish", "drop"},  # A worker may finish a message after its lease.
    "finish": set(),
    "drop": set(),
    "refused": set(),  # An error instead: the message was not stored.
}
LAST = {"finish", "drop", "refused"}


@dataclass(slots=True)
class Followed:
    session: str
    notice: str = ""  # The last one.
    whole: bool = True  # The session was never cut: every notice has come.
    finished_at: float | None = None


@dataclass
class Notices:
    followed: dict[str, Followed] = field(default_factory=dict)
    _swept_at: float = 0.0

    def observe(self, event: AnyEvent) -> Iterator[Violation]:
        match event:
            case Sent(promise="notices"):
                self.followed[event.about] = Followed(event.by)
            case Noticed():
                yield from self._noticed(event)
            case SessionCut():
                for each in self.followed.values():
                    if each.session == event.about:
                        each.whole = False
            case Finished() if event.about in self.followed:
                self.followed[event.about].finished_at = event.at
            case _:
                pass
        if event.at > self._swept_at + SWEEP_SECONDS:
            yield from self._sweep(event.at)

    def _noticed(self, event: Noticed) -> Iterator[Violation]:
        each = self.followed.setdefault(event.about, Followed(event.session))
        fits = event.notice in AFTER[each.notice] if each.whole else each.notice not in LAST
        if not fits:
            sentence = f"{event.notice} came after {each.notice or 'nothing'}"
            yield violation("notices-follow", event.about, event.at, sentence)
        each.notice = event.notice

    def _sweep(self, now: float) -> Iterator[Violation]:
        self._swept_at = now
        for name, each in list(self.followed.items()):
            if each.finished_at is None or now < each.finished_at + LATE_SECONDS:
                continue
            del self.followed[name]
            if each.whole and each.notice not in LAST:
                yield violation("notices-follow", name, now, f"finished, and the last notice is {each.notice}")
        while len(self.followed) > FOLLOWED_MAX:
            del self.followed[next(iter(self.followed))]
