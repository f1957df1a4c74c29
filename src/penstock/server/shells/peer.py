"""What every shell of a conversation has in common: its way into the broker, as `dialects.conversation` names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.dialects.wire.conversation import Cancelable
from penstock.model.answers import Answer
from penstock.model.commands import Command, Fetch, Publish
from penstock.model.kinds import Kind
from penstock.model.values import Stage
from penstock.server.writer.port import ClientPort


class LoopPeer:
    """The broker's side of `Peer`; a shell adds `send` and `close`."""

    __slots__ = ("_fetching", "_loop")

    def __init__(self, loop: ClientPort) -> None:
        self._loop = loop
        self._fetching = False  # A fetch was submitted, and may not be decided yet.

    def submit(
        self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None:
        if type(command) is Fetch:
            self._fetching = True
        elif self._fetching and type(command) is Publish:
            # Decided together, the fetch would get what this very client publishes after it.
            self._loop.decide_collected()
            self._fetching = False
        return self._loop.submit(command, reply, stage)

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        self._loop.when(stage, callback)

    def reach(self, stage: Stage, reply: Callable[[Answer], None]) -> None:
        """As `when`, but told in either case: `Done`, or `Refused` if the log fails first."""
        self._loop.reach(stage, reply)

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        return self._loop.watch(queue, wake)

    def follow(self, queue: int, sequence: int, tell: Callable[[Kind], None]) -> Cancelable:
        return self._loop.follow(queue, sequence, tell)

    def waiting(self, queue: str) -> int:
        return self._loop.waiting(queue)

    def after(self, seconds: float, callback: Callable[[], None]) -> Cancelable:
        return asyncio.get_running_loop().call_later(seconds, callback)
