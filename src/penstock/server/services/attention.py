"""Which queues need a person, and why in words."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from penstock.dialects.native.stats import Figures, awaits_consumers
from penstock.server.services.hour import Trend

SHOWN_MAX = 50
IDLE_SECONDS = 30.0
"""A queue whose messages wait this long, while nobody takes any, has no consumer."""
OLD_SECONDS = 600.0
RUSH_MESSAGES, RUSH_SECONDS = 20, 5
"""A queue grows if it has this many more ready messages than a minute ago, a quarter as many again, and more than
enter it in so many seconds."""
GROWN_MESSAGES = 100
"""It grows, too, if it has this many more than five minutes ago, and half as many again."""
_MUCH = 1.3  # Times as many are more than before.
_GIVEN_BACK = 0.2  # Of all deliveries: many.

TrendOf = Callable[[str], Trend]
Row = dict[str, Any]

_ORDER = ("damaged", "push", "dead_letters", "unconsumed", "failing", "growing", "old")


def attention(
    all_figures: list[Figures],
    lasting: AbstractSet[str],
    push_errors: dict[str, str],
    trend_of: TrendOf,
    now: float,
) -> list[Row]:
    """The queues that need a person, the most urgent first. `lasting`: queues whose messages stay, consumed or not.
    `push_errors`: of channels whose endpoint fails."""
    found = [
        row
        for figures in all_figures
        if (row := _reason(figures, push_errors))
        or (awaits_consumers(figures, lasting) and (row := _delay(figures, trend_of, now)))
    ]
    found.sort(key=urgency)
    return found


def shown(rows: list[Row], named: AbstractSet[str] | None) -> list[Row]:
    """The most urgent, and those of the queues that a client has named."""
    others = [row for row in rows[SHOWN_MAX:] if row["queue"] in named] if named else []
    return rows[:SHOWN_MAX] + others


def urgency(row: Row) -> tuple[int, int, str]:
    """The most urgent is the least."""
    return _ORDER.index(row["reason"]), -row["messages"], row["queue"]


def _reason(figures: Figures, push_errors: dict[str, str]) -> Row | None:
    """The most urgent reason that messages cannot be consumed."""
    if figures.damaged:
        return _row(figures, "damaged", figures.damaged, "cannot be read from the disk")
    if figures.name in push_errors:
        return _row(figures, "push", figures.ready, f"the push endpoint fails: {push_errors[figures.name]}")
    if figures.dead_letters:
        return _row(figures, "dead_letters", figures.ready, "waiting for a decision") if figures.ready else None
    return None


def _delay(figures: Figures, trend_of: TrendOf, now: float) -> Row | None:
    """The most urgent reason that messages are not consumed in time."""
    waited = now - figures.ready_since if figures.ready_since else 0.0
    trend = trend_of(figures.name) if figures.ready >= RUSH_MESSAGES else None
    grown = _growth(figures, trend) if trend else ""
    if waited > IDLE_SECONDS and not _is_taken(figures):
        return _row(figures, "unconsumed", figures.ready, "nobody consumes", grown)
    if figures.failed:
        return _row(figures, "failing", figures.ready, "messages fail", grown)
    if trend and grown:
        return _row(figures, "growing", figures.ready, f"{grown}: {_cause(figures, trend)}")
    if waited > OLD_SECONDS:
        return _row(figures, "old", figures.ready, "waiting for long")
    return None


def _is_taken(figures: Figures) -> bool:
    return bool(figures.waiting or figures.leased or figures.left)


# ── Growth ────────────────────────────────────────────────────────────────────────────────────────────────────


def _growth(figures: Figures, trend: Trend) -> str:
    """By how much a queue has grown, if it grows."""
    growth, before = figures.growth or 0, trend.ready_before
    if growth >= max(RUSH_MESSAGES, (figures.ready - growth) / 4, RUSH_SECONDS * (trend.entered or 0)):
        return f"grew by {growth:,} in the last minute"
    if before is not None and figures.ready > max(before + GROWN_MESSAGES, 1.5 * before):
        return f"grew by {figures.ready - before:,.0f} in the last five minutes"
    return ""


def _cause(figures: Figures, trend: Trend) -> str:
    """Why a queue grows."""
    entered, left = trend.entered or 0.0, trend.left or 0.0
    given_back, delivered = figures.retried or 0.0, figures.delivered or 0.0
    if not _is_taken(figures) and not left:
        return "nobody consumes"
    if given_back and given_back >= _GIVEN_BACK * delivered:
        return f"many are given back: {_rate(given_back)} of {_rate(delivered)} that are delivered"
    is_rush = trend.entered_before is not None and entered > _MUCH * trend.entered_before
    if not is_rush and trend.left_before and left * _MUCH < trend.left_before:
        return f"consumers are slower: {_rate(left)} are done, {_rate(trend.left_before)} were before"
    if is_rush and trend.entered_before:
        return f"{_rate(entered)} are published, {_rate(trend.entered_before)} were before; {_rate(left)} are done"
    return f"more are published ({_rate(entered)}) than done ({_rate(left)})"


def _rate(value: float) -> str:
    return f"{value:.1f}/s" if value < 10 else f"{value:,.0f}/s"


def _row(figures: Figures, reason: str, messages: int, *words: str) -> Row:
    return {
        "queue": figures.name,
        "reason": reason,
        "messages": messages,
        "growth": figures.growth,
        "ready_since": figures.ready_since,
        "text": "; ".join(filter(None, words)),
    }
