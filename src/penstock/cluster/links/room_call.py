"""Commands of clients of this process whose answers may be large, for shards of other processes.

As long as there is much room for answers here, they are sent at once. Else each waits for its turn, like those that
are decided here, and is sent with the room that its answer may take. A client that waits for a message holds no room
meanwhile: the other process tells it to come again when there is a message.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from msgspec.structs import replace

from penstock.broker.room import Holder, Room
from penstock.broker.writer.executor import LIMITED
from penstock.broker.writer.port import COME_AGAIN, Pending, Reply
from penstock.limits import SECOND_NS
from penstock.model.commands import Command


class Send(Protocol):
    def __call__(self, command: Command, reply: Reply, *, has_room: bool) -> Pending | None: ...


class RoomCall:
    """One of them."""

    is_long = False  # That is for the process that makes the answer.
    size = 0  # One message is enough.

    def __init__(self, room: Room, holder: Holder, send: Send, command: Any, reply: Reply) -> None:
        self._room = room
        self._holder = holder
        self._send = send
        self._command = command
        self._reply = reply
        self._waits_ns = getattr(command, "wait_ns", 0)
        self._until = asyncio.get_running_loop().time() + self._waits_ns / SECOND_NS
        self._pending: Pending | None = None
        self._granted = 0  # So much room it has, and waits for nothing else meanwhile.
        self._is_answered = self._is_hurried = self._is_canceled = False

    def begin(self) -> Pending | None:
        free = self._room.free(self._holder)
        if free and not self._room.is_crowded:
            self._ask(self._command)
        else:
            self._ask_with_room(free)
        return self if self._waits_ns and not self._is_answered else None

    def has_room(self) -> None:
        if not self._is_canceled:
            self._ask_with_room(self._room.free(self._holder))

    def _ask_with_room(self, free: int) -> None:
        if not free:
            self._room.wait(self._holder, self)
            return
        self._granted = free
        self._room.grant(free)
        command = self._command
        if type(command) in LIMITED:
            command = replace(command, bytes_max=min(free, command.bytes_max))
        if self._waits_ns:
            command = replace(command, wait_ns=0)
        self._ask(command, has_room=True)

    def _ask(self, command: Command, *, has_room: bool = False) -> None:
        pending = self._send(command, self._take, has_room=has_room)
        self._pending = None if self._is_answered else pending

    def _take(self, answer: Any) -> None:
        had_room = self._release()
        left_ns = round((self._until - asyncio.get_running_loop().time()) * SECOND_NS)
        if answer == COME_AGAIN:
            self._room.wait(self._holder, self)
        elif had_room and self._waits_ns and not answer and left_ns > 0 and not self._is_hurried:
            self._ask(replace(self._command, wait_ns=left_ns))  # Another one got the message.
        else:
            self._is_answered = True
            self._reply(answer)

    def _release(self) -> bool:
        """It is known in the next turn what of the answer the client did not take."""
        granted, self._granted = self._granted, 0
        if granted:
            asyncio.get_running_loop().call_soon(self._room.take_back, granted)
        return granted > 0

    # ── The client's side ───────────────────────────────────────────────────────────────────────────────────

    @property
    def is_waiting(self) -> bool:
        return not self._is_answered and self._pending is not None and self._pending.is_waiting

    def give_up(self) -> None:
        self._is_hurried = True
        if self._pending:
            self._pending.give_up()

    def cancel(self) -> None:
        self._is_canceled = True
        self._release()
        if self._pending:
            self._pending.cancel()
