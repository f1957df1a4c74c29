"""Room for answers: one limit for everything that clients have not taken yet, whatever they speak.

An answer with messages takes room when it is decided: not before, because only then is its size known, and a client
that waits for a message holds none; and not later, because then it would be in memory already. Where there is no
room, the command waits, and the client is not read. The room is free again when the client has read the answer.

Those who wait have their turn one command each: first clients that hold nothing, so that those who do not read keep
nobody out, then the others. A client that holds much of what it was sent gets no more until it has read some. If one
that holds nothing has waited for a while, the connection that holds the most is closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.limits import (
    FETCH_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    ROOM_EACH_BYTES,
    ROOM_TURN_BYTES,
    ROOM_TURNS_MAX,
    ROOM_WAIT_SECONDS_MAX,
)

logger = logging.getLogger(__name__)

Soon = Callable[[Callable[[], None]], object]


class Holder(Protocol):
    """A connection whose client does not read, or something else that holds answers."""

    def abort(self) -> None:
        """Close the connection, and throw away what is not sent."""


class Crowded(Protocol):
    """Something that waits for room."""

    def has_room(self) -> None:
        """There is room now. If it is not used at once, others get it."""

    def cancel(self) -> None:
        """Who would hold it is gone."""


class Taken:
    """Room that work beside the writer has while it makes something."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.abort: Callable[[], None] = _nothing  # Ends the work, because others need the room.
        self._wanted = 0
        self._given: asyncio.Future[None] | None = None

    async def take(self, size: int) -> None:
        """Wait until there is room. So much is held then, until another size is noted."""
        self._wanted = size
        self.note(0)
        if size and not self._room.free(self):
            self._given = asyncio.get_running_loop().create_future()
            self._room.wait(self, self)
            await self._given
        else:
            self.note(self._wanted)

    def note(self, size: int) -> None:
        """So much is held now. If that is too much, others wait; nobody is closed for it at once."""
        self._room.note(self, size, closes=False)

    def end(self) -> None:
        self._room.leave(self)
        self.abort = _nothing

    def has_room(self) -> None:
        if self._given and not self._given.done():
            self.note(self._wanted)
            self._given.set_result(None)

    def cancel(self) -> None:
        if self._given and not self._given.done():
            self._given.cancel()


class NoRoomError(Exception):
    """The answer has to wait."""


class Room:
    def __init__(self, bytes_max: int, soon: Soon | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`soon`: calls something when this turn of the event loop has ended."""
        self.bytes = 0  # All that is held, and all that was promised.
        self.closed = 0  # Connections that were closed because of it.
        self._bytes_max = bytes_max
        self._promised = 0  # To answers that are decided and not given.
        self._promised_max = max(MESSAGE_BYTES_MAX, min(ROOM_TURN_BYTES, bytes_max // 4))
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, deque[tuple[float, Crowded]]] = {}  # With the time since when each waits.
        self._first: dict[Holder, None] = {}  # Of those who wait: they hold nothing;
        self._next: dict[Holder, None] = {}  # and these hold little. The others have to read first.
        self._is_due = self._is_serving = False
        self._relieved_at = 0.0  # When a connection was last closed for those who wait.
        self._soon = soon or _soon
        self._clock = clock

    @property
    def is_empty(self) -> bool:
        """Nobody holds anything, or waits."""
        return not (self._held or self._waiting)

    # ── Answers ─────────────────────────────────────────────────────────────────────────────────────────────

    def free(self, holder: Holder | None) -> int:
        """How large the next answer may be: at least one message; 0 if it has to wait, see `wait`."""
        free = min(self._bytes_max - self.bytes, self._promised_max - self._promised)
        if free < MESSAGE_BYTES_MAX:
            return 0
        if self._waiting and not self._is_serving and (self._first or self._next or holder in self._waiting):
            return 0
        if holder is not None and self._held.get(holder, 0) >= ROOM_EACH_BYTES:
            return 0
        return min(free, FETCH_BYTES_MAX)

    def promise(self, size: int) -> None:
        """An answer of this size was decided."""
        self.bytes += size
        self._promised += size

    def redeem(self, size: int) -> None:
        """Answers of this size were given: who holds what of them has noted it."""
        self.bytes -= size
        self._promised -= size
        if self._waiting:
            self._serve_soon()

    def note(self, holder: Holder, size: int, *, closes: bool = True) -> None:
        """A client has not taken this much. `closes`: too much of it closes the connection that holds the most."""
        self.bytes += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
            if closes and self.bytes - self._promised > self._bytes_max:
                self._close_greediest(self._bytes_max + self._promised)
        if self._waiting:
            self._rank(holder)
            self._serve_soon()

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, holder: Holder, crowded: Crowded) -> None:
        """Tell it when there is room, in turn."""
        self._waiting.setdefault(holder, deque()).append((self._clock(), crowded))
        self._rank(holder)
        self._serve_soon()

    def has_waiting(self, holder: Holder) -> bool:
        return holder in self._waiting

    def leave(self, holder: Holder) -> None:
        """It is gone: it holds nothing, and waits for nothing."""
        waiting = self._waiting.pop(holder, ())
        self.note(holder, 0)
        self._rank(holder)
        for _, crowded in waiting:
            crowded.cancel()

    def relieve(self) -> None:
        """Called now and then: nobody who holds nothing waits for long."""
        holder = next(iter(self._first), None)
        most, now = self._bytes_max - MESSAGE_BYTES_MAX, self._clock()
        if holder is None or self.bytes <= most:
            return
        if now - max(self._waiting[holder][0][0], self._relieved_at) >= ROOM_WAIT_SECONDS_MAX:
            self._relieved_at = now
            self._close_greediest(most)

    def _rank(self, holder: Holder) -> None:
        """Find its place among those who wait."""
        held = self._held.get(holder, 0)
        wanted = None
        if holder in self._waiting and held < ROOM_EACH_BYTES:
            wanted = self._next if held else self._first
        for ranked in (self._first, self._next):
            if ranked is wanted:
                ranked.setdefault(holder)
            else:
                ranked.pop(holder, None)

    def _serve_soon(self) -> None:
        if not self._is_due and (self._first or self._next):
            self._is_due = True
            self._soon(self._serve)

    def _serve(self) -> None:
        """One command each, as long as there is room; the rest in later turns."""
        self._is_due, self._is_serving = False, True
        try:
            for _ in range(ROOM_TURNS_MAX):
                holder = next(iter(self._first or self._next), None)
                if holder is None or not self.free(None):
                    return
                waiting = self._waiting[holder]
                _, crowded = waiting.popleft()
                if not waiting:
                    del self._waiting[holder]
                self._first.pop(holder, None)
                self._next.pop(holder, None)
                self._rank(holder)
                _call(crowded)
        finally:
            self._is_serving = False
        self._serve_soon()

    def _close_greediest(self, bytes_max: int) -> None:
        while self.bytes > bytes_max and self._held:
            greediest = max(self._held, key=self._held.__getitem__)
            size = self._held[greediest]
            self.leave(greediest)
            self.closed += 1
            logger.warning("unread_answers_dropped", extra={"bytes": size, "limit": self._bytes_max})
            greediest.abort()


def _call(crowded: Crowded) -> None:
    """One that fails does not keep the others waiting."""
    try:
        crowded.has_room()
    except Exception:
        logger.exception("answer_failed")


def _nothing() -> None: ...


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
