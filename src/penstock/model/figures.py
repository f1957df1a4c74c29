"""Figures of queues at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, cast

from msgspec import Struct
from msgspec.structs import replace

from penstock.model.access import is_own
from penstock.model.disk import Disk, together
from penstock.model.queries import Page, Pages, Query
from penstock.model.values import Packed

CLOSE_UPS_MAX = 10
"""So many queues may be watched with their consumers in one stream."""

SORTED_BY = (
    *("name", "ready", "growth", "leased", "delayed", "dead"),
    *("ready_since", "waiting", "in", "out", "retried", "failed"),
)


Row = dict[str, Any]  # Of what needs a person.
Totals = dict[str, Any]  # Numbers by name; None: not counted.
Columns = dict[str, list[float | None]]


class Figures(Struct, frozen=True, gc=False, rename={"entered": "in", "left": "out"}):
    """One queue at one moment. Rates are messages a second; None: not counted in that time."""

    name: str
    channel: bool
    dead_letters: bool  # Another queue names it as its dead-letter queue.
    ready: int
    leased: int
    delayed: int
    kept: int
    damaged: int
    ready_since: float | None  # Seconds since the epoch: when the message that waits longest became ready.
    waiting: int  # Clients that wait for a message.
    entered: float
    left: float
    delivered: float | None
    retried: float | None
    failed: float | None
    growth: int | None = None  # Ready messages more, or fewer, than a minute ago; None if they wait for nobody.

    @property
    def dead(self) -> int:
        return self.ready if self.dead_letters else 0


class WatchFigures(Query, frozen=True):
    """The figures of queues once a second, as a flow of `Live`."""

    waits_for_log: ClassVar[bool] = False

    queues: frozenset[str] | None = None  # Exactly these; None: all.
    consumers: bool = False  # With the waits and the consumers of the queues, which are named.

    def wants(self, figures: Figures) -> bool:
        return self.queues is None or figures.name in self.queues


class ReadFigures(Pages, frozen=True):
    """The figures of queues now."""

    name: str = ""  # A part of the name, in any case.
    queues: frozenset[str] | None = None  # Exactly these; None: all.
    dead_letters: bool = False  # Only dead-letter queues.
    sort: str = "name"
    descending: bool = False
    history: bool = False  # With the last hour.

    def wants(self, figures: Figures) -> bool:
        return (
            (self.queues is None or figures.name in self.queues)
            and self.name in figures.name.lower()
            and (figures.dead_letters or not self.dead_letters)
        )

    def sorted(self, found: list[Figures]) -> list[Figures]:
        return sorted(found, key=sort_key(self.sort), reverse=self.descending)


class Head(Struct, frozen=True):
    """What is about all queues that a client sees."""

    time: float
    totals: Totals
    attention: list[Row]
    commits: dict[str, Any]
    disk: Disk
    couriers: list[dict[str, Any]]  # Empty if there is one shard.


class Hour(Struct, frozen=True):
    """The last hour: one value for each of `times`; None is a gap."""

    times: list[float]
    totals: Columns
    queues: dict[str, Columns]


class FiguresPage(Page, frozen=True):
    rows: list[Figures]
    head: Head
    hour: Hour | None

    def extend(self, page: FiguresPage) -> None:
        self.rows.extend(page.rows)
        if self.hour and page.hour:
            self.hour.queues.update(page.hour.queues)


class Live(Packed, frozen=True):
    """What has changed since the last one."""

    head: Head
    queues: list[Figures]
    removed: list[str]
    consumers: dict[str, Any] | None


def sort_key(field: str) -> Callable[[Figures], Any]:
    """By which figure to sort. A queue where nothing waits, or nothing was counted, comes first."""
    attribute = {"in": "entered", "out": "left"}.get(field, field)
    if field == "name":
        return lambda figures: figures.name
    if field == "ready_since":  # The longest wait is the highest.
        return lambda figures: (-figures.ready_since if figures.ready_since else -float("inf"), figures.name)
    return lambda figures: (cast("float", getattr(figures, attribute)) or 0, figures.name)


def awaits_consumers(figures: Figures, lasting: AbstractSet[str]) -> bool:
    return not figures.dead_letters and figures.name not in lasting


_ADDED = tuple(
    name for name in Figures.__struct_fields__ if name not in ("name", "channel", "dead_letters", "ready_since")
)
SUMMED = ("ready", "leased", "delayed", "kept", "damaged", "dead", "waiting", "entered", "left")

COUNTED = ("delivered", "retried", "failed")


def totals(all_figures: list[Figures], lasting: AbstractSet[str]) -> dict[str, Any]:
    """All queues together. `lasting`: queues whose messages stay, consumed or not; they wait for nobody. So `ready`
    has neither these nor dead letters."""
    columns = {field: sum([getattr(each, field) for each in all_figures]) for field in SUMMED}
    if any(each.delivered is not None for each in all_figures) or not all_figures:
        counted = {field: sum([getattr(each, field) or 0 for each in all_figures]) for field in COUNTED}
    else:
        counted = dict.fromkeys(COUNTED)
    waiting = [each for each in all_figures if awaits_consumers(each, lasting)]
    columns["lasting"] = sum([each.ready for each in all_figures if each.name in lasting and not each.dead_letters])
    columns["ready"] = sum([each.ready for each in waiting])
    since = min([each.ready_since for each in waiting if each.ready_since], default=None)
    summed = columns | counted
    summed["in"], summed["out"] = round(summed.pop("entered"), 2), round(summed.pop("left"), 2)
    return {"queues": len(all_figures), **summed, "ready_since": since}


SHOWN_MAX = 50

_ORDER = ("damaged", "push", "growing", "unconsumed", "failing", "retries", "old", "dead_letters")
"""What cannot be delivered at all, then what gets worse, then what only waits."""


def shown(rows: list[Row], named: AbstractSet[str] | None) -> list[Row]:
    """The most urgent, and those of the queues that a client has named."""
    others = [row for row in rows[SHOWN_MAX:] if row["queue"] in named] if named else []
    return rows[:SHOWN_MAX] + others


def urgency(row: Row) -> tuple[int, int, str]:
    """The most urgent is the least. Dead letters that become more are as urgent as what fails."""
    gets_worse = row["reason"] == "dead_letters" and (row["growth"] or 0) > 0
    return _ORDER.index("failing" if gets_worse else row["reason"]), -row["messages"], row["queue"]


# ── Several shards ────────────────────────────────────────────────────────────────────────────────────────────


def joined(query: ReadFigures, pages: Sequence[FiguresPage]) -> FiguresPage:
    found = [row for page in pages for row in page.rows]
    rows = query.sorted(_joined(found))
    shown_rows = rows[query.offset : query.offset + query.limit]
    total = sum([page.total for page in pages]) - (len(found) - len(rows))
    hours = [page.hour for page in pages if page.hour]
    hour = _hour(hours, {row.name for row in shown_rows}) if hours else None
    return FiguresPage(total, shown_rows, joined_head([page.head for page in pages], query.queues), hour)


class Lives:
    """Joins what all shards have said at about the same time."""

    def __init__(self, query: WatchFigures) -> None:
        self._named = query.queues
        self._own: dict[tuple[int, str], Figures] = {}  # The last row of each shard about a queue that all have.

    def __call__(self, lives: Sequence[Live]) -> Live:
        changed = [(shard, row) for shard, live in enumerate(lives) for row in live.queues]
        self._own |= {(shard, row.name): row for shard, row in changed if is_own(row.name)}
        rows = _joined([row for _, row in changed if not is_own(row.name)] + list(self._own.values()))
        removed = [name for live in lives for name in live.removed]
        close_ups = [live.consumers for live in lives if live.consumers is not None]
        consumers = {name: found for each in close_ups for name, found in each.items()} if close_ups else None
        return Live(joined_head([live.head for live in lives], self._named), rows, removed, consumers)


def _joined(rows: list[Figures]) -> list[Figures]:
    """One row for each queue: every shard has the broker's own."""
    own: dict[str, list[Figures]] = {}
    others: list[Figures] = []
    for row in rows:
        if row.name[0] == "_" and is_own(row.name):  # There may be thousands of others.
            own.setdefault(row.name, []).append(row)
        else:
            others.append(row)
    return others + [_sum_of(same) for same in own.values()]


