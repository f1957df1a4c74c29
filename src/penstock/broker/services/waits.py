"""Clients that wait until messages are taken, or done.

A message in one plain queue is followed: the event that ends it says everything. One that has just ended is known to
the writer (`Recent`). For any other the log is read, and read again when something happens to it: one with copies,
one that several consumers have to confirm, a dead letter, or one that ended long ago.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from penstock.broker.figures.measures import Samples, one
from penstock.broker.quotas.meter import Poll
from penstock.broker.quotas.work import over_quota, payer
from penstock.broker.services.contract import Service
from penstock.broker.services.courier_source import CourierSource
from penstock.broker.services.message_traces import MessageTraces
from penstock.broker.writer.port import ServicePort
from penstock.errors import Fault, PenstockError, Reason, RequestError
from penstock.limits import SECOND_NS, WAIT_GATHER_SECONDS, WAIT_LOOK_SECONDS, WAIT_TRACES_MAX, WAITED_MAX
from penstock.model.answers import Answer, Refused
from penstock.model.client import Cancelable, Client, Pending
from penstock.model.commands import AwaitMessage
from penstock.model.happening import Happening
from penstock.model.kinds import ENDS, Kind
from penstock.model.lifecycle import DELAYED, LEASED, READY
from penstock.model.outcomes import Outcome, Part, Progress, Until, away, outcome_of, progress_of
from penstock.model.queries import Failed, failure
from penstock.model.traces import TextOf
from penstock.model.values import Nanos, Place, Stage
from penstock.model.waits import AwaitMessages, Fate, Waited, fate_of

Reached = Outcome | PenstockError
_UNKNOWN = (Reason.NO_MESSAGE, Fault.MESSAGE_REMOVED)
Reply = Callable[[Mapping[Place, Reached]], None]


class Waits(Service):
    def __init__(self, writer: ServicePort, traces: MessageTraces, source: CourierSource, name: TextOf) -> None:
        super().__init__(writer)
        self._name = name
        self.courier_source = source
        self.tracing = asyncio.Semaphore(WAIT_TRACES_MAX)
        self.open: set[Wait] = set()
        self._traces = traces
        self._messages = 0

    def take(self, client: Client, query: AwaitMessages, reply: Callable[[Waited | Failed], None]) -> Pending | None:
        """The home of a message decides whether the client may wait for it; others are asked after that."""
        is_asked_first = query.part in ("all", "home") and not query.reads
        unknown = self._refused(client, query.places) if is_asked_first else {}
        places = [place for place in query.places if place not in unknown]
        seconds = 0 if unknown else query.seconds  # That is an answer already.

        def give(reached: Mapping[Place, Reached]) -> None:
            known = {place: self._shown(what) for place, what in reached.items()}
            reply(Waited([*known.items(), *unknown.items()]))

        if not places:
            give({})
            return None
        try:
            return self.begin(places, query.until, seconds, give, part=query.part)
        except RequestError as error:
            reply(failure(error))
            return None

    def _refused(self, client: Client, places: Iterable[Place]) -> dict[Place, Failed]:
        found = {place: self.writer.refusal(client, AwaitMessage(*place)) for place in places}
        return {place: Failed(each.reason.code, each.sentence) for place, each in found.items() if each}

    def _shown(self, what: Reached) -> Fate | Failed:
        if isinstance(what, Outcome):
            return fate_of(what, self._name)
        return Failed((what.error if isinstance(what, RequestError) else Fault.UNREADABLE).code, str(what))

    def begin(
        self, places: Sequence[Place], until: Until, seconds: float, reply: Reply, *, part: Part = "all"
    ) -> Wait | Poll:
        """Call `reply` once: as soon as some of the messages have come so far, or when the time is over. Raises
        `RequestError` if too many are waited for."""
        meter = payer()
        if meter is None or not seconds:
            return self._begin(places, until, seconds, reply, part)
        if refused := meter.wait_refused():
            raise over_quota(refused)
        poll = Poll(meter, reply)
        try:
            poll.pending = self._begin(places, until, seconds, poll.answer, part)
        except RequestError:
            poll.cancel()
            raise
        return poll

    def _begin(self, places: Sequence[Place], until: Until, seconds: float, reply: Reply, part: Part) -> Wait:
        if self._messages + len(places) > WAITED_MAX:
            raise RequestError(Fault.WAIT_LIMIT, str(WAITED_MAX))
        self._messages += len(places)
        wait = Wait(self, places, until, reply, part)
        self.open.add(wait)
        wait.begin(seconds)
        return wait

    def end(self, wait: Wait) -> None:
        self.open.discard(wait)
        self._messages -= len(wait.places)

    def start(self) -> None:
        """Whoever still waits after a failure of the log asks again: what was followed may never have happened."""
        super().start()
        self._give_up_all()

    async def stop(self) -> None:
        self._give_up_all()
        await super().stop()

    def _give_up_all(self) -> None:
        for wait in list(self.open):
            wait.give_up()

    def state(self) -> Iterator[tuple[str, Samples]]:
        yield "penstock_waited_messages", one(self._messages)

    # ── For each wait ───────────────────────────────────────────────────────────────────────────────────────

    def is_plain(self, place: Place, until: Until) -> bool:
        """Is it certain that a message has not come so far, and that an event at this place will tell?"""
        engine, recent = self.writer.engine, self.writer.recent
        queue = engine.queues.get(place[0])
        row = queue.rows.get(place[1]) if queue else None
        if queue is None or row is None or row.state not in (READY, DELAYED, LEASED):
            return False
        is_shared = queue.settings.keep == "all" or queue.settings.confirmations > 1
        is_moved = place in engine.origins
        is_alone = not row.topics or (recent.is_alone(place, row.created) and not self.courier_source.others)
        return is_alone and not is_shared and not is_moved and (until == "done" or not row.receives)

    def is_gone(self, place: Place) -> bool:
        return self.writer.engine.find(*place) is None

    async def progress(self, place: Place, until: Until) -> Progress:
        async with self.tracing:
            now = self.writer.now()
            return await self._traces.look_up(place, lambda traced: progress_of(traced, until, now))


class Wait:
    """One client that waits for messages."""

    def __init__(self, waits: Waits, places: Sequence[Place], until: Until, reply: Reply, part: Part) -> None:
        self.places = places
        self._waits = waits
        self._writer = waits.writer
        self._until = until
        self._part = part
        self._reply: Reply | None = reply
        self._reached: dict[Place, Reached] = {}
        self._followers: dict[Place, Cancelable] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unseen: set[Place] = set()  # What happened to these before is not known yet.
        self._is_late = False  # The time is over, and only these are waited for.
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Handle | None = None

    def begin(self, seconds: float) -> None:
        recent = self._writer.recent
        recent.ask(self._writer.now())
        ended: dict[Place, Outcome] = {}
        for place in self.places:
            if self._waits.is_plain(place, self._until):
                self._followers[place] = self._writer.follow(*place, partial(self._happened, place))
            elif self._waits.is_gone(place) and (end := recent.end_of(place)):
                ended[place] = _ended(end)
            else:
                self._look(place)
        if ended:
            self._unseen.update(ended)
            self._writer.reach(Stage.SYNC, partial(self._ended, ended))
        self._timer = self._loop.call_later(seconds, self._time_is_over, max(0.0, WAIT_LOOK_SECONDS - seconds))

    def give_up(self) -> None:
        """Answer with what there is."""
        if self._reply:
            reply = self._reply
            self.cancel()
            reply(self._reached)

    def cancel(self) -> None:
        """The client has gone away, or has its answer."""
        if not self._reply:
            return
        self._reply = None
        self._waits.end(self)
        for handle in (self._timer, self._answering, *self._followers.values(), *self._tasks):
            if handle:
                handle.cancel()

    def _time_is_over(self, more_seconds: float) -> None:
        """What happened before is reported even to a client that does not wait, unless it takes too long to find."""
        if self._unseen and more_seconds:
            self._is_late = True
            self._stop_gathering()
            self._timer = self._loop.call_later(more_seconds, self._time_is_over, 0.0)
        else:
            self.give_up()

    def _see(self, places: Iterable[Place]) -> None:
        """It is known what happened to these before."""
        self._unseen.difference_update(places)
        if self._is_late and not self._unseen:
            self._answering = self._loop.call_soon(self.give_up)

    # ── What has happened ───────────────────────────────────────────────────────────────────────────────────

    def _reach(self, found: Mapping[Place, Reached]) -> None:
        """Answer when this turn is over, so that all that one commit brings is in one answer."""
        self._reached.update(found)
        self._see(found)
        if self._unseen and (self._is_late or self._answering):
            return
        self._stop_gathering()
        if self._reply:
            self._answering = self._loop.call_later(WAIT_GATHER_SECONDS if self._unseen else 0, self.give_up)

    def _stop_gathering(self) -> None:
        if self._answering:
            self._answering.cancel()
            self._answering = None

    def _ended(self, ended: Mapping[Place, Outcome], answer: Answer) -> None:
        if isinstance(answer, Refused):
            self.give_up()
        else:
            self._reach(ended)

    def _happened(self, place: Place, what: Happening) -> None:
        outcome = outcome_of(what, self._until)
        if what.kind == Kind.SENT:
            self._followers.pop(place).cancel()
            self._look(place)
        elif outcome and (what.kind not in ENDS or self._waits.is_gone(place)):
            self._reach({place: outcome})
        elif outcome or what.kind == Kind.DEAD_LETTERED:
            self._followers.pop(place).cancel()
            self._look(place)

    # ── What the log knows ──────────────────────────────────────────────────────────────────────────────────

    def _look(self, place: Place) -> None:
        self._unseen.add(place)
        task = asyncio.create_task(self._trace(place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _trace(self, place: Place) -> None:
        """Read what the log knows, and again whenever something happens to the message. The message is followed
        before the log is read, so nothing is missed."""
        woken = asyncio.Event()
        followers: dict[Place, Cancelable] = {}
        try:
            while True:
                woken.clear()
                _follow(self._writer, followers, [place, *followers], woken)
                progress = await self._progress(place)
                if progress.outcome:
                    break
                if self._part == "copies" and progress.is_away and not progress.is_copy:
                    raise RequestError(Fault.MESSAGE_REMOVED)  # Here was the original.
                if self._is_home and (progress.is_away or (self._until == "taken" and self._is_promised(progress))):
                    await self._copies(progress)
                    raise away()
                if followers.keys() >= {*progress.places}:
                    self._see([place])
                    await self._rest(woken, progress.look_again_at)
                else:
                    _follow(self._writer, followers, progress.places, woken)
            reached: Reached = await self._with_copies(progress.outcome, progress)
        except PenstockError as error:
            reached = error
        finally:
            for follower in followers.values():
                follower.cancel()
        self._reach({place: reached})

    @property
    def _is_home(self) -> bool:
        return self._part in ("all", "home")

    def _is_promised(self, progress: Progress) -> bool:
        return progress.promised > 0 and bool(self._waits.courier_source.others)

    async def _copies(self, progress: Progress) -> None:
        """Wait until other shards have their copies, so that they can be asked about them."""
        if self._is_promised(progress) and self._until == "done":
            await self._waits.courier_source.all_have(progress.promised)

    async def _with_copies(self, outcome: Outcome, progress: Progress) -> Outcome:
        """It has ended here. Where it was published, or was moved to, others are asked about copies then."""
        if self._until == "taken" or self._part not in ("home", "moved") or not self._is_promised(progress):
            return outcome
        if self._part == "home":
            await self._copies(progress)
        return replace(outcome, is_copied=True)

    async def _progress(self, place: Place) -> Progress:
        """A message that is not known here may come, if others are asked too."""
        nothing = Progress(None, [place])
        try:
            found = await self._waits.progress(place, self._until)
        except RequestError as error:
            if self._part not in ("moved", "any") or error.error not in _UNKNOWN:
                raise
            return nothing
        return nothing if found.is_copy and self._part == "moved" else found

    async def _rest(self, woken: asyncio.Event, until: Nanos | None) -> None:
        seconds = None if until is None else max(until - self._writer.now(), 0) / SECOND_NS + 0.001
        try:
            async with asyncio.timeout(seconds):
                await woken.wait()
        except TimeoutError:
            pass


def _ended(end: Happening) -> Outcome:
    outcome = outcome_of(end, "done")
    assert outcome is not None, f"{end.kind.name} does not end a message"
    return outcome


def _follow(
    writer: ServicePort, followers: dict[Place, Cancelable], places: Iterable[Place], woken: asyncio.Event
) -> None:
    """Follow these places, anew if they are followed already: after an event that may end a message, a follower is
    gone."""
    for place in places:
        if place in followers:
            followers[place].cancel()
        followers[place] = writer.follow(*place, lambda _: woken.set())
