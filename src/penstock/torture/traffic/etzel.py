"""etzel: workers over lines of JSON and over WebSocket, which sleep until the broker wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from penstock.torture.process import Process
from penstock.torture.traffic.stage import LEASE_SECONDS, Stage
from penstock.torture.traffic.wire import Lines, Unavailable, UnexpectedAnswer, WebSocket
from penstock.torture.traffic.work import Held, consume, produce

SLEEP_SECONDS_MAX = 1.0
PATH = "/connect"


class Etzel:
    """Commands one after the other; answers come in their order, wake-ups in between."""

    dialect = "etzel"

    def __init__(self, link: Lines | WebSocket) -> None:
        self._link = link
        self.close = link.close

    @classmethod
    async def open(cls, process: Process) -> Etzel:
        return cls(await Lines.open(process))

    @classmethod
    async def open_websocket(cls, process: Process) -> Etzel:
        return cls(await WebSocket.open(process, PATH))

    async def _answer(self, *expected: str) -> Any:
        while (answer := await self._link.read())["cmd"] == "awk":
            pass  # It may come late, when nobody sleeps any more.
        if answer["cmd"] == "nok" and answer["err"] in ("UNAVAILABLE", "OUTCOME_UNKNOWN", "DAMAGED"):
            raise Unavailable(answer)
        if answer["cmd"] not in expected:
            raise UnexpectedAnswer(f"{answer}")
        return answer

    async def publish(self, queue: str, bodies: list[str]) -> AsyncIterator[tuple[str, str]]:
        about = {"cmd": "PUB", "qname": queue, "timeout": LEASE_SECONDS}
        await self._link.send(*(about | {"message": body} for body in bodies))
        for body in bodies:
            yield body, (await self._answer("ok"))["uid"]

    async def take(self, queue: str, count: int) -> list[Held]:
        await self._link.send(*([{"cmd": "FET", "qname": queue}] * count))
        answers = [await self._answer("msg", "nomsg") for _ in range(count)]
        held = [Held(each["msg"], each["uid"], each["uid"]) for each in answers if each["cmd"] == "msg"]
        if not held:
            await self._sleep(queue)
        return held

    async def _sleep(self, queue: str) -> None:
        await self._link.send({"cmd": "ISLP", "qname": queue})
        await self._answer("okslp")
        try:
            await asyncio.wait_for(self._link.read(), SLEEP_SECONDS_MAX)
        except TimeoutError:
            pass

    async def finish(self, queue: str, held: list[Held]) -> AsyncIterator[tuple[Held, bool]]:
        await self._link.send(*({"cmd": "ACK", "qname": queue, "uid": each.handle} for each in held))
        for each in held:
            answer = await self._answer("okack")
            yield each, answer["uid"] == each.handle


def clients(stage: Stage) -> list[Awaitable[None]]:
    return [
        produce(stage, "etzel-p", Etzel.open),
        consume(stage, "etzel-c", Etzel.open),
        produce(stage, "etzel-ws-p", Etzel.open_websocket),
        consume(stage, "etzel-ws-c", Etzel.open_websocket),
    ]
