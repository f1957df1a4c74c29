"""Connections that hold a conversation, over WebSocket or in lines: its `Peer`, as `dialects.wire.conversation` says.

What is read goes to the conversation in as few steps as possible, and everything that it says in one turn of the
event loop leaves in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, cast

from penstock.broker.quotas.meter import Poll
from penstock.broker.writer.port import ClientPort
from penstock.dialects.wire.order import CommandOrder
from penstock.limits import LIGHT_BYTES_MAX, OUTBOX_PIECE_BYTES, ROOM_EACH_BYTES
from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import Answer, Refused
from penstock.model.client import Cancelable, Client
from penstock.model.commands import Command
from penstock.model.happening import Happening
from penstock.model.values import Stage
from penstock.shells import outbox
from penstock.shells.connection import Connection, Server

if TYPE_CHECKING:
    from penstock.shells.ws import WsConnection


class LoopPeer(CommandOrder):
    """The writer's side of `Peer`; a shell adds `send` and `close`."""

    _writer: ClientPort

    def refusal(self, command: Command) -> Refused | None:
        return self._writer.refusal(self, command)

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

    def wait_refused(self) -> Refused | None:
        return None

    def keep_back(self, size: int) -> None:
        """Not counted, unless there is a connection."""

    def after(self, seconds: float, callback: Callable[[], None]) -> Cancelable:
        return asyncio.get_running_loop().call_later(seconds, callback)


_KEPT_BACK_COUNTED = 16 << 10  # Less is not worth counting.


class _KeptBack:
    """Replies of a connection that must wait for earlier ones."""

    __slots__ = ("_connection", "bytes", "is_noted")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.bytes = 0
        self.is_noted = False  # The room knows of it.

    def abort(self) -> None:
        self._connection.abort()


class PeerConnection(Connection, LoopPeer):
    """A connection with a conversation."""

    __slots__ = ("_access", "_backlog", "_fetching", "_flush_is_due", "_kept_back", "_out", "_writer")

    _backlog: Collection[object]  # What came and has to wait for room; it is handled before what is parked.

    def __init__(self, server: Server, writer: ClientPort) -> None:
        Connection.__init__(self, server)
        LoopPeer.__init__(self, writer)
        self._access: Access = EVERYTHING
        self._out: list[bytes] = []  # What this turn sends.
        self._kept_back = _KeptBack(self)
        self._flush_is_due = False

    def _read(self, data: bytes) -> None:
        if self.meter is not None:
            self._count_read(self.meter, len(data))
        if len(data) <= LIGHT_BYTES_MAX and not (self._backlog or self._parked):
            self._turns.light += self.is_light
            if self._handle(data):
                self._turns.join(self)
        else:
            self._wait_for_turn(data, begins=True)
        self._pace()

    def _handle(self, data: bytes) -> bool:
        """Handle a small read at once. True: there is more to do now."""
        raise NotImplementedError

    # ── Quotas ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def access(self) -> Access:
        return self._access

    @access.setter
    def access(self, access: Access) -> None:
        """The conversation knows who the client is. It ends if that identity has too many connections."""
        self._access = access
        if refused := self.identify(access):
            self._refuse_connection(refused)

    def _count_requests(self, count: int) -> None:
        """This many lines or messages are about to be handled: their commands are refused if the client was over its
        quota before."""
        if self.meter is not None and count:
            self._over = self._over or self.meter.overdrawn("requests_per_second")
            if self._over is None:
                self.meter.take("requests_per_second", count)

    def _rest_if_over(self) -> None:
        """After lines or messages were handled: rest, if something was over a quota."""
        if self._over:
            self._rest(self._over.retry_seconds)
        else:
            self._rest_if_refused()

    def submit(
        self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None:
        if self.meter is None:
            return LoopPeer.submit(self, command, reply, stage)
        if self._over is not None:
            reply(self._over)
            return None
        poll: Cancelable | None = self.meter.submit(self._submit_counted, self, command, reply, stage)
        return poll

    def _submit_counted(self, _: Client, *rest: Any) -> Cancelable | None:
        return LoopPeer.submit(self, *rest)

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        if self.meter is None:
            return LoopPeer.watch(self, queue, wake)
        poll = Poll(self.meter, wake)
        poll.pending = LoopPeer.watch(self, queue, poll.answer)
        return poll

    def wait_refused(self) -> Refused | None:
        return self.meter.wait_refused() if self.meter is not None else None

    def keep_back(self, size: int) -> None:
        """Counted apart from what is sent: else replies that are kept could keep out the one that they wait for."""
        held = self._kept_back
        held.bytes += size
        if held.bytes > _KEPT_BACK_COUNTED or held.is_noted:
            held.is_noted = held.bytes > 0
            self._server.room.note(held, held.bytes)

    def _has_much(self) -> bool:
        """Much is kept back: nothing more is begun until it is sent."""
        return self._kept_back.bytes >= ROOM_EACH_BYTES

    def connection_lost(self, error: Exception | None) -> None:
        self._server.room.leave(self._kept_back)
        super().connection_lost(error)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────

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
        if len(data) <= OUTBOX_PIECE_BYTES:
            transport.write(data)
        else:
            outbox.send(self, (data,))
            transport = cast("asyncio.Transport", self.transport)
        if transport.get_write_buffer_size() > unsent_bytes_max:
            self.abort()
        elif self.choked:
            self._count_unread()


class WaitingCommand:
    """It counts as unanswered until it is answered or cancelled."""

    __slots__ = ("_connection", "_counts", "_reply", "handle")

    def __init__(self, connection: WsConnection, reply: Callable[[Answer], None]) -> None:
        self._connection = connection
        self._reply = reply
        self._counts = True
        self.handle: Cancelable | None = None

    def answer(self, answer: Answer) -> None:
        if self._counts:
            self._counts = False
            self._connection.answered(self._reply, 1, 0, answer)
        else:
            self._reply(answer)  # Cancelled too late: a message was on its way already.

    def cancel(self) -> None:
        if self.handle:
            self.handle.cancel()
        if self._counts:
            self._counts = False
            self._connection.canceled()
