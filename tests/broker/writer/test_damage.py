"""Messages that cannot be read are set aside, and others are delivered in their place."""

from __future__ import annotations

import asyncio

from penstock.broker.writer.loop import Loop
from penstock.errors import DamagedExtentError
from penstock.model.commands import (
    Draw,
    NewMessage,
    Publish,
    Pull,
)
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask

KEEPS = QueueSettings(keep="all")
HELLO = NewMessage(b"hello")


async def ask_for(loop: Loop, receiver: str) -> list[int]:
    answer = await ask(loop, Pull(receiver, [Draw("q")]))
    return [sequence for drawn in answer.drawn for sequence in drawn.sequences]


class DamagedLog(MemoryLog):
    bad: tuple[int, int] = (0, 0)  # Positions, from and to.

    def read(self, position: int, size: int) -> bytes:
        start, stop = self.bad
        if position < stop and start < position + size:
            raise DamagedExtentError("a bit has flipped", [self.bad])
        return super().read(position, size)


def test_what_cannot_be_read_is_set_aside_and_a_receiver_gets_the_rest() -> None:
    async def story() -> None:
        log = DamagedLog()
        loop = a_loop(log)
        await ask(loop, Publish("q", [HELLO] * 3, KEEPS))
        queue = loop.engine.queue("q")
        row = queue and queue.rows.get(1)
        assert row
        log.bad = (row.position, row.position + 1)
        assert await ask_for(loop, "r") == [2]
        assert await ask_for(loop, "r") == [3]

    asyncio.run(story())
