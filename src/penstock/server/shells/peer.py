"""What every shell of a conversation has in common: its way into the broker, as `dialects.conversation` names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.dialects.wire.conversation import Cancelable
from penstock.dialects.wire.order import CommandOrder
from penstock.model.answers import Answer
from penstock.model.kinds import Kind
from penstock.model.values import Stage
from penstock.server.writer.port import ClientPort


class LoopPeer(CommandOrder):
    """The broker's side of `Peer`; a shell adds `send` and `close`."""

    __slots__ = ()

    _writer: ClientPort

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        self._writer.when(stage, callback)

    def reach(self, stage: Stage, reply: Callable[[Answer], None]) -> None:
        """As `when`, but told in either case: `Done`, or `Refused` if the log fails first."""
        self._writer.reach(stage, reply)

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        return self._writer.watch(queue, wake)

    def follow(self, queue: int, sequence: int, tell: Callable[[Kind], None]) -> Cancelable:
        return self._writer.follow(queue, sequence, tell)

    def waiting(self, queue: str) -> int:
        return self._writer.waiting(queue)

    def after(self, seconds: float, callback: Callable[[], None]) -> Cancelable:
        return asyncio.get_running_loop().call_later(seconds, callback)
