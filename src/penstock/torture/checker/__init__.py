"""The checker: every rule over one stream of events. It does no I/O and reads no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.torture.checker.copies import Copies
from penstock.torture.checker.messages import Messages
from penstock.torture.checker.notices import Notices
from penstock.torture.checker.receivers import Receivers
from penstock.torture.checker.rules import RULES, Violation, violation
from penstock.torture.history import AnyEvent, Unexpected

__all__ = ["RULES", "Checker", "Violation", "violation"]


@dataclass
class Checker:
    dead_letters: dict[str, str]
    kept_seconds: float
    violations: list[Violation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = Messages(self.dead_letters)
        self._parts: list[Messages | Copies | Receivers | Notices] = [
            self.messages,
            Copies(),
            Receivers(self.kept_seconds),
            Notices(),
        ]

    def observe(self, event: AnyEvent) -> None:
        if isinstance(event, Unexpected):
            self.violations.append(violation("known-answers", event.about, event.at, event.answer))
        for part in self._parts:
            self.violations.extend(part.observe(event))

    def close(self, now: float) -> None:
        """The run is over, and every queue is empty."""
        self.violations.extend(self.messages.close(now))
