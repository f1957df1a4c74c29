"""Work that every dialect can do: publish to shared queues, take what any dialect published there, and finish it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.torture.history import Finished, Finishing, GivingBack, Sent, Stored, Taken
from penstock.torture.process import Process
from penstock.torture.traffic.stage import (
    BATCH_MAX,
    LEASE_SECONDS,
    SENT_TO,
    WORK,
    Stage,
    body_of,
    name_of,
    names,
)

TAKEN_MAX = 20
LEFT_SHARE = 0.02  # Of what is taken: neither finished nor given back.
BACK_SHARE = 0.05  # Of what is taken: given back, where the dialect can.


class Held(NamedTuple):
    """A message under lease, what its dialect calls it, and its id if the dialect has the common one."""

    body: str
    handle: Any
    id: str = ""


class Worker(Protocol):
    """A connection in one dialect."""

    dialect: str

    def publish(self, queue: str, bodies: list[str]) -> AsyncIterator[tuple[str, str]]:
        """Each body once it is acknowledged, and its id or ""."""

    async def take(self, queue: str, count: int) -> list[Held]:
        """Up to that many messages; none after a short wait."""

    def finish(self, queue: str, held: list[Held]) -> AsyncIterator[tuple[Held, bool]]:
        """Each message once its finish is answered, and whether it was granted."""

    def close(self) -> None: ...


@runtime_checkable
class GivesBack(Protocol):
    """A worker whose dialect can give a message back before its lease ends."""

    async def give_back(self, held: Held) -> None: ...


async def produce(stage: Stage, by: str, connect: Callable[[Process], Awaitable[Worker]]) -> None:
    chance, fresh = stage.chance(by), names(by)

    async def work(client: Worker) -> None:
        while stage.producing:
            queue, size = chance.choice(SENT_TO), chance.randint(1, BATCH_MAX)
            bodies = {body_of(name): name for name in (next(fresh) for _ in range(size))}
            lives = float(WORK[queue].get("retention_timeout", 0))
            for name in bodies.values():
                stage.history.record(Sent(stage.now, name, by, queue, lives=lives))
            async for body, message_id in client.publish(queue, list(bodies)):
                stage.history.record(Stored(stage.now, bodies[body], by, message_id))
                stage.answered(client.dialect)
            await stage.pace(chance)

    await stage.visit(by, connect, work)


async def consume(
    stage: Stage, by: str, connect: Callable[[Process], Awaitable[Worker]], queues: list[str] | None = None
) -> None:
    chance = stage.chance(by)

    async def work(client: Worker) -> None:
        while not stage.over:
            queue = chance.choice(queues or list(WORK))
            await take_and_finish(stage, by, client, queue, chance)

    await stage.visit(by, connect, work)


async def take_and_finish(stage: Stage, by: str, client: Worker, queue: str, chance: random.Random) -> None:
    asked_at = stage.now
    taken = await client.take(queue, chance.randint(1, TAKEN_MAX))
    stage.answered(client.dialect)
    for each in taken:
        name = name_of(each.body)
        sound = each.body == body_of(name)
        stage.history.record(Taken(stage.now, name, by, queue, asked_at, LEASE_SECONDS, id=each.id, sound=sound))
    done = [each for each in taken if chance.random() >= LEFT_SHARE or not stage.producing]
    if isinstance(client, GivesBack) and stage.producing:
        back = [each for each in done if chance.random() < BACK_SHARE]
        done = [each for each in done if each not in back]
        await _give_back(stage, by, client, back)
    await _finish(stage, by, client, queue, done)


async def _give_back(stage: Stage, by: str, client: GivesBack, back: list[Held]) -> None:
    for each in back:
        stage.history.record(GivingBack(stage.now, name_of(each.body), by, each.id))
        await client.give_back(each)


async def _finish(stage: Stage, by: str, client: Worker, queue: str, done: list[Held]) -> None:
    if not done:
        return
    for each in done:
        stage.history.record(Finishing(stage.now, name_of(each.body), by, each.id))
    async for each, granted in client.finish(queue, done):
        stage.answered(client.dialect)
        if granted:
            stage.history.record(Finished(stage.now, name_of(each.body), by, each.id))
