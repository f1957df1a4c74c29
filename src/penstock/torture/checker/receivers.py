"""Receivers of queues that keep their messages: in order, without gaps, once, and results that stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.torture.checker.messages import CLOCK_RATE, CLOCK_SECONDS
from penstock.torture.checker.rules import Violation, violation
from penstock.torture.history import AnyEvent, Fault, Pulled, Pulling, ResultRead, ResultSent, ResultStored, Started

BACK_SECONDS = 60.0  # What was delivered in a lost answer is delivered again in this time.
REMEMBERED = 5_000  # Sequences of each receiver.


@dataclass(slots=True)
class Delivery:
    """What a receiver knows about one message."""

    name: str
    taken_at: float = 0.0
    results: list[str] = field(default_factory=list)
    stored_at: float | None = None
    read: str | None = None


@dataclass
class Receiver:
    cursor: int = 0
    pulling: bool = False
    doubtful: bool = False  # A pull was not answered since the last new message: it may have had the next ones.
    pulled_at: float = 0.0
    missing: dict[int, float] = field(default_factory=dict)  # Delivered in lost answers, and when that was.
    deliveries: dict[int, Delivery] = field(default_factory=dict)


@dataclass
class Receivers:
    kept_seconds: float  # The retention of the queues.
    receivers: dict[str, Receiver] = field(default_factory=dict)
    _names: dict[tuple[str, int], str] = field(default_factory=dict)  # By queue and sequence, for all receivers.
    _damaged: bool = False  # Bytes are damaged: receivers go past the messages in them.
    _times_since: float = 0.0  # A clock that was set has changed when deliveries are due.

    def observe(self, event: AnyEvent) -> Iterator[Violation]:
        match event:
            case Pulling():
                receiver = self._receiver(event.about)
                if receiver.pulling:
                    self._doubt(receiver, event.at)
                receiver.pulling = True
            case Pulled():
                yield from self._pulled(event, self._receiver(event.about))
            case ResultSent():
                self._delivery(event).results.append(event.result)
            case ResultStored():
                delivery = self._delivery(event)
                delivery.stored_at = delivery.stored_at or event.at
            case ResultRead():
                yield from self._read(event, self._delivery(event))
            case Started(jumped=True):
                self._times_since = event.at
            case Fault(kind="flip"):
                self._damaged = event.detail != "restored"
                for receiver in self.receivers.values():
                    receiver.missing.clear()
            case _:
                pass

    def _receiver(self, about: str) -> Receiver:
        return self.receivers.setdefault(about, Receiver())

    def _delivery(self, event: ResultSent | ResultStored | ResultRead) -> Delivery:
        return self._receiver(event.about).deliveries.setdefault(event.sequence, Delivery(""))

    def _doubt(self, receiver: Receiver, at: float) -> None:
        receiver.doubtful = True
        receiver.missing = dict.fromkeys(receiver.missing, at)

    def _pulled(self, event: Pulled, receiver: Receiver) -> Iterator[Violation]:
        before = receiver.cursor
        for sequence, name in event.messages.items():
            yield from self._one_name(event, sequence, name)
            if sequence > receiver.cursor:
                yield from self._next(event, receiver, sequence)
            else:
                yield from self._again(event, receiver, sequence)
            delivery = receiver.deliveries.setdefault(sequence, Delivery(name))
            delivery.name, delivery.taken_at = name, event.asked_at
        receiver.pulling = False
        if event.messages:
            receiver.pulled_at = event.at
        if receiver.cursor > before:  # What comes again says nothing about what lost answers had.
            receiver.doubtful = False
        while len(receiver.deliveries) > REMEMBERED:
            del receiver.deliveries[next(iter(receiver.deliveries))]
        for sequence, since in list(receiver.missing.items()):
            if event.at > since + BACK_SECONDS:
                del receiver.missing[sequence]
                yield violation("nothing-lost", event.about, event.at, f"{sequence} was skipped and did not come")

    def _one_name(self, event: Pulled, sequence: int, name: str) -> Iterator[Violation]:
        place = event.about.partition("/")[0], sequence
        known = self._names.setdefault(place, name)
        if known != name:
            yield violation("no-gaps", event.about, event.at, f"{sequence} is {known}, and also {name}")
        if len(self._names) > REMEMBERED:
            del self._names[next(iter(self._names))]

    def _next(self, event: Pulled, receiver: Receiver, sequence: int) -> Iterator[Violation]:
        skipped = range(receiver.cursor + 1, sequence)
        expired = event.at - receiver.pulled_at > self.kept_seconds / 2
        receiver.cursor = sequence
        if not skipped or expired or self._damaged:
            return
        if not receiver.doubtful:
            yield violation("no-gaps", event.about, event.at, f"{skipped[0]} to {skipped[-1]} did not come")
        elif event.fail_timeout:
            receiver.missing |= dict.fromkeys(skipped, event.at)

    def _again(self, event: Pulled, receiver: Receiver, sequence: int) -> Iterator[Violation]:
        if receiver.missing.pop(sequence, None) is not None:
            return
        delivery = receiver.deliveries.get(sequence)
        if delivery is None:
            yield violation("in-order", event.about, event.at, f"{sequence} came after {receiver.cursor}")
        elif not event.fail_timeout:
            yield violation("once-per-receiver", event.about, event.at, f"{sequence} came again")
        elif delivery.stored_at is not None and event.asked_at > delivery.stored_at:
            yield violation("once-per-receiver", event.about, event.at, f"{sequence} came again after its result")
        elif self._too_early(event, delivery):
            yield violation("once-per-receiver", event.about, event.at, f"{sequence} came again too early")

    def _too_early(self, event: Pulled, delivery: Delivery) -> bool:
        due_at = delivery.taken_at + event.fail_timeout * CLOCK_RATE - CLOCK_SECONDS
        return event.at < due_at and delivery.taken_at > self._times_since

    def _read(self, event: ResultRead, delivery: Delivery) -> Iterator[Violation]:
        if event.result is None:
            if delivery.stored_at is not None and event.asked_at > delivery.stored_at:
                yield violation("results-kept", event.about, event.at, f"the result of {event.sequence} is gone")
            return
        if event.result not in delivery.results:
            yield violation(
                "results-kept", event.about, event.at, f"nobody sent {event.result!r} for {event.sequence}"
            )
        elif delivery.read not in (None, event.result):
            yield violation("results-kept", event.about, event.at, f"the result of {event.sequence} has changed")
        delivery.read = event.result
