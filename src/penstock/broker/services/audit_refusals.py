"""Refusals that repeat: the first is recorded at once, the others of the same minute are counted in one record.

So a client that tries again and again, or somebody who tries many tokens, cannot fill the log.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.limits import AUDIT_REFUSALS_MAX, AUDIT_WINDOW_SECONDS, SECOND_NS
from penstock.model.audit import Actor
from penstock.model.values import Nanos

_WINDOW_NS = AUDIT_WINDOW_SECONDS * SECOND_NS
_SEVERAL = Actor("(several)", "", "", "")


class Refusal(NamedTuple):
    """What was refused. Equal ones are counted together."""

    actor: Actor
    act: str
    target: str
    code: str


class Counted(NamedTuple):
    """Refusals that came after the first one."""

    refusal: Refusal
    times: int
    since: Nanos


class Refusals:
    """The refusals of the last minute. If they are too many to be kept apart, only their act and code are."""

    def __init__(self) -> None:
        self._windows: dict[Refusal, tuple[Nanos, int]] = {}  # When each began, and how many came since.

    def is_first(self, refusal: Refusal, now: Nanos) -> bool:
        """Whether to record it now. If not, it is counted."""
        if refusal not in self._windows and len(self._windows) >= AUDIT_REFUSALS_MAX:
            refusal = Refusal(_SEVERAL, refusal.act, "", refusal.code)
            self._windows.setdefault(refusal, (now, 0))
        began, count = self._windows.get(refusal, (now, -1))
        self._windows[refusal] = began, count + 1
        return count < 0

    def ended(self, now: Nanos | None) -> list[Counted]:
        """Those whose minute is over, and that have come again in it. None: all."""
        over = [
            (refusal, began, count)
            for refusal, (began, count) in self._windows.items()
            if now is None or now - began >= _WINDOW_NS
        ]
        for refusal, _, _ in over:
            del self._windows[refusal]
        return [Counted(refusal, count, began) for refusal, began, count in over if count]
