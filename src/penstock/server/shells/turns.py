"""How connections share the event loop, so that one that asks for much does not make the others wait.

A read that holds one small request is handled at once. It is *light*, and costs nothing here but a count. If a read
holds more, the connection handles a first part, keeps the rest, reads nothing more for now, and joins a rotation. In
each turn of the event loop the rotation hands out parts, round and round, until its time is used up. Answers that
take long to make are made in the same rotation, part by part.

While light requests arrive, the others are *crowded*: their parts are small, and they pause while a light request
waits for the disk, for a millisecond at most. A connection that has the broker to itself gets large parts and never
pauses.

The time that each takes is counted for the quotas of its client. A client over its quota joins the rotation again
when it has recovered: what it has sent waits, and nothing more is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.limits import (
    QUOTA_REST_SECONDS_MIN,
    TURN_BEGIN_CROWDED_SECONDS,
    TURN_BEGIN_SECONDS,
    TURN_CROWDED_PARTS_MAX,
    TURN_CROWDED_SECONDS,
    TURN_MANY,
    TURN_REMEMBER_SECONDS,
    TURN_REST_SECONDS_MAX,
    TURN_SECONDS,
)
from penstock.server.quotas.meter import Meter

logger = logging.getLogger(__name__)

_QUOTA = "work_seconds_per_second"


class Taker(Protocol):
    """Something that has more to do than fits into one turn. `meter`, if there is one, counts its time."""

    @property
    def meter(self) -> Meter | None: ...

    def take_turn(self, *, crowded: bool) -> bool:
        """Do one part, a small one if crowded. True: there is more to do now."""


class Turns:
    """The rotation of one broker. `busy`: whether something waits for the disk."""

    def __init__(
        self, busy: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.light = 0  # Reads that were handled at once. The connection that handles one counts it.
        self._busy = busy
        self._clock = clock
        self._light_seen = 0
        self._crowded_until = 0.0
        self._waiting: deque[Taker] = deque()
        self._members: set[Taker] = set()  # Those in `_waiting`, and those that will be when they have recovered.
        self._began_at: float | None = None  # When the first in this turn of the event loop began.
        self._run_is_due = False
        self._ran_at = 0.0
        self._timer: asyncio.TimerHandle | None = None  # Set while the rotation pauses.

    def crowded(self) -> bool:
        """Whether light requests have arrived lately."""
        if self.light != self._light_seen:
            self._light_seen = self.light
            self._crowded_until = self._clock() + TURN_REMEMBER_SECONDS
            return True
        return self._crowded_until > 0 and self._clock() < self._crowded_until

    def begin(self, taker: Taker) -> bool:
        """Do a first part now, and the rest in the rotation. False: all of it has to wait for the rotation, because
        in this turn of the event loop many others have begun: a thousand first parts would take a second."""
        now, crowded = self._clock(), self.crowded()
        if self._began_at is None:
            self._began_at = now
            asyncio.get_running_loop().call_soon(self._end_beginning)
        elif now - self._began_at >= (TURN_BEGIN_CROWDED_SECONDS if crowded else TURN_BEGIN_SECONDS):
            self.join(taker)
            return False
        if _debt_seconds(taker):
            self.join(taker)
            return False
        more = taker.take_turn(crowded=crowded or len(self._waiting) >= TURN_MANY)
        if taker.meter is not None:
            taker.meter.take(_QUOTA, self._clock() - now)
        if more:
            self.join(taker)
        return True

    def _end_beginning(self) -> None:
        self._began_at = None

    def join(self, taker: Taker) -> None:
        """Take part in the rotation until nothing is left to do. A taker that is already in it keeps its place."""
        if taker not in self._members:
            self._members.add(taker)
            if seconds := _debt_seconds(taker):
                asyncio.get_running_loop().call_later(max(seconds, QUOTA_REST_SECONDS_MIN), self._enter, taker)
            else:
                self._enter(taker)

    def _enter(self, taker: Taker) -> None:
        self._waiting.append(taker)
        if self._timer is None:
            self._run_soon()

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
        now, crowded = self._clock(), self.crowded()
        if crowded and now - self._ran_at < TURN_REST_SECONDS_MAX and self._busy():
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TURN_REST_SECONDS_MAX, self._end_rest)
            return
        self._stop_resting()
        until = now + (TURN_CROWDED_SECONDS if crowded else TURN_SECONDS)
        left = TURN_CROWDED_PARTS_MAX if crowded else 0
        while self._waiting:
            now = self._hand_out(crowded or len(self._waiting) >= TURN_MANY, now)
            left -= 1
            if left == 0 or now >= until:
                break
        self._ran_at = now
        if self._waiting:
            self._run_soon()

    def _hand_out(self, crowded: bool, now: float) -> float:
        """Give one part to the taker that has waited longest. Returns the time after it."""
        taker = self._waiting.popleft()
        self._members.discard(taker)
        try:
            more = taker.take_turn(crowded=crowded)
        except Exception:
            logger.exception("turn_failed")
            more = False
        ended = self._clock()
        if taker.meter is not None:
            taker.meter.take(_QUOTA, ended - now)
        if more:
            self.join(taker)
        return ended

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
