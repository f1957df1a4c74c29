"""Figures of all queues: once a second while somebody watches, and every ten seconds for the last hour.

A sample is taken once for all watchers, some queues in one turn of the event loop. The figures of a queue that did
not change are not sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from msgspec.structs import replace

from penstock.broker.figures.measures import needs_consumers
from penstock.broker.figures.tally import Tallied, Tally
from penstock.broker.figures.waits import CloseUp, LastMinute
from penstock.broker.services.attention import RUSH_MESSAGES, Flags, Known, attention, slow_consumer
from penstock.broker.services.connections import waiting_consumers
from penstock.broker.services.contract import Service
from penstock.broker.services.courier_target import CourierTarget
from penstock.broker.services.disk import DiskService
from penstock.broker.services.hour import MINUTE, SAMPLE_SECONDS, Hour
from penstock.broker.services.questions import Answers
from penstock.broker.writer.port import ServicePort
from penstock.engine.queue import Queue
from penstock.errors import Fault, RequestError
from penstock.limits import SECOND_NS, STATS_QUEUES_PER_TURN
from penstock.model.access import Access, is_own
from penstock.model.client import Client
from penstock.model.figures import (
    Figures,
    FiguresPage,
    Head,
    Live,
    ReadFigures,
    Row,
    WatchFigures,
    awaits_consumers,
    shown,
    totals,
)
from penstock.model.figures import Hour as ShownHour
from penstock.model.streams import Flow, Sink
from penstock.model.values import Nanos

_LIVE_SECONDS = 1.0
_RATE_SECONDS = 0.9  # Rates are counted over this time or longer.
_GROWING_MAX = 10  # Queues that grow are looked at closely while somebody watches, so many at most.
_DELAYED_EXAMINED = 32  # Delayed messages of a queue tell whether most are to be repeated.


class _Counters(NamedTuple):
    """What only grows. Rates are differences."""

    queue: int  # Its number: a name may be used again.
    entered: int
    left: int
    tallied: Tallied | None  # None: nobody watched.


_NEW = _Counters(0, 0, 0, None)


class _Roles(NamedTuple):
    """What queues are for, as far as their settings and names say it."""

    dead_letters: set[str]
    lasting: set[str]  # Messages stay until their retention ends: receivers have cursors, or it is a record.


class Sample:
    """All queues at one moment."""

    def __init__(self, taken: Nanos) -> None:
        self.taken = taken
        self.queues: dict[str, Figures] = {}
        self.counters: dict[str, _Counters] = {}
        self.attention: list[Row] | None = None  # Once it was asked for.

    def seen_by(self, access: Access) -> list[Figures]:
        return [figures for figures in self.queues.values() if access.sees_all or access.sees(figures.name)]

    @property
    def seconds(self) -> float:
        return self.taken / SECOND_NS


class StatsService(Service):
    def __init__(
        self,
        writer: ServicePort,
        push_error: Callable[[str], str],
        watchers_max: int,
        courier: CourierTarget,
        commits: LastMinute,
        disk: DiskService,
    ) -> None:
        super().__init__(writer)
        self._courier, self._commits, self._disk = courier, commits, disk
        self.answers: Answers = {ReadFigures: self.page, WatchFigures: self.watch}
        self._push_error = push_error
        self._watchers_max = watchers_max
        self._hour = Hour()
        self._hourly = self._base = self._latest = Sample(0)
        self._watchers: set[Watcher] = set()
        self._known_roles: _Roles | None = None
        self._flags = Flags()
        self._delayed: deque[dict[str, int]] = deque(maxlen=MINUTE + 1)  # Of queues that have many: the last minute.
        writer.on_queue.append(self._queue_changed)

    def _queue_changed(self, _: int) -> None:
        self._known_roles = None

    # ── The dialect's side ──────────────────────────────────────────────────────────────────────────────────

    async def page(self, client: Client, query: ReadFigures) -> FiguresPage:
        sample = await self._now()
        seen = sample.seen_by(client.access)
        chosen = query.sorted([figures for figures in seen if query.wants(figures)])
        rows = chosen[query.offset : query.offset + query.limit]
        head = _trimmed(self._head(sample, seen), query.queues)
        return FiguresPage(len(chosen), rows, head, self._shown_hour(seen, rows) if query.history else None)

    def _shown_hour(self, seen: list[Figures], rows: list[Figures]) -> ShownHour:
        lasting = self._roles().lasting
        names = {figures.name for figures in seen}
        awaiting = {figures.name for figures in seen if awaits_consumers(figures, lasting)}
        queues = {figures.name: hour for figures in rows if (hour := self._hour.of(figures.name))}
        return ShownHour(self._hour.times(), self._hour.of_all(names, awaiting), queues)

    def _head(self, sample: Sample, seen: list[Figures]) -> Head:
        """With all rows of `attention`; `_trimmed` leaves those that a client gets."""
        lasting, names = self._roles().lasting, {figures.name for figures in seen}
        return Head(
            round(sample.seconds, 3),
            self._totals(seen, lasting),
            [row for row in self._attention(sample) if row["queue"] in names],
            self._commits.describe(self.writer.now() / SECOND_NS),
            self._disk.disk(),
            self._couriers(),
        )

    def _attention(self, sample: Sample) -> list[Row]:
        """Of all queues, found once for a sample."""
        if sample.attention is None:
            channels = [figures.name for figures in sample.queues.values() if figures.channel]
            failing = {channel: why for channel in channels if (why := self._push_error(channel))}
            known = Known(self._hour.trend, self._hour.has_left, self._retries, self._slow)
            found = attention(list(sample.queues.values()), self._roles().lasting, failing, known, sample.seconds)
            sample.attention = self._flags.hold(found, sample.queues, sample.seconds)
        return sample.attention

    def _retries(self, name: str) -> int:
        """How many more messages than a minute ago wait to be repeated; 0 if most were never delivered."""
        queue = self.writer.engine.queue(name)
        if queue is None or not self._delayed:
            return 0
        entries = queue.delayed.peek(_DELAYED_EXAMINED, queue.rows.is_delayed)
        rows = [queue.rows.get(sequence) for _, sequence in entries]
        repeated = sum([row.receives > 0 for row in rows if row])
        return queue.delayed.live - self._delayed[0].get(name, 0) if 2 * repeated > len(rows) else 0

    def _slow(self, name: str) -> str:
        """Consumers are known of queues that somebody, or this service, looks at closely."""
        queue, tally = self.writer.engine.queue(name), self.writer.tally
        if queue is None or not tally.paces.has(queue.number):
            return ""
        texts = self.writer.engine.names.texts
        return slow_consumer(tally.consumers(queue, self.writer.now(), lambda number: texts.get(number, ""), {}))

    def _totals(self, seen: list[Figures], lasting: set[str]) -> dict[str, Any]:
        """Every shard has the broker's own queues: they are one for all, and are counted with the first."""
        summed = totals(seen, lasting)
        if self.writer.engine.shard:
            summed["queues"] -= sum(is_own(figures.name) for figures in seen)
        return summed

    def _couriers(self) -> list[dict[str, Any]]:
        """None if there is one shard."""
        lags = self._courier.lags()
        if not lags:
            return []
        source = max(lags, key=lambda shard: lags[shard])
        return [{"shard": self.writer.engine.shard, "source": source, "lag": round(lags[source], 3)}]

    async def watch(self, client: Client, query: WatchFigures) -> Flow:
        """Raises `RequestError` if there are too many watchers."""
        if len(self._watchers) >= self._watchers_max:
            raise RequestError(Fault.READER_LIMIT, str(self._watchers_max))
        watcher = Watcher(self, client.access, query)
        self.writer.tally.begin()
        sample = await self._now()
        seen = sample.seen_by(client.access)
        self._watchers.add(watcher)
        watcher.show(sample, seen, self._head(sample, seen), self._close_ups(sample))
        self.wake()
        return Flow(watcher)

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers:
            self.writer.tally.end()

    def _close_ups(self, sample: Sample) -> dict[str, Any]:
        """The waits and the consumers of the queues that somebody looks at closely, and of those that grow, so that a
        slow consumer is named. Other queues are not counted."""
        engine, tally = self.writer.engine, self.writer.tally
        growing = [row["queue"] for row in self._attention(sample) if row["reason"] == "growing"]
        names = {name for watcher in self._watchers for name in watcher.close_ups}.union(growing[:_GROWING_MAX])
        if not names:
            tally.close_ups = {}
            return {}
        queues = [queue for name in names if (queue := engine.queue(name))]
        known, texts = tally.close_ups, engine.names.texts
        tally.close_ups = {
            queue.number: each
            if (each := known.get(queue.number)) and each.queue is queue
            else CloseUp(queue, sample.taken)
            for queue in queues
        }
        waiting, now = waiting_consumers(self.writer), sample.taken
        return {
            queue.name: tally.close_ups[queue.number].describe(
                now, tally.consumers(queue, now, lambda number: texts.get(number, ""), waiting)
            )
            for queue in queues
        }

    # ── Samples ─────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        while True:
            sample = await self._next()
            if self._watchers:
                self._show_all(sample)
                await asyncio.sleep(_LIVE_SECONDS)
            else:
                await self.rest(SAMPLE_SECONDS)

    def _show_all(self, sample: Sample) -> None:
        """What watchers with the same access see is put together once."""
        watchers_of: dict[Access, list[Watcher]] = {}
        for watcher in self._watchers:
            watchers_of.setdefault(watcher.access, []).append(watcher)
        close_ups = self._close_ups(sample)
        for access, watchers in watchers_of.items():
            seen = sample.seen_by(access)
            head = self._head(sample, seen)
            for watcher in watchers:
                watcher.show(sample, seen, head, close_ups)

    async def _now(self) -> Sample:
        """What is true now, with the rates since the last sample that is old enough for them."""
        now = self.writer.now()
        is_old = now - self._latest.taken > _RATE_SECONDS * SECOND_NS
        return await self._sampled(self._latest if is_old else self._base, now)

    async def _next(self) -> Sample:
        """The latest sample, or another if that is old."""
        now = self.writer.now()
        if now - self._latest.taken > _RATE_SECONDS * SECOND_NS:
            self._commits.look(now / SECOND_NS)
            self._base, self._latest = self._latest, await self._sampled(self._latest, now)
            if now - self._hourly.taken >= (SAMPLE_SECONDS - 0.5) * SECOND_NS:
                self._hourly = await self._sampled(self._hourly, now)
                self._hour.keep(set(self._hourly.queues))
                self._hour.add(self._hourly.seconds, list(self._hourly.queues.values()))
                many = [each for each in self._hourly.queues.values() if each.delayed >= RUSH_MESSAGES]
                self._delayed.append({figures.name: figures.delayed for figures in many})
            self._attention(self._latest)
        return self._latest

    async def _sampled(self, before: Sample, now: Nanos) -> Sample:
        engine, sample = self.writer.engine, Sample(now)
        tally = self.writer.tally
        lasting = self._roles().lasting
        dead_letters = self._roles().dead_letters | self._courier.dead_letters()
        passed = (now - before.taken) / SECOND_NS if before.taken else 0.0
        queues = list(engine.queues.values())
        for start in range(0, len(queues), STATS_QUEUES_PER_TURN):
            for queue in queues[start : start + STATS_QUEUES_PER_TURN]:
                counters = _counters(queue, tally)
                rates = _rates(before.counters.get(queue.name, _NEW), counters, passed)
                waiting = self.writer.waiting(queue.name)
                growth = None if queue.name in lasting else self._growth(queue)
                sample.queues[queue.name] = _figures(queue, waiting, queue.name in dead_letters, rates, growth)
                sample.counters[queue.name] = counters
            await asyncio.sleep(0)
        return sample

    def _growth(self, queue: Queue) -> int | None:
        before = self._hour.ready_ago(queue.name, MINUTE)
        return None if before is None else queue.ready - int(before)

    def _roles(self) -> _Roles:
        if self._known_roles is None:
            queues = self.writer.engine.queues.values()
            policies = [queue.settings.redrive_policy for queue in queues]
            self._known_roles = _Roles(
                {policy.dead_letter_queue for policy in policies if policy},
                {queue.name for queue in queues if not needs_consumers(queue)},
            )
        return self._known_roles


