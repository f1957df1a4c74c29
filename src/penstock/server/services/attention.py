"""Which queues need a person, and why in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dialects.native.stats import Figures

SHOWN_MAX = 50
IDLE_SECONDS = 30.0
"""A queue whose messages wait this long, while nobody takes any, has no consumer."""
OLD_SECONDS = 600.0
GROWN_MESSAGES = 100
"""A queue grows if it has this many more ready messages than some minutes ago, and half as many again."""

ReadyBefore = Callable[[str], float | None]  # How many messages of a queue were ready some minutes ago.

_ORDER = ("damaged", "push", "dead_letters", "unconsumed", "failing", "growing", "old")


def attention(
    all_figures: list[Figures],
    lasting: set[str],
    push_errors: dict[str, str],
    ready_before: ReadyBefore,
    now: float,
) -> list[dict[str, Any]]:
    """The queues that need a person, the most urgent first. `lasting`: queues whose messages stay, consumed or not.
    `push_errors`: of channels whose endpoint fails."""
    found = [
        row
        for figures in all_figures
        if (row := _reason(figures, push_errors))
        or (figures.name not in lasting and (row := _delay(figures, ready_before, now)))
    ]
    found.sort(key=urgency)
    return found[:SHOWN_MAX]


def urgency(row: dict[str, Any]) -> tuple[int, int, str]:
    """The most urgent is the least."""
    return _ORDER.index(row["reason"]), -row["messages"], row["queue"]


def _reason(figures: Figures, push_errors: dict[str, str]) -> dict[str, Any] | None:
    """The most urgent reason that messages cannot be consumed."""
    if figures.damaged:
        return _row(figures, "damaged", figures.damaged, "cannot be read from the disk")
    if figures.name in push_errors:
        return _row(figures, "push", figures.ready, f"the push endpoint fails: {push_errors[figures.name]}")
    if figures.dead_letters:
        return _row(figures, "dead_letters", figures.ready, "waiting for a decision") if figures.ready else None
    return None


def _delay(figures: Figures, ready_before: ReadyBefore, now: float) -> dict[str, Any] | None:
    """The most urgent reason that messages are not consumed in time."""
    if figures.dead_letters:
        return None
    waited = now - figures.ready_since if figures.ready_since else 0.0
    taken = figures.waiting or figures.leased or figures.left
    if waited > IDLE_SECONDS and not taken:
        return _row(figures, "unconsumed", figures.ready, "nobody consumes")
    if figures.failed:
        return _row(figures, "failing", figures.ready, "messages fail")
    if _is_growing(figures, ready_before(figures.name)):
        return _row(figures, "growing", figures.ready, "more arrive than are consumed")
    if waited > OLD_SECONDS:
        return _row(figures, "old", figures.ready, "waiting for long")
    return None


def _is_growing(figures: Figures, before: float | None) -> bool:
    return before is not None and figures.ready > max(before + GROWN_MESSAGES, 1.5 * before)


def _row(figures: Figures, reason: str, messages: int, words: str) -> dict[str, Any]:
    return {
        "queue": figures.name,
        "reason": reason,
        "messages": messages,
        "ready_since": figures.ready_since,
        "text": words,
    }
