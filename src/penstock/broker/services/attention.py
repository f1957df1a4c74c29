"""Which queues need a person, and why in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from penstock.broker.services.hour import Trend
from penstock.model.consumers import TIMES_MIN, Consumer
from penstock.model.figures import Figures, Row, awaits_consumers, urgency

IDLE_SECONDS = 30.0
"""A queue whose messages wait this long, while nobody takes any, has no consumer."""
OLD_SECONDS = 600.0
RUSH_MESSAGES, RUSH_SECONDS = 20, 5
"""A queue grows if it has this many more ready messages than a minute ago, a quarter as many again, and more than
enter it in so many seconds."""
GROWN_MESSAGES = 100
"""It grows, too, if it has this many more than five minutes ago, and half as many again."""
LONG_SECONDS = 120.0
"""It grows, too, if it has more than a minute ago and than five minutes ago, and messages wait for this long."""
HOLD_SECONDS = 120.0
"""So long a queue stays among those that need a person, unless its trouble is clearly over."""
_MUCH = 1.3  # Times as many are more than before.
_GIVEN_BACK = 0.2  # Of all deliveries: many.
_SLOWER = 3  # Times as long as another consumer of the same queue.


class Known(NamedTuple):
    """What is known of a queue beyond its figures. It is asked for only where it matters."""

    trend_of: Callable[[str], Trend]
    has_left: Callable[[str], bool]  # Whether a message left it in the last minute.
    retries_of: Callable[[str], int]  # How many more messages than a minute ago wait to be repeated.
    slow_in: Callable[[str], str]  # Which of its consumers is slow, in words, if that is known.


def attention(
    all_figures: list[Figures],
    lasting: AbstractSet[str],
    push_errors: dict[str, str],
    known: Known,
    now: float,
) -> list[Row]:
    """The queues that need a person, the most urgent first. `lasting`: queues whose messages stay, consumed or not.
    `push_errors`: of channels whose endpoint fails."""
    found = [
        row
        for figures in all_figures
        if (row := _reason(figures, push_errors))
        or (awaits_consumers(figures, lasting) and (row := _delay(figures, known, now)))
    ]
    found.sort(key=urgency)
    return found


class Flags:
    """Holds what was found for a while, so that a queue at the edge of a rule does not come and go."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Row, float]] = {}

    def hold(self, found: list[Row], figures_of: Mapping[str, Figures], now: float) -> list[Row]:
        """What was found now or lately, the most urgent first."""
        self._held = {
            name: (row | _shape(figures_of[name]), seen)
            for name, (row, seen) in self._held.items()
            if name in figures_of and now - seen <= HOLD_SECONDS and not _is_over(row, figures_of[name])
        }
        self._held |= {row["queue"]: (row, now) for row in found}
        return sorted([row for row, _ in self._held.values()], key=urgency)


def _is_over(row: Row, figures: Figures) -> bool:
    """Whether a trouble has clearly ended."""
    match row["reason"]:
        case "damaged":
            return not figures.damaged
        case "unconsumed":
            return not figures.ready or _is_taken(figures)
        case "failing":
            return False
        case "retries":
            return not figures.delayed
        case "push":
            return True
        case _:
            return not figures.ready


def _reason(figures: Figures, push_errors: dict[str, str]) -> Row | None:
    """The most urgent reason that messages cannot be consumed."""
    if figures.damaged:
        return _row(figures, "damaged", figures.damaged, "cannot be read from the disk")
    if figures.name in push_errors:
        return _row(figures, "push", figures.ready, f"the push endpoint fails: {push_errors[figures.name]}")
    if figures.dead_letters:
        return _row(figures, "dead_letters", figures.ready, "waiting for a decision") if figures.ready else None
    return None


