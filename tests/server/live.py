"""A live loop in the test's own event loop, and how to ask it something."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from penstock.engine.engine import Engine
from penstock.model import Answer, Command
from penstock.server.app import AsyncioScheduler
from penstock.server.loop import Loop
from penstock.storage.memory import MemoryLog
from penstock.storage.segments import SegmentLog


async def ask(loop: Loop, command: Command) -> Any:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    loop.submit(command, answered.set_result)
    return await answered


def a_loop(log: SegmentLog | MemoryLog) -> Loop:
    return Loop(Engine(), log, time.time_ns, AsyncioScheduler(asyncio.get_running_loop()))
