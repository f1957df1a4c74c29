"""Where each question is asked, and how the answers of several shards join: one row a question."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import Answering, ClientPort, Reply
from penstock.cluster.links.fellow import FellowOf, unknown
from penstock.cluster.links.flows import at_one_moment, close, in_step
from penstock.cluster.routing import merged_events
from penstock.cluster.routing.asking import Asking, Lead, Leading, answer_of
from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.cluster.routing.messages import reported
from penstock.cluster.routing.waits import awaited
from penstock.errors import Fault, RequestError
from penstock.limits import FIGURES_SECONDS_MAX, HEALTH_SECONDS_MAX
from penstock.model import (
    backups,
    connections,
    consumers,
    event_log,
    figures,
    health,
    jobs,
    message_reports,
    metrics,
    pushes,
    searches,
    staging,
    waits,
    workers,
)
from penstock.model.access import is_own
from penstock.model.client import Client
from penstock.model.client import Pending as PendingAnswer
from penstock.model.queries import (
    INTERNAL,
    Absent,
    Ask,
    Heard,
    NoAnswer,
    Page,
    Pages,
    Query,
    failure,
    first_page,
    next_page,
)
from penstock.model.searches import WrongCursor

logger = logging.getLogger(__name__)

# ── Ways ──────────────────────────────────────────────────────────────────────────────────────────────────────


class At(Struct, frozen=True):
    """Asked of one shard."""

    shard_of: Callable[[Any, ShardMap], int]


class Everywhere(Struct, frozen=True):
    """Asked of all shards. `join`: of the question, and the answers in the order of the shards."""

    join: Callable[[Any, Sequence[Any]], Any]
    is_whole: bool = True  # If one shard does not answer, there is no answer. Else `join` decides.

    def joined(self, query: Query, answers: Sequence[Any]) -> Any:
        return (_missing(answers) if self.is_whole else None) or self.join(query, answers)


class Counted(Struct, frozen=True):
    """Asked of the shards that this process answers for. Nobody waits for one that is late: it is `Absent`."""

    join: Callable[[Any, Sequence[Heard]], Any]
    seconds: float  # How long another process may take.


class InStep(Struct, frozen=True):
    """Asked of all shards, whose flows are one. `join`: what joins one piece of each, for a question."""

    join: Callable[[Any], Callable[[list[Any]], Any]]

    def joined(self, query: Query, flows: Sequence[Any]) -> Any:
        return _missing(flows) or in_step(flows, self.join(query))


class Cut(Struct, frozen=True):
    """Asked of some shards, each of something else. `join`: of the question, and the answers by shard."""

    parts: Callable[[Any, int], Mapping[int, Query] | WrongCursor]
    join: Callable[[Any, Mapping[int, Any]], Any]


class AtOneMoment(Struct, frozen=True):
    """All shards stand still until each has noted its state. `join`: of the queues that are elsewhere, and the
    states."""

    part: Query
    join: Callable[[Mapping[str, int], Sequence[Any]], Any]

    async def joined(self, flows: Sequence[Any], elsewhere: Mapping[str, int]) -> Any:
        if missing := _missing(flows):
            return missing
        states = await at_one_moment(flows)
        return self.join(elsewhere, states) if states else failure(RequestError(Fault.NO_MOMENT))


class Led(Struct, frozen=True):
    """Asked of one shard after another, as their answers lead. `lead` makes the answer."""

    lead: Lead


Joined = Everywhere | Counted | InStep | Cut | AtOneMoment
Way = At | Joined | Led
Row = Way | Callable[[Any], Way]


def _found_in(queue: At, anywhere: Cut) -> Callable[[Any], Way]:
    """Every shard has the broker's own queues."""
    return lambda query: queue if query.queue and not is_own(query.queue) else anywhere


def _one_or(otherwise: Joined) -> Callable[[Any], Way]:
    """Of the shard that is named, or of all."""
    return lambda query: otherwise if query.shard is None else _NUMBERED


def _missing(answers: Iterable[Any]) -> NoAnswer | None:
    """Why there is no answer if one shard gives none; then flows of the others go nowhere."""
    answers = list(answers)
    missing = next((answer for answer in answers if isinstance(answer, NoAnswer)), None)
    if missing:
        for answer in answers:
            close(answer)
    return missing


_NUMBERED: Final = At(lambda query, _: query.shard)

_NAMED: Final = At(lambda query, shards: shards.of_name(query.queue))

_ADMINISTRATION: Final = At(lambda _, __: ADMINISTRATION)

