"""A command of a WebSocket client that waits for a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.model.answers import Answer
from penstock.model.client import Cancelable

if TYPE_CHECKING:
    from penstock.shells.ws import WsConnection


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