def _delay(figures: Figures, known: Known, now: float) -> Row | None:
    """The most urgent reason that messages are not consumed in time."""
    name, waited = figures.name, now - figures.ready_since if figures.ready_since else 0.0
    trend = known.trend_of(name) if figures.ready >= RUSH_MESSAGES else None
    grown = _growth(figures, trend, waited) if trend else ""
    if (waited > IDLE_SECONDS or grown) and not _is_taken(figures) and not known.has_left(name):
        return _row(figures, "unconsumed", figures.ready, "nobody consumes", grown)
    if trend and grown:
        return _row(figures, "growing", figures.ready, f"{grown}: {known.slow_in(name) or _cause(figures, trend)}")
    if figures.failed:
        return _row(figures, "failing", figures.ready, f"{_rate(figures.failed)} use up their deliveries")
    if figures.delayed >= RUSH_MESSAGES and (more := known.retries_of(name)) >= max(
        RUSH_MESSAGES, figures.delayed / 5
    ):
        text = f"wait to be repeated, {more:,} more than a minute ago"
        return _row(figures, "retries", figures.delayed, text)
    if waited > OLD_SECONDS:
        return _row(figures, "old", figures.ready, "waiting for long")
    return None


def _is_taken(figures: Figures) -> bool:
    return bool(figures.waiting or figures.leased or figures.left)


# ── Growth ────────────────────────────────────────────────────────────────────────────────────────────────────


def _growth(figures: Figures, trend: Trend, waited: float) -> str:
    """By how much a queue has grown, if it grows."""
    growth, before = figures.growth or 0, trend.ready_before
    if growth >= max(RUSH_MESSAGES, (figures.ready - growth) / 4, RUSH_SECONDS * (trend.entered or 0)):
        return f"grew by {growth:,} in the last minute"
    if before is not None and figures.ready > max(before + GROWN_MESSAGES, 1.5 * before):
        return f"grew by {figures.ready - before:,.0f} in the last five minutes"
    if waited > LONG_SECONDS and growth > 0 and (before is None or figures.ready > before):
        return f"grew by {growth:,} in the last minute"
    return ""


def _cause(figures: Figures, trend: Trend) -> str:
    """Why a queue grows."""
    entered, left = trend.entered or 0.0, trend.left or 0.0
    given_back, delivered = figures.retried or 0.0, figures.delivered or 0.0
    if given_back and given_back >= _GIVEN_BACK * delivered:
        return f"many are given back: {_rate(given_back)} of {_rate(delivered)} that are delivered"
    is_rush = trend.entered_before is not None and entered > _MUCH * trend.entered_before
    if not is_rush and trend.left_before and left * _MUCH < trend.left_before:
        return f"consumers are slower: {_rate(left)} are done, {_rate(trend.left_before)} were before"
    if is_rush and trend.entered_before:
        return f"{_rate(entered)} are published, {_rate(trend.entered_before)} were before; {_rate(left)} are done"
    return f"more are published ({_rate(entered)}) than done ({_rate(left)})"


def slow_consumer(consumers: list[Consumer]) -> str:
    """Which consumer of a queue takes much longer than another one, in words."""
    timed = [(each.seconds_p50, each.consumer) for each in consumers if each.consumer and each.times >= TIMES_MIN]
    usual, slow = (sorted(timed)[at] if len(timed) > 1 else (0.0, "") for at in ((len(timed) - 1) // 2, -1))
    if not usual[0] or not slow[0] or slow[0] < _SLOWER * usual[0]:
        return ""
    return f"{slow[1]} takes {_duration(slow[0])}, {slow[0] / usual[0]:.0f} times as long as {usual[1]}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _rate(value: float) -> str:
    return f"{value:.1f}/s" if value < 10 else f"{value:,.0f}/s"


def _row(figures: Figures, reason: str, messages: int, *words: str) -> Row:
    text = "; ".join(filter(None, words))
    return {"queue": figures.name, "reason": reason, "messages": messages, "text": text} | _shape(figures)


def _shape(figures: Figures) -> Row:
    """What is true now, whatever was found before."""
    return {"growth": figures.growth, "ready_since": figures.ready_since}
