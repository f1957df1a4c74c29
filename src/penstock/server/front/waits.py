"""Waiting for messages of several shards, for those that are moved from one to another, and for their copies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.dialects.native.wait import COPIED, PART, Wait, decode_wait
from penstock.dialects.wire import http
from penstock.errors import Fault, Reason
from penstock.limits import BATCH_MESSAGES_MAX, WAIT_REFUSED_SECONDS
from penstock.model.access import allowed
from penstock.model.outcomes import Part, away
from penstock.server.front.asking import Asking, Responded

_Entry = dict[str, Any]  # What a message has come to, or why that is not known.


class _Waited(Struct):
    messages: list[_Entry]


_AWAY = away().error.code
_NOWHERE = (Reason.NO_MESSAGE.code, Fault.MESSAGE_REMOVED.code)  # A shard has no copy, and never had one.
_FAILED = frozenset(("failed", "dead_lettered", "invalid"))
_decode_waited = msgspec.json.Decoder(_Waited).decode


async def wait(asking: Asking) -> Responded:
    """First all shards say what they know. If that is nothing, they wait, and the first answer is that to the
    client; the others answer with what they have by then."""
    asked = http.decoded(decode_wait, asking.request.body)
    if len(asked.ids) > BATCH_MESSAGES_MAX:
        raise http.too_many_messages(len(asked.ids))
    found = await Waits(asking, asked).found()
    return http.json_response(200, {"messages": [found[text] for text in dict.fromkeys(asked.ids) if text in found]})


class Waits:
    """Waits in the shards of messages. Those that have left their shard are waited for in all of them, because each
    knows only what happens there. Of those that are done, others may have copies: then they are waited for, too."""

    def __init__(self, asking: Asking, asked: Wait) -> None:
        self._asking = asking
        self._asked = asked
        self._time = asyncio.get_running_loop().time
        self._until = self._time() + asked.wait
        self._homes: dict[str, int] = {}
        for text in dict.fromkeys(asked.ids):
            place = asking.ids.find(text.encode())
            self._homes[text] = asking.shards.of_number(place[0]) if place else ADMINISTRATION
        self._away: set[str] = set()
        self._copied: dict[str, dict[int, _Entry]] = {}  # Done, for the shards that have answered for their part.
        self._news = 0  # How often a shard said something that leads to other questions.

    async def found(self) -> dict[str, _Entry]:
        """What messages have come to, by id."""
        found = await self._reached(0) if len(set(self._homes.values())) > 1 else {}
        is_over = not self._homes
        while not found and not is_over and not self._asking.has_given_up:
            left, news = max(0.0, self._until - self._time()), self._news
            found = await self._reached(left)
            if self._news == news:
                is_over = not left or not (self._away or self._copied)
                await asyncio.sleep(0 if found else min(left, WAIT_REFUSED_SECONDS))  # A shard may have refused.
        return found

    async def _reached(self, seconds: float) -> dict[str, _Entry]:
        """Ask all shards once. It ends early if one says something that leads to other questions."""
        found: dict[str, _Entry] = {}
        tasks = {asyncio.create_task(question): shard for shard, question in self._questions(seconds)}
        waiting, news = set(tasks), self._news
        try:
            while waiting and (found or self._news == news or not seconds):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    found |= {each["id"]: each for each in self._taken(tasks[task], task.result())}
                if found and seconds:
                    self._asking.give_up()
        finally:
            for task in tasks:
                task.cancel()
        return found

    def _questions(self, seconds: float) -> Iterator[tuple[int, Coroutine[Any, Any, http.Response]]]:
        moved: Part = "moved" if self._asked.until == "done" else "any"
        for shard in range(self._asking.shards.shards):
            away = [text for text in self._away if text not in self._copied]
            home = [text for text, at in self._homes.items() if at == shard and self._is_open(text)]
            copied = [text for text, answered in self._copied.items() if shard not in answered]
            for part, ids in (("home", home), (moved, away), ("copies", copied)):
                if ids:
                    yield shard, self._question(shard, ids, seconds, part)

    def _is_open(self, text: str) -> bool:
        return text not in self._away and text not in self._copied

    def _question(
        self, shard: int, ids: Sequence[str], seconds: float, part: str
    ) -> Coroutine[Any, Any, http.Response]:
        body = msgspec.json.encode({"ids": ids, "until": self._asked.until, "wait": seconds})
        changes: dict[str, Any] = {"method": b"POST", "target": b"/v1/wait", "body": body}
        access = self._asking.request.access  # The home has decided whether the client may wait.
        changes |= {"access": access if part == "home" else allowed(access), "headers": {PART: part.encode()}}
        return self._asking.whole(shard, **changes)

    def _taken(self, shard: int, answer: http.Response) -> Iterator[_Entry]:
        """What messages have come to, as far as one shard knows it."""
        for each in _decode_waited(answer.body).messages:
            text = each["id"]
            if text in self._copied:
                yield from self._with_copy(text, shard, each)
            elif each.get("code") == _AWAY:
                self._away.add(text)
                self._news += 1
            elif each.pop(COPIED, False):
                self._copied[text] = {shard: each}
                self._news += 1
            elif self._is_open(text) or "code" not in each:  # Who does not have a moved message knows nothing of it.
                yield each

    def _with_copy(self, text: str, shard: int, entry: _Entry) -> Iterator[_Entry]:
        """One more shard has no copy of it, or is done with it. Where it has failed, if it has, is what became of it;
        else where it ended last."""
        answered = self._copied[text]
        if shard in answered or entry.get("code", _NOWHERE[0]) not in _NOWHERE:
            return
        answered[shard] = entry
        self._news += 1
        if len(answered) == self._asking.shards.shards:
            known = [each for each in answered.values() if "code" not in each]
            yield max(known, key=lambda each: (each["outcome"] in _FAILED, each["time"]))