def _sum_of(rows: list[Figures]) -> Figures:
    summed = {name: _sum([getattr(row, name) for row in rows]) for name in _ADDED}
    since = min([row.ready_since for row in rows if row.ready_since is not None], default=None)
    return replace(rows[0], ready_since=since, **summed)


def joined_head(heads: Sequence[Head], named: AbstractSet[str] | None) -> Head:
    return Head(
        max([head.time for head in heads]),
        _joined_totals([head.totals for head in heads]),
        shown(sorted([row for head in heads for row in head.attention], key=urgency), named),
        _joined_commits([head.commits for head in heads]),
        together([head.disk for head in heads]),
        [row for head in heads for row in head.couriers],
    )


def _joined_commits(shards: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the slowest shard."""
    return {
        "count": sum([each["count"] for each in shards]),
        "p99": max([each["p99"] for each in shards if each["p99"] is not None], default=None),
        "busy": max([each["busy"] for each in shards]),
    }


def _joined_totals(all_totals: list[Totals]) -> Totals:
    """What was not counted in a shard is not known at all, unless the shard has no queues."""
    joined: Totals = {}
    for name in all_totals[0]:
        values = [each[name] for each in all_totals]
        if name == "ready_since":
            joined[name] = min([value for value in values if value is not None], default=None)
        elif name in COUNTED and any(each[name] is None for each in all_totals if each["queues"]):
            joined[name] = None
        else:
            joined[name] = round(sum([value for value in values if value is not None]), 2)
    return joined


def _hour(hours: list[Hour], names: AbstractSet[str]) -> Hour:
    """The samples of the shards are taken at times of their own: each is shown with the nearest before its end."""
    longest = max(hours, key=lambda hour: len(hour.times))
    size = len(longest.times)
    columns = {
        field: [_sum(values) for values in zip(*[_last(hour.totals[field], size) for hour in hours], strict=True)]
        for field in longest.totals
    }
    queues = {
        name: {field: _last(values, size) for field, values in found.items()}
        for hour in hours
        for name, found in hour.queues.items()
        if name in names
    }
    return Hour(longest.times, columns, queues)


def _last(values: list[float | None], size: int) -> list[float | None]:
    return [*[None] * (size - len(values)), *values]


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if known else None