_Rates = tuple[float, float, float | None, float | None, float | None]


def _counters(queue: Queue, tally: Tally) -> _Counters:
    tallied = tally.of(queue.number) if tally.is_wanted else None
    return _Counters(queue.number, queue.last_sequence, queue.left, tallied)


def _rates(before: _Counters, now: _Counters, seconds: float) -> _Rates:
    if before.queue != now.queue:
        before = _Counters(now.queue, 0, 0, now.tallied and Tallied())
    entered, left = _rate(before.entered, now.entered, seconds), _rate(before.left, now.left, seconds)
    if before.tallied is None or now.tallied is None:
        return entered, left, None, None, None
    delivered, retried, failed = map(_rate, before.tallied, now.tallied, (seconds,) * 3)
    return entered, left, delivered, retried, failed


def _rate(before: int, now: int, seconds: float) -> float:
    """Not negative: messages that are restored, or counted anew, did not come back through time."""
    return max(0.0, round((now - before) / seconds, 2)) if seconds and now != before else 0.0


def _figures(queue: Queue, waiting: int, dead_letters: bool, rates: _Rates, growth: int | None) -> Figures:
    since = queue.ready_since
    return Figures(
        queue.name,
        bool(queue.settings.topics),
        dead_letters,
        queue.ready,
        queue.leases.live,
        queue.delayed.live,
        queue.kept,
        queue.damaged,
        None if since is None else since // 1_000_000 / 1000,
        waiting,
        *rates,
        growth,
    )


