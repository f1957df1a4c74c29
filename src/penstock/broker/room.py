"""Room for answers: one limit for everything that clients have not taken yet, whatever they speak.

An answer with messages takes room when it is decided: not before, because only then is its size known, and a client
that waits for a message holds none; and not later, because then it would be in memory already. Where there is no
room, the command waits, and the client is not read. The room is free again when the client has read the answer.

Those who wait have their turn one command each: first clients that hold nothing, so that those who do not read keep
nobody out, then the others. A client that holds much of what it was sent gets no more until it has read some. If one
that holds nothing has waited for a while, the connection that holds the most is closed.

An answer with many messages takes long to make. So after a few of them in one turn of the event loop, whoever asks
for one waits for a turn in the rotation (`shells/turns.py`), in which there is one such answer at a time, for each
identity or address in turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from penstock.limits import (
    FETCH_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    ROOM_CROWDED,
    ROOM_CROWDED_UNTIL,
    ROOM_EACH_BYTES,
    ROOM_LONG_AT_ONCE,
    ROOM_TURN_BYTES,
    ROOM_TURNS_MAX,
    ROOM_WAIT_SECONDS_MAX,
    TURN_DEBT_SECONDS_MAX,
)

logger = logging.getLogger(__name__)

Soon = Callable[[Callable[[], None]], object]


class Holder(Protocol):
    """A connection whose client does not read, or something else that holds answers."""

    def abort(self) -> None:
        """Close the connection, and throw away what is not sent."""


class Carrier(Hashable, Protocol):
    """A link to another process, which sends answers to many clients there. It is closed for none of them."""


class Crowded(Protocol):
    """Something that waits for room. `is_long`: it also waits for its turn. `size`: how much it needs, if one
    message is not enough."""

    @property
    def is_long(self) -> bool: ...

    @property
    def size(self) -> int: ...

    def has_room(self) -> None:
        """There is room now. If it is not used at once, others get it."""

    def cancel(self) -> None:
        """Who would hold it is gone."""


class Rotation(Protocol):
    """The part of `Turns` that is needed here."""

    def join(self, taker: Room) -> None: ...

    def spend(self, seconds: float) -> None: ...

    def note_heavy(self) -> None: ...


class Taken:
    """Room that work beside the writer has while it makes something."""

    is_long = False

    def __init__(self, room: Room) -> None:
        self._room = room
        self.abort: Callable[[], None] = _nothing  # Ends the work, because others need the room.
        self.size = 0  # That it waits for.
        self._given: asyncio.Future[None] | None = None

    async def take(self, size: int) -> None:
        """Wait until there is room. So much is held then, until another size is noted."""
        self.size = size
        self.note(0)
        if size and not (self._room.free(self) and self._room.fits(size)):
            self._given = asyncio.get_running_loop().create_future()
            self._room.wait(self, self)
            await self._given
        else:
            self.note(size)

    def note(self, size: int) -> None:
        """So much is held now. If that is too much, others wait; nobody is closed for it at once."""
        self._room.note(self, size, closes=False)

    def end(self) -> None:
        self._room.leave(self)
        self.abort = _nothing

    def has_room(self) -> None:
        if self._given and not self._given.done():
            self.note(self.size)
            self._given.set_result(None)

    def cancel(self) -> None:
        if self._given and not self._given.done():
            self._given.cancel()


class NoRoomError(Exception):
    """The answer has to wait."""


class Room:
    """It takes turns itself, for those who wait for long answers."""

    meter = None
    was_cheap = False

    def __init__(self, bytes_max: int, soon: Soon | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`soon`: calls something when this turn of the event loop has ended."""
        self.bytes = 0  # All that is held, and all that was promised.
        self.closed = 0  # Connections that were closed because of it.
        self._bytes_max = bytes_max
        self._promised = 0  # To answers that are decided and not given.
        self._promised_max = max(MESSAGE_BYTES_MAX, min(ROOM_TURN_BYTES, bytes_max // 4))
        self._held: dict[Holder, int] = {}
        self._carried: dict[Carrier, int] = {}  # What links to other processes have not sent.
        self.is_crowded = False
        self.on_crowded: list[Callable[[bool], None]] = []
        self._waiting: dict[Holder, deque[tuple[float, Crowded]]] = {}  # With the time since when each waits.
        self._first: dict[Holder, None] = {}  # Of those who wait: they hold nothing;
        self._next: dict[Holder, None] = {}  # and these hold little. The others have to read first.
        # These too, but the first of what they wait for is long. With whose turns they take.
        self._long: dict[Holder, Hashable] = {}
        self._long_turns: dict[Hashable, int] = {}  # The number of the turn in which each client last had one.
        self._turn = 0
        self.turns: Rotation | None = None  # Without it, long answers are like others.
        self._is_due = self._is_serving = False
        self._at_once = ROOM_LONG_AT_ONCE
        self._relieved_at = 0.0  # When a connection was last closed for those who wait.
        self._soon = soon or _soon
        self._clock = clock

    @property
    def is_empty(self) -> bool:
        """Nobody holds anything, or waits."""
        return not (self._held or self._carried or self._waiting)

    @property
    def client(self) -> Hashable:
        """Whose turns it takes: its own."""
        return self

    # ── Answers ─────────────────────────────────────────────────────────────────────────────────────────────

    def free(self, holder: Holder | None, *, long: int = 0) -> int:
        """How large the next answer may be: at least one message; 0 if it has to wait, see `wait`. `long`: how many
        messages it may have, if these are many."""
        if long and self.turns and not self._is_serving and not self._begin_at_once(long):
            return 0
        free = min(self._bytes_max - self.bytes, self._promised_max - self._promised)
        if free < MESSAGE_BYTES_MAX:
            return 0
        if self._waiting and not self._is_serving and (self._first or self._next or holder in self._waiting):
            return 0
        if holder is not None and self._held_for(holder) >= ROOM_EACH_BYTES:
            return 0
        if holder is not None:
            self._is_serving = False  # It was for one answer, and not for what its client asks for next.
        return min(free, FETCH_BYTES_MAX)

    def _begin_at_once(self, messages: int) -> bool:
        """A few long answers in a turn of the event loop need not wait for theirs, as long as nobody does."""
        if self._long or self._at_once <= 0:
            return False
        if self._at_once == ROOM_LONG_AT_ONCE:
            self._soon(self._renew)
        self._at_once -= messages
        return True

    def _renew(self) -> None:
        self._at_once = ROOM_LONG_AT_ONCE

    def fits(self, size: int) -> bool:
        """Whether there is room for so much. What is larger than half of it has to make do with that."""
        return self.bytes + min(size, self._bytes_max // 2) <= self._bytes_max

    def now(self) -> float:
        return self._clock()

    def pay(self, since: float) -> None:
        """A long answer was given that was decided then. The disk was busy with it too, and its client pays for that
        like for the time to make it."""
        if self.turns:
            self.turns.spend(min(self._clock() - since, TURN_DEBT_SECONDS_MAX))

    def promise(self, size: int) -> None:
        """An answer of this size was decided."""
        self.bytes += size
        self._promised += size
        self._look_crowded()

    def redeem(self, size: int) -> None:
        """Answers of this size were given: who holds what of them has noted it."""
        self.bytes -= size
        self._promised -= size
        self._look_crowded()
        if self._waiting:
            self._serve_soon()

    def grant(self, size: int) -> None:
        """Another process makes an answer of at most this size. That may take long, and keeps nobody here waiting."""
        self.bytes += size
        self._look_crowded()

    def take_back(self, size: int) -> None:
        """The answer is there, or none will come."""
        self.grant(-size)
        if self._waiting:
            self._serve_soon()

    def note(self, holder: Holder, size: int, *, closes: bool = True) -> None:
        """A client has not taken this much. `closes`: too much of it closes the connection that holds the most."""
        self.bytes += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
            if closes and self.bytes - self._promised > self._bytes_max:
                self._close_greediest(self._bytes_max + self._promised)
        self._look_crowded()
        if self._waiting:
            self._rank(holder)
            self._serve_soon()

    def note_carried(self, carrier: Carrier, size: int) -> None:
        """A link has not sent this much. If it is much, who it is for gets no more."""
        before = self._carried.pop(carrier, 0)
        self.bytes += size - before
        if size:
            self._carried[carrier] = size
        self._look_crowded()
        if self._waiting:
            if (before >= ROOM_EACH_BYTES) != (size >= ROOM_EACH_BYTES):
                for holder in list(self._waiting):
                    self._rank(holder)
            self._serve_soon()

    def _held_for(self, holder: Holder) -> int:
        """By it, or by the link to its client."""
        carried = self._carried.get(getattr(holder, "carrier", None), 0) if self._carried else 0
        return max(self._held.get(holder, 0), carried)

    def _look_crowded(self) -> None:
        most = self._bytes_max * (ROOM_CROWDED_UNTIL if self.is_crowded else ROOM_CROWDED)
        if self.is_crowded != (self.bytes > most):
            self.is_crowded = not self.is_crowded
            for callback in self.on_crowded:
                callback(self.is_crowded)

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, holder: Holder, crowded: Crowded) -> None:
        """Tell it when there is room, in turn."""
        self._waiting.setdefault(holder, deque()).append((self._clock(), crowded))
        if crowded.is_long and self.turns:
            self.turns.note_heavy()
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
        holder = next(iter(self._first), None) or next((each for each in self._long if each not in self._held), None)
        if holder is None:
            return
        size, now = max(self._waiting[holder][0][1].size, MESSAGE_BYTES_MAX), self._clock()
        if self.fits(size):
            return
        if now - max(self._waiting[holder][0][0], self._relieved_at) >= ROOM_WAIT_SECONDS_MAX:
            self._relieved_at = now
            self._close_greediest(self._bytes_max - min(size, self._bytes_max // 2))

    def _rank(self, holder: Holder) -> None:
        """Find its place among those who wait."""
        held = self._held_for(holder)
        wanted = None
        if holder in self._waiting and held < ROOM_EACH_BYTES:
            is_long = self.turns is not None and self._waiting[holder][0][1].is_long
            wanted = self._long if is_long else self._next if held else self._first
        if wanted is not self._long:
            self._long.pop(holder, None)
        elif holder not in self._long:
            self._long[holder] = _client_of(holder)
        for ranked in (self._first, self._next):
            if ranked is wanted:
                ranked.setdefault(holder)
            else:
                ranked.pop(holder, None)

    def _serve_soon(self) -> None:
        if not self._is_due and (self._first or self._next or self._long):
            self._is_due = True
            self._soon(self._serve)

    def _serve(self) -> None:
        """One command each, as long as there is room; the rest in later turns."""
        self._is_due = False
        for _ in range(ROOM_TURNS_MAX):
            holder = next(iter(self._first or self._next), None)
            if holder is None:
                break
            if not self._serve_one(holder):
                return
        if self._first or self._next:
            self._serve_soon()
        elif self._long and self.turns:
            self.turns.join(self)

    def take_turn(self, *, crowded: bool) -> bool:
        """One long answer. Who has waited longest for another one is next."""
        del crowded  # It cannot be made smaller.
        if not self._long:
            self._long_turns.clear()
            return False
        self._turn += 1
        holder, client = min(self._long.items(), key=lambda each: self._long_turns.get(each[1], 0))
        self._long_turns[client] = self._turn
        return self._serve_one(holder) and bool(self._long)

    def _serve_one(self, holder: Holder) -> bool:
        """False: there is no room."""
        self._is_serving = True
        try:
            waiting = self._waiting[holder]
            if not (self.free(None) and self.fits(waiting[0][1].size)):
                return False
            _, crowded = waiting.popleft()
            if not waiting:
                del self._waiting[holder]
            for ranked in (self._first, self._next, self._long):
                ranked.pop(holder, None)
            self._rank(holder)
            _call(crowded)
        finally:
            self._is_serving = False
        return True

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


def _client_of(holder: Holder) -> Hashable:
    """Whose turn it takes."""
    found: Hashable = getattr(holder, "client", None) or id(holder)
    return found


def _nothing() -> None: ...


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
