"""Connections that hold a conversation, over WebSocket or in lines: its `Peer`, as `dialects.wire.conversation` says.

What is read goes to the conversation in as few steps as possible, and everything that it says in one turn of the
event loop leaves in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from penstock.dialects.wire.conversation import Cancelable
from penstock.dialects.wire.order import CommandOrder
from penstock.limits import LIGHT_BYTES_MAX
from penstock.model.answers import Answer, Refused
from penstock.model.commands import Command
from penstock.model.happening import Happening
from penstock.model.values import Stage
from penstock.server.shells.connection import Connection, Server
from penstock.server.writer.port import ClientPort


class LoopPeer(CommandOrder):
    """The writer's side of `Peer`; a shell adds `send` and `close`."""

    _writer: ClientPort

    def refusal(self, command: Command) -> Refused | None:
        return self._writer.refusal(self.access, command)

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        self._writer.when(stage, callback)

    def reach(self, stage: Stage, reply: Callable[[Answer], None]) -> None:
        """Like `when`, but always called: with `Done`, or with `Refused` if the log fails first."""
        self._writer.reach(stage, reply)

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        return self._writer.watch(queue, wake)

    def follow(self, queue: int, sequence: int, report: Callable[[Happening], None]) -> Cancelable:
        return self._writer.follow(queue, sequence, report)

    def waiting(self, queue: str) -> int:
        return self._writer.waiting(queue)

    def after(self, seconds: float, callback: Callable[[], None]) -> Cancelable:
        return asyncio.get_running_loop().call_later(seconds, callback)


class PeerConnection(Connection, LoopPeer):
    """A connection with a conversation."""

    __slots__ = ("_backlog", "_fetching", "_flush_is_due", "_out", "_writer")

    _backlog: Collection[object]  # What came and has to wait for room; it is handled before what is parked.

    def __init__(self, server: Server, writer: ClientPort) -> None:
        Connection.__init__(self, server)
        LoopPeer.__init__(self, writer)
        self._out: list[bytes] = []  # What this turn sends.
        self._flush_is_due = False

    def data_received(self, data: bytes) -> None:
        if len(data) <= LIGHT_BYTES_MAX and not (self._backlog or self._parked):
            self._turns.light += 1
            if self._handle(data):
                self._turns.join(self)
        else:
            self._park(data)
            self._turns.begin(self)

    def _handle(self, data: bytes) -> bool:
        """Handle a small read at once. True: there is more to do now."""
        raise NotImplementedError

    def _flush_soon(self) -> None:
        self._flush_is_due = True
        self._server.flush_soon(self)

    def flush(self) -> None:
        """Send all frames of this turn in one write."""
        raise NotImplementedError

    def _write(self, data: bytes, unsent_bytes_max: int) -> None:
        """Send, unless the client has closed. A client that leaves too much unread is cut off."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > unsent_bytes_max:
            self.abort()
        elif self.choked:
            self._count_unread()