def _trimmed(head: Head, named: AbstractSet[str] | None) -> Head:
    return replace(head, attention=shown(head.attention, named))


class Watcher:
    """One client of the stream. A slow one misses samples, and gets their sum with the next one that it takes."""

    def __init__(self, service: StatsService, access: Access, query: WatchFigures) -> None:
        self._service = service
        self._query, self.access = query, access
        self._sink: Sink | None = None
        self._unsent: Live | None = None
        self._seen: Nanos = 0  # When the sample was taken that was shown last.
        self._sent: dict[str, Figures] = {}
        self._ending = False
        self.close_ups = query.queues or frozenset() if query.consumers else frozenset()

    def pull(self, sink: Sink) -> None:
        self._sink = sink
        asyncio.get_running_loop().call_soon(self._give)

    def finish(self) -> None:
        self._ending = True
        self._give()

    def close(self) -> None:
        self._service.leave(self)

    def show(self, sample: Sample, seen: list[Figures], head: Head, close_ups: dict[str, Any]) -> None:
        if not self._unsent and sample.taken > self._seen:
            self._seen = sample.taken
            changed, removed = self._changes(seen)
            head = _trimmed(head, self._query.queues)
            self._unsent = Live(head, changed, removed, self._closely(seen, close_ups))
            self._give()

    def _give(self) -> None:
        """Pass on what there is, if the client has taken what was sent before."""
        if self._sink and self._ending:
            self._sink.end()
        elif self._sink and self._unsent:
            sink, self._sink = self._sink, None
            live, self._unsent = self._unsent, None
            sink.give(live)

    def _closely(self, seen: list[Figures], close_ups: dict[str, Any]) -> dict[str, Any] | None:
        if not self.close_ups:
            return None
        names = [figures.name for figures in seen if figures.name in self.close_ups]
        return {name: close_ups[name] for name in names if name in close_ups}

    def _changes(self, seen: list[Figures]) -> tuple[list[Figures], list[str]]:
        shown = {figures.name: figures for figures in seen if self._query.wants(figures)}
        changed = {name: figures for name, figures in shown.items() if self._sent.get(name) != figures}
        removed = [name for name in self._sent if name not in shown]
        self._sent = shown
        return list(changed.values()), removed
