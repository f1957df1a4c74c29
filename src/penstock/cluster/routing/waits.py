"""Waiting for messages of several shards, for those that are moved from one to another, and for their copies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from msgspec.structs import replace

from penstock.cluster.routing.asking import Asking, NoAnswerError
from penstock.errors import Fault, Reason
from penstock.limits import WAIT_REFUSED_SECONDS
from penstock.model.outcomes import Part, away
from penstock.model.queries import Failed
from penstock.model.values import Place
from penstock.model.waits import AwaitMessages, Fate, Waited

_Entry = Fate | Failed

_AWAY = away().error.code
_NOWHERE = (Reason.NO_MESSAGE.code, Fault.MESSAGE_REMOVED.code)  # A shard has no copy, and never had one.
_FAILED = frozenset(("failed", "dead_lettered", "invalid"))


async def awaited(asking: Asking, query: AwaitMessages) -> Waited:
    """First all shards say what they know. If that is nothing, they wait, and the first answer is that to the
    client; the others answer with what they have by then."""
    found = await Waits(asking, query).found()
    return Waited([(place, found[place]) for place in query.places if place in found])


class Waits:
    """Waits in the shards of messages. Those that have left their shard are waited for in all of them, because each
    knows only what happens there. Of those that are done, others may have copies: then they are waited for, too."""

    def __init__(self, asking: Asking, asked: AwaitMessages) -> None:
        self._asking = asking
        self._asked = asked
        self._time = asyncio.get_running_loop().time
        self._until = self._time() + asked.seconds
        self._homes = {place: asking.shards.of_number(place[0]) for place in asked.places}
        self._away: set[Place] = set()
        self._copied: dict[Place, dict[int, _Entry]] = {}  # Done, for the shards that have answered for their part.
        self._news = 0  # How often a shard said something that leads to other questions.

    async def found(self) -> dict[Place, _Entry]:
        """What messages have come to."""
        found = await self._reached(0) if len(set(self._homes.values())) > 1 else {}
        is_over = not self._homes
        while not found and not is_over and not self._asking.has_given_up:
            left, news = max(0.0, self._until - self._time()), self._news
            found = await self._reached(left)
            if self._news == news:
                is_over = not left or not (self._away or self._copied)
                await asyncio.sleep(0 if found else min(left, WAIT_REFUSED_SECONDS))  # A shard may have refused.
        return found

    async def _reached(self, seconds: float) -> dict[Place, _Entry]:
        """Ask all shards once. It ends early if one says something that leads to other questions."""
        found: dict[Place, _Entry] = {}
        tasks = {asyncio.create_task(question): shard for shard, question in self._questions(seconds)}
        waiting, news = set(tasks), self._news
        try:
            while waiting and (found or self._news == news or not seconds):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    found |= dict(self._taken(tasks[task], task.result()))
                if found and seconds:
                    self._asking.give_up()
        finally:
            for task in tasks:
                task.cancel()
        return found

    def _questions(self, seconds: float) -> Iterator[tuple[int, Coroutine[Any, Any, Any]]]:
        moved: Part = "moved" if self._asked.until == "done" else "any"
        for shard in range(self._asking.shards.shards):
            away = [place for place in self._away if place not in self._copied]
            home = [place for place, at in self._homes.items() if at == shard and self._is_open(place)]
            copied = [place for place, answered in self._copied.items() if shard not in answered]
            parts: tuple[tuple[Part, list[Place]], ...] = (("home", home), (moved, away), ("copies", copied))
            for part, places in parts:
                if places:
                    reads = self._asked.reads and part == "home"
                    yield (
                        shard,
                        self._asking.at(
                            shard, replace(self._asked, places=places, seconds=seconds, part=part, reads=reads)
                        ),
                    )

    def _is_open(self, place: Place) -> bool:
        return place not in self._away and place not in self._copied

    def _taken(self, shard: int, answer: Any) -> Iterator[tuple[Place, _Entry]]:
        """What messages have come to, as far as one shard knows it."""
        if not isinstance(answer, Waited):
            raise NoAnswerError(answer)
        for place, entry in answer.messages:
            if place in self._copied:
                yield from self._with_copy(place, shard, entry)
            elif isinstance(entry, Failed) and entry.code == _AWAY:
                self._away.add(place)
                self._news += 1
            elif isinstance(entry, Fate) and entry.is_copied:
                self._copied[place] = {shard: entry}
                self._news += 1
            elif self._is_open(place) or isinstance(entry, Fate):  # Who does not have a moved message knows nothing.
                yield place, entry

    def _with_copy(self, place: Place, shard: int, entry: _Entry) -> Iterator[tuple[Place, _Entry]]:
        """One more shard has no copy of it, or is done with it. Where it has failed, if it has, is what became of it;
        else where it ended last."""
        answered = self._copied[place]
        if shard in answered or (isinstance(entry, Failed) and entry.code not in _NOWHERE):
            return
        answered[shard] = entry
        self._news += 1
        if len(answered) == self._asking.shards.shards:
            known = [each for each in answered.values() if isinstance(each, Fate)]
            yield place, max(known, key=lambda each: (each.outcome in _FAILED, each.time))
