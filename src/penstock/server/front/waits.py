"""Waiting for messages of several shards, and for messages that are moved from one to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from penstock.dialects.native.wait import ELSEWHERE, Wait, away, decode_wait
from penstock.dialects.wire import http
from penstock.limits import BATCH_MESSAGES_MAX, WAIT_REFUSED_SECONDS
from penstock.server.front.asking import Asking, Responded
from penstock.server.shards.destinations import ADMINISTRATION


class _Waited(Struct):
    messages: list[dict[str, Any]]


_AWAY = away().error.code
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
    knows only what happens there."""

    def __init__(self, asking: Asking, asked: Wait) -> None:
        self._asking = asking
        self._asked = asked
        self._until = time.monotonic() + asked.wait
        self._homes: dict[int, list[str]] = {}
        self._away: list[str] = []
        for text in dict.fromkeys(asked.ids):
            place = asking.ids.find(text.encode())
            home = asking.shards.of_number(place[0]) if place else ADMINISTRATION
            self._homes.setdefault(home, []).append(text)

    async def found(self) -> dict[str, dict[str, Any]]:
        """What messages have come to, by id."""
        found = await self._reached(0) if len(self._homes) > 1 else {}
        is_over = not self._homes
        while not found and not is_over and not self._asking.has_given_up:
            left, away = max(0.0, self._until - time.monotonic()), len(self._away)
            found = await self._reached(left)
            if len(self._away) == away:
                is_over = not left or not away
                await asyncio.sleep(0 if found else min(left, WAIT_REFUSED_SECONDS))  # A shard may have refused.
        return found

    async def _reached(self, seconds: float) -> dict[str, dict[str, Any]]:
        """Ask all shards once. It ends early if a message has left its shard."""
        found: dict[str, dict[str, Any]] = {}
        tasks = [asyncio.create_task(each) for each in self._questions(seconds)]
        waiting, away = set(tasks), len(self._away)
        try:
            while waiting and (found or len(self._away) == away or not seconds):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                found |= {each["id"]: each for task in done for each in self._taken(task.result())}
                if found and seconds:
                    self._asking.give_up()
        finally:
            for task in tasks:
                task.cancel()
        return found

    def _questions(self, seconds: float) -> Iterator[Coroutine[Any, Any, http.Response]]:
        for shard, ids in self._homes.items():
            if left := [text for text in ids if text not in self._away]:
                yield self._question(shard, left, seconds, {})
        for shard in range(self._asking.shards.shards) if self._away else ():
            yield self._question(shard, self._away, seconds, {ELSEWHERE: b""})

    def _question(
        self, shard: int, ids: Sequence[str], seconds: float, headers: http.Headers
    ) -> Coroutine[Any, Any, http.Response]:
        body = msgspec.json.encode({"ids": ids, "until": self._asked.until, "wait": seconds})
        return self._asking.whole(shard, method=b"POST", target=b"/v1/wait", body=body, headers=headers)

    def _taken(self, answer: http.Response) -> Iterator[dict[str, Any]]:
        """What messages have come to, as one shard knows it. That they have left is noted; what a shard does not know
        of those that have left is of no interest."""
        for each in _decode_waited(answer.body).messages:
            if each.get("code") == _AWAY:
                self._away.append(each["id"])
            elif each["id"] not in self._away or "code" not in each:
                yield each
