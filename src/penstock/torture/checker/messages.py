"""Messages and their workers: nothing lost, nothing back after its finish, one lease at a time, content intact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.torture.checker.folded import Folded
from penstock.torture.checker.rules import Violation, violation
from penstock.torture.history import (
    AnyEvent,
    Finished,
    Finishing,
    GivingBack,
    Sent,
    Started,
    Stored,
    Taken,
)

CLOCK_RATE = 0.9  # The broker's clock runs up to a tenth faster after the system clock was set.
CLOCK_SECONDS = 0.2  # How far apart two clocks may be.
SETTLED_SECONDS = 60.0  # After its finish, a message stays in memory so long.
FORGOTTEN_SECONDS = 900.0  # After this time a message that was never acknowledged does not come any more.
SWEEP_SECONDS = 5.0


@dataclass(slots=True)
class Life:
    sent_at: float
    lives: float = 0.0
    stored_at: float | None = None
    free_at: float = 0.0  # When its lease may end at the earliest.
    taken_at: float = 0.0
    finishing: bool = False
    finished_at: float | None = None


@dataclass
class Messages:
    dead_letters: dict[str, str]  # The queues that messages of a queue may move to.
    lives: dict[str, Life] = field(default_factory=dict)
    finished: Folded = field(default_factory=Folded)
    forgotten: Folded = field(default_factory=Folded)
    _queues: dict[str, str] = field(default_factory=dict)  # Where each message was sent.
    _repeated: set[str] = field(default_factory=set)  # Names that stand for many messages, one after the other.
    _leases_since: float = 0.0  # A clock that was set has ended the leases before.
    _swept_at: float = 0.0

    def observe(self, event: AnyEvent) -> Iterator[Violation]:
        match event:
            case Sent():
                self._sent(event)
            case Stored():
                life = self._life(event)
                life.stored_at = life.stored_at or event.at
            case Taken():
                yield from self._taken(event)
            case Finishing():
                self._life(event).finishing = True
            case Finished():
                life = self._life(event)
                life.finished_at = life.finished_at or event.at
            case GivingBack():
                self._life(event).free_at = 0.0
            case Started(jumped=True):
                self._leases_since = event.at
            case _:
                pass
        if event.at > self._swept_at + SWEEP_SECONDS:
            self._sweep(event.at)

    def _sent(self, event: Sent) -> None:
        self._queues[event.about] = event.queue
        if event.promise == "dedup":
            self._repeated.add(event.about)
        else:
            self.lives.setdefault(event.about, Life(event.at, event.lives))

    def _name(self, event: Stored | Taken | Finishing | Finished | GivingBack) -> str:
        return f"{event.about}#{event.id}" if event.about in self._repeated else event.about

    def _life(self, event: Stored | Taken | Finishing | Finished | GivingBack) -> Life:
        if event.about in self.finished or event.about in self.forgotten:
            return Life(event.at)
        return self.lives.setdefault(self._name(event), Life(event.at))

    def _taken(self, event: Taken) -> Iterator[Violation]:
        if event.about in self.finished:
            yield violation(
                "finished-stays-finished", event.about, event.at, f"{event.by} got it long after its finish"
            )
            return
        if event.about in self.forgotten:
            return
        queue = self._queues.get(event.about)
        if queue is None:
            yield violation("content-intact", event.about, event.at, f"{event.queue} delivered what nobody sent")
        elif event.queue not in (queue, self.dead_letters.get(queue)):
            yield violation("content-intact", event.about, event.at, f"{event.queue} delivered what {queue} was sent")
        elif not event.sound:
            yield violation("content-intact", event.about, event.at, f"{event.by} got another body than was sent")
        else:
            yield from self._leased(event)

    def _leased(self, event: Taken) -> Iterator[Violation]:
        life = self._life(event)
        if life.finished_at is not None and event.asked_at > life.finished_at:
            yield violation(
                "finished-stays-finished",
                event.about,
                event.at,
                f"{event.by} got it after its finish was acknowledged",
            )
        if event.at < life.free_at and life.taken_at > self._leases_since:
            yield violation("one-lease", event.about, event.at, f"{event.by} got it while another held it")
        life.taken_at = event.asked_at
        life.free_at = event.asked_at + event.lease * CLOCK_RATE - CLOCK_SECONDS

    def _sweep(self, now: float) -> None:
        """Fold what is settled, so that memory does not grow with the length of a run."""
        self._swept_at = now
        for name, life in list(self.lives.items()):
            if life.finished_at is not None and now > life.finished_at + SETTLED_SECONDS:
                self._fold(name, self.finished)
            elif now > life.sent_at + FORGOTTEN_SECONDS and (life.stored_at is None or life.finishing or life.lives):
                self._fold(name, self.forgotten)

    def _fold(self, name: str, into: Folded) -> None:
        del self.lives[name]
        if "#" not in name:
            into.add(name)
            self._queues.pop(name, None)

    def close(self, now: float) -> Iterator[Violation]:
        """All queues are empty: what was acknowledged was delivered to somebody who finished it, or has expired."""
        for name, life in self.lives.items():
            if life.stored_at is not None and not life.finishing and not life.lives:
                yield violation("nothing-lost", name.partition("#")[0], now, "acknowledged, not finished, and gone")