QUESTIONS: Final[dict[type[Query], Row]] = {
    consumers.ListConsumers: Everywhere(consumers.joined),
    connections.ListConnections: Everywhere(connections.joined),
    figures.ReadFigures: Everywhere(figures.joined),
    figures.WatchFigures: InStep(figures.Lives),
    pushes.ReadPushes: Everywhere(pushes.known, is_whole=False),
    **dict.fromkeys((pushes.CheckPush, connections.CountReaders), _NAMED),
    jobs.ListJobs: Everywhere(jobs.all_jobs),
    **dict.fromkeys((jobs.FindJob, jobs.EndJob), Everywhere(jobs.the_one, is_whole=False)),
    **dict.fromkeys((workers.ListWorkers, workers.NoteWorker, workers.RemoveWorker), _ADMINISTRATION),
    staging.CommitStaged: _ADMINISTRATION,
    jobs.StartPurge: _NAMED,
    jobs.StartRedrive: At(lambda query, shards: shards.of_name(query.order.criteria.queue)),
    **dict.fromkeys(
        (searches.SearchMessages, searches.ReadScheduled), _found_in(_NAMED, Cut(searches.parts, searches.joined))
    ),
    waits.AwaitMessages: Led(awaited),
    message_reports.TraceMessage: Led(reported),
    health.ReadHealth: Counted(health.worst, HEALTH_SECONDS_MAX),
    metrics.ReadMetrics: Counted(metrics.joined, FIGURES_SECONDS_MAX),
    event_log.ReadEvents: _one_or(Cut(event_log.parts, merged_events.joined)),
    event_log.DescribeLog: _one_or(Everywhere(event_log.described)),
    event_log.ReadLog: _NUMBERED,
    backups.ReadBackup: _one_or(AtOneMoment(backups.StandStill(), backups.joined)),
    **dict.fromkeys(
        (backups.StandStill, backups.ReadBackupLog, backups.ReadSnapshot, backups.ReadHistory), _NUMBERED
    ),
}


# ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────


class Questions:
    """Asks shards, wherever they are."""

    def __init__(
        self,
        shards: ShardMap,
        ports: Sequence[ClientPort],
        counted: Callable[[], Sequence[int]] | None = None,
        home: Ask | None = None,
        fellow: FellowOf = unknown,
    ) -> None:
        """`ports`: one a shard. `counted`: the shards that this process answers for; all, unless it is given. `home`:
        who answers if there are none. `fellow`: who has a shard."""
        self._shards, self._ports = shards, ports
        self._counted = counted or (lambda: range(shards.shards))
        self._home = home
        self._fellow = fellow

    def ask(self, client: Client, query: Query, reply: Reply) -> PendingAnswer | None:
        row = QUESTIONS[type(query)]
        way = row(query) if callable(row) else row
        if isinstance(way, At):
            return self._ports[way.shard_of(query, self._shards)].ask(client, query, reply)
        if isinstance(way, Led):
            return Leading(way.lead, Asking(self._shards, self._ports, client), query, reply)
        return Answering(asyncio.create_task(self._answer(way, client, query, reply)))

    async def _answer(self, way: Joined, client: Client, query: Query, reply: Reply) -> None:
        try:
            answer = await self._joined(way, client, query)
        except Exception:
            logger.exception("merge_failed")
            answer = INTERNAL
        reply(answer)

    async def _joined(self, way: Joined, client: Client, query: Query) -> Any:
        if isinstance(way, Counted):
            return await self._counted_answer(way, client, query)
        if isinstance(way, Cut):
            return await self._cut(way, client, query)
        if isinstance(way, AtOneMoment):
            return await way.joined(await self._all(client, way.part), self._shards.elsewhere)
        return way.joined(query, await self._all(client, query))

    async def _all(self, client: Client, query: Query) -> list[Any]:
        return await _answers_of([self._of(shard, client, query) for shard in range(self._shards.shards)])

    async def _cut(self, row: Cut, client: Client, query: Query) -> Any:
        found = row.parts(query, self._shards.shards)
        if isinstance(found, WrongCursor):
            return found
        answers = await _answers_of([self._of(shard, client, part) for shard, part in found.items()])
        return _missing(answers) or row.join(query, dict(zip(found, answers, strict=True)))

    async def _of(self, shard: int, client: Client, query: Query) -> Any:
        """The answer of one shard. Of rows, it has as many as all shards together may have to show."""
        ask = self._ports[shard].ask
        if not isinstance(query, Pages):
            return await answer_of(ask, client, query)
        answer = await answer_of(ask, client, first_page(query))
        while isinstance(answer, Page) and answer.shown < answer.all and (more := next_page(query, answer.shown)):
            page = await answer_of(ask, client, more)
            if not isinstance(page, Page):
                return page
            if not page.shown:
                break
            answer.extend(page)
        return answer

    async def _counted_answer(self, row: Counted, client: Client, query: Query) -> Any:
        shards = self._counted()
        if not shards:
            assert self._home, "a process without shards has somebody who answers"
            return await answer_of(self._home, client, query)
        answers = await asyncio.gather(*[self._soon(shard, row.seconds, client, query) for shard in shards])
        return row.join(query, answers)

    async def _soon(self, shard: int, seconds: float, client: Client, query: Query) -> Heard:
        """Another process is not asked if it is silent."""
        fellow, ask = self._fellow(shard), self._ports[shard].ask
        if fellow is None or fellow.is_this:
            return Heard(shard, fellow and fellow.number, await answer_of(ask, client, query))
        answer = None if fellow.is_late else await answer_of(ask, client, query, seconds)
        if answer is None or isinstance(answer, NoAnswer):  # Its process may have ended meanwhile.
            fellow = self._fellow(shard) or fellow
            answer = Absent(fellow.state, fellow.is_away)
        return Heard(shard, fellow.number, answer)


async def _answers_of(asked: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """In the same order. Flows that come when nobody waits for them any more are closed."""
    tasks = [asyncio.create_task(each) for each in asked]
    try:
        return await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.add_done_callback(_drop)
        raise


def _drop(task: asyncio.Task[Any]) -> None:
    if not (task.cancelled() or task.exception()):
        close(task.result())
