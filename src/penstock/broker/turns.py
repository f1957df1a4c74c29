"""How connections share the event loop, so that one that asks for much does not make the others wait.

A read that holds one small request is handled at once. It is *light*, and costs nothing here but a count. If a read
holds more, the connection handles a first part, keeps the rest, reads nothing more for now, and joins a rotation. In
each turn of the event loop the rotation hands out parts, round and round, until its time is used up. Answers that
take long to make are made in the same rotation, part by part.

While light requests arrive, the others are *crowded*: their parts are small, and they pause while a light request
waits for the disk, for a millisecond at most. A connection that has the broker to itself gets large parts and never
pauses.

Turns are given to clients, and not to connections: a hundred connections of one identity, or of one address, have the
turns of one. What a client pays is time, whatever it was spent on: the one that has had the least comes next. Work
that takes long to read is decided in the same turn, so that its price is known. While light requests arrive, all
others together rest twice as long as they have worked.

The time that each takes is also counted for the quotas of its client. A client over its quota joins the rotation
again when it has recovered: what it has sent waits, and nothing more is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from penstock.broker.quotas.meter import Meter
from penstock.limits import (
    QUOTA_REST_SECONDS_MIN,
    TURN_BEGIN_CROWDED_SECONDS,
    TURN_BEGIN_SECONDS,
    TURN_CLIENTS_MAX,
    TURN_COSTLY_CROWDED_SECONDS,
    TURN_COSTLY_SECONDS,
    TURN_CROWDED_PARTS_MAX,
    TURN_CROWDED_SECONDS,
    TURN_DEBT_SECONDS_MAX,
    TURN_LIGHT_SECONDS,
    TURN_MANY,
    TURN_QUIET_SECONDS,
    TURN_REMEMBER_SECONDS,
    TURN_REST,
    TURN_REST_SECONDS_MAX,
    TURN_SECONDS,
)

logger = logging.getLogger(__name__)

_QUOTA = "work_seconds_per_second"


class Taker(Protocol):
    """Something that has more to do than fits into one turn. `meter`, if there is one, counts its time. `client`:
    whose turn it takes. `was_cheap`: its last turn was."""

    was_cheap: bool

    @property
    def meter(self) -> Meter | None: ...

    @property
    def client(self) -> Hashable: ...

    def take_turn(self, *, crowded: bool) -> bool:
        """Do one part, a small one if crowded. True: there is more to do now."""


class _Client:
    """Those of one client that wait for a turn, in their order."""

    __slots__ = ("dear_until", "is_queued", "rest_until", "spent", "takers")

    def __init__(self, spent: float) -> None:
        self.spent = spent  # Seconds, counted from where the others were when it came.
        self.dear_until = 0.0  # It has taken much lately: what it sends that is cheap is not light.
        self.rest_until = 0.0  # While others are crowded, it begins nothing out of turn.
        self.takers: deque[Taker] = deque()
        self.is_queued = False


class Turns:
    """The rotation of one broker. `busy`: whether something waits for the disk. `decide`: decides the commands that
    were collected."""

    def __init__(
        self,
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
        decide: Callable[[], None] = lambda: None,
    ) -> None:
        self.light = 0  # Reads that were handled at once. The connection that handles one counts it.
        self._busy = busy
        self._clock = clock
        self._decide = decide
        self._light_seen = 0
        self._light_at = 0.0  # When light requests were last seen.
        self._crowded_until = 0.0
        self._dear_until = 0.0  # The latest of any client.
        self._clients: dict[Hashable, _Client] = {}
        self._queue: list[tuple[float, int, _Client]] = []  # A heap of those with takers, by what they have spent.
        self._numbers = count()
        self._reached = 0.0  # What the client had spent that had the last turn.
        self._waiting = 0  # Takers in the rotation.
        self._members: set[Taker] = set()  # They, and those that will be in it when they have recovered.
        self._began_at: float | None = None  # When the first in this turn of the event loop began.
        self._run_is_due = False
        self._ran_at = 0.0
        self._rest_until = 0.0
        self._timer: asyncio.TimerHandle | None = None  # Set while the rotation pauses.

    def crowded(self, now: float) -> bool:
        """Whether light requests have arrived lately."""
        if self.light != self._light_seen:
            self._light_seen = self.light
            self._light_at = now
            self._crowded_until = now + TURN_REMEMBER_SECONDS
            return True
        return now < self._crowded_until

    def spend(self, seconds: float) -> None:
        """So much was spent on something of the rotation after its turn: the others have the time back."""
        now = self._clock()
        if self.crowded(now):
            self._rest_until = max(self._rest_until, now) + TURN_REST * seconds

    def note_heavy(self) -> None:
        """What a read has led to takes long: it was not light."""
        if self.light > self._light_seen:
            self.light -= 1

    # ── What was just read ──────────────────────────────────────────────────────────────────────────────────

    def begin(self, taker: Taker) -> bool:
        """Do a first part now, and the rest in the rotation. False: all of it has to wait for the rotation, because
        in this turn of the event loop many others have begun: a thousand first parts would take a second."""
        now = self._clock()
        crowded = self.crowded(now)
        is_resting = crowded and self._is_resting(now)
        if is_resting or not self._may_begin(taker, now, crowded=crowded):
            self.join(taker)
            return False
        self._note_begun(now)
        more = taker.take_turn(crowded=crowded or self._waiting >= TURN_MANY)
        self._charge(taker, self._client_of(taker), now, crowded)
        if more:
            self.join(taker)
        return True

    def handle(self, taker: Taker, receive: Callable[[bytes], None], data: bytes) -> bool:
        """Handle all of what may be one request, small or with a thousand messages. What turns out to be cheap is
        light, and the rest is paid for. False: it has to wait for the rotation."""
        began = self._clock()
        crowded = self.crowded(began)
        if not self._may_begin(taker, began, crowded=crowded):
            return False
        receive(data)
        seconds = self._clock() - began
        if seconds <= TURN_COSTLY_CROWDED_SECONDS:
            if seconds <= TURN_LIGHT_SECONDS and (self._dear_until < began or not self._was_dear(taker, began)):
                self.light += 1
            taker.was_cheap = True
        else:
            self._note_begun(began)
            self._charge(taker, self._client_of(taker), began, crowded)
        return True

    def _may_begin(self, taker: Taker, now: float, *, crowded: bool) -> bool:
        if crowded and not taker.was_cheap and self._is_dear(taker, now):
            return False
        most = TURN_BEGIN_CROWDED_SECONDS if crowded else TURN_BEGIN_SECONDS
        if self._began_at is not None and now - self._began_at >= most:
            return False
        return not _debt_seconds(taker)

    def _was_dear(self, taker: Taker, now: float) -> bool:
        """Whether its client has taken much lately."""
        client = self._clients.get(taker.client)
        return client is not None and client.dear_until >= now

    def _is_dear(self, taker: Taker, now: float) -> bool:
        """Whether its client has taken much lately, or waits for more already."""
        client = self._clients.get(taker.client)
        return client is not None and (bool(client.takers) or now < client.rest_until)

    def _note_begun(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = now
            asyncio.get_running_loop().call_soon(self._end_beginning)

    def _end_beginning(self) -> None:
        self._began_at = None

    # ── What it costs ───────────────────────────────────────────────────────────────────────────────────────

    def _charge(self, taker: Taker, client: _Client, began: float, crowded: bool) -> float:
        """Let it pay for what was done since then, and for what that has led to, which is done now if it was much.
        Short turns cost the same, so that who takes them takes as many. Returns the time."""
        now = self._clock()
        taker.was_cheap = now - began <= TURN_COSTLY_CROWDED_SECONDS
        if not taker.was_cheap:
            self._dear_until = client.dear_until = now + TURN_REMEMBER_SECONDS
        if now - began > (TURN_COSTLY_CROWDED_SECONDS if crowded else TURN_COSTLY_SECONDS):
            self._decide()
            now = self._clock()
            self._rest_until = max(self._rest_until, now) + TURN_REST * (now - began)
            client.rest_until = max(client.rest_until, now) + TURN_REST * (now - began)
        spent = max(client.spent, self._reached) + max(now - began, TURN_CROWDED_SECONDS)
        client.spent = min(spent, self._reached + TURN_DEBT_SECONDS_MAX)
        if taker.meter is not None:
            taker.meter.take(_QUOTA, now - began)
        return now

    def _client_of(self, taker: Taker) -> _Client:
        name, clients = taker.client, self._clients
        client = clients.get(name)
        if client is None:
            if len(clients) >= TURN_CLIENTS_MAX:
                self._clients = clients = {each: known for each, known in clients.items() if known.takers}
            client = clients[name] = _Client(self._reached)
        return client

    # ── The rotation ────────────────────────────────────────────────────────────────────────────────────────

    def join(self, taker: Taker) -> None:
        """Take part in the rotation until nothing is left to do. A taker that is already in it keeps its place."""
        if taker not in self._members:
            self._members.add(taker)
            if seconds := _debt_seconds(taker):
                asyncio.get_running_loop().call_later(max(seconds, QUOTA_REST_SECONDS_MIN), self._enter, taker)
            else:
                self._enter(taker)

    def _enter(self, taker: Taker) -> None:
        client = self._client_of(taker)
        client.takers.append(taker)
        self._waiting += 1
        self._enqueue(client)
        if self._timer is None:
            self._run_soon()

    def _enqueue(self, client: _Client) -> None:
        if not client.is_queued:
            client.is_queued = True
            heappush(self._queue, (max(client.spent, self._reached), next(self._numbers), client))

    def after_commit(self) -> None:
        """The disk is done: takers that pause may continue."""
        if self._timer is not None:
            self._run_soon()

    def _run_soon(self) -> None:
        if not self._run_is_due:
            self._run_is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._run_is_due = False
        now = self._clock()
        crowded = self.crowded(now)
        if crowded and (self._is_resting(now) or (now - self._ran_at < TURN_REST_SECONDS_MAX and self._busy())):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TURN_REST_SECONDS_MAX, self._end_rest)
            return
        self._stop_resting()
        began = now
        until = now + (TURN_CROWDED_SECONDS if crowded else TURN_SECONDS)
        left = TURN_CROWDED_PARTS_MAX if crowded else 0
        while self._queue:
            now = self._hand_out(crowded or self._waiting >= TURN_MANY, now)
            left -= 1
            if left == 0 or now >= until:
                break
        if crowded and now >= self._rest_until:
            self._decide()  # Many cheap parts together are paid for too, with what they lead to.
            self.spend(self._clock() - began)
        self._ran_at = now
        if self._queue:
            self._run_soon()

    def _hand_out(self, crowded: bool, now: float) -> float:
        """Give one part to the taker that has waited longest, of the client that has had the least. Returns the time
        after it."""
        self._reached, _, client = heappop(self._queue)
        client.is_queued = False
        taker = client.takers.popleft()
        self._waiting -= 1
        self._members.discard(taker)
        try:
            more = taker.take_turn(crowded=crowded)
        except Exception:
            logger.exception("turn_failed")
            more = False
        now = self._charge(taker, client, now, crowded)
        if more:
            self.join(taker)
        if client.takers:
            self._enqueue(client)
        return now

    def _is_resting(self, now: float) -> bool:
        """Whether all others leave the time to light requests, because they have just taken much. Those that wait for
        the disk are there, too."""
        return now < self._rest_until and (now - self._light_at < TURN_QUIET_SECONDS or self._busy())

    def _end_rest(self) -> None:
        self._timer = None
        self._ran_at = 0.0
        self._run()

    def _stop_resting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _debt_seconds(taker: Taker) -> float:
    """For how long the taker's client is over its quota."""
    return taker.meter.pause(_QUOTA) if taker.meter is not None else 0.0
