"""A glovebox on a live loop with a log in memory: clients say frames and hear replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from penstock.broker.writer.loop import Loop
from penstock.config.dialects import GloveboxConfig
from penstock.dialects.glovebox.protocol import Glovebox
from penstock.dialects.wire.conversation import Conversation
from penstock.model.answers import Answer
from penstock.model.client import Cancelable
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeQueue,
    NewMessage,
    Publish,
)
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.shells.peer import LoopPeer
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask

DURABLE = {"durable_session": "true"}


class Client(LoopPeer):
    """One connection to a glovebox, from both its ends: what the client says and hears, and the shell between."""

    def __init__(self, house: House, **headers: str) -> None:
        self.choked = False
        self.commands: list[Command] = []
        self.closed_because = ""
        self.acknowledged = 0
        super().__init__(house.loop)
        self._heard: asyncio.Queue[dict[str, Any] | bytes] = asyncio.Queue()
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.talk: Conversation = house.glovebox.connect(self, named)
        self.talk.opened()

    # The client

    def say(self, *requests: dict[str, Any]) -> None:
        """Frames that come in one read."""
        for request in requests:
            self.talk.received(json.dumps(request).encode())
        self.settle()

    def settle(self) -> None:
        self.talk.settle()

    async def hear(self) -> Any:
        return await asyncio.wait_for(self._heard.get(), 60)

    async def hear_all(self, count: int) -> list[Any]:
        return [await self.hear() for _ in range(count)]

    @property
    def unheard(self) -> int:
        return self._heard.qsize()

    def lose(self) -> None:
        self.talk.closed()

    # The shell

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        self._heard.put_nowait(frame if binary else json.loads(frame))

    def send_all(self, frames: list[bytes], *, binary: bool = False) -> None:
        for frame in frames:
            self.send(frame, binary=binary)

    def acknowledge(self) -> None:
        self.acknowledged += 1

    def close(self, reason: str) -> None:
        self.closed_because = reason

    def submit(
        self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None:
        self.commands.append(command)
        return super().submit(command, reply, stage)


class House:
    """A loop with a queue named work, and a glovebox in front of it."""

    def __init__(self, loop: Loop, **bounds: Any) -> None:
        self.loop = loop
        self._ids = 1000
        self.glovebox = Glovebox(GloveboxConfig(**bounds), self._next_id)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    async def client(self, **headers: str) -> Client:
        """A connection whose hello has been heard."""
        client = Client(self, **headers)
        assert (await client.hear())["type"] == "hello"
        return client

    async def fill(self, *bodies: str | bytes, queue: str = "work") -> None:
        messages = [NewMessage(body.encode() if isinstance(body, str) else body) for body in bodies]
        await ask(self.loop, Publish(queue, messages))

    async def settled(self) -> None:
        await until(lambda: self.loop.idle)
        await asyncio.sleep(0)

    async def leased(self, queue: str = "work") -> int:
        answer = await ask(self.loop, DescribeQueue(queue))
        leased: int = answer.leased
        return leased


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - A turn, not a time.
        await asyncio.sleep(0)


Story = Callable[[House], Coroutine[Any, Any, None]]


def bounded(**bounds: Any) -> Callable[[Story], Callable[[], None]]:
    """A story told in a house with these bounds."""
    return partial(live, bounds=bounds)


def live(story: Story, bounds: dict[str, Any] | None = None) -> Callable[[], None]:
    def run() -> None:
        async def tell() -> None:
            house = House(a_loop(MemoryLog()), **(bounds or {}))
            await ask(house.loop, CreateQueue("work", QueueSettings()))
            await asyncio.wait_for(story(house), 100)

        asyncio.run(tell())

    run.__name__ = story.__name__
    run.__doc__ = story.__doc__
    return run


def post(message: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"type": "post", "queue": "work", "message": message, "notify": ["sync"], "label": 0} | more


def fetch(**more: Any) -> dict[str, Any]:
    return {"type": "fetch", "queue": "work"} | more


def finish(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    place = {"sequence": message["sequence"], "shard": message["shard"]}
    return {"type": "finish", "queue": "work"} | place | more


def notice(label: int, stage: str) -> dict[str, Any]:
    return {"type": "notice", "label": label, "notice": stage}
