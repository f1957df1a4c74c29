"""A connection that stays open, as values: frames in, frames out, commands in between.

A dialect that is more than requests and responses is a `Conversation`. It lives in a shell, its `Peer`, which owns
the socket and joins it to the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.model.access import Access
from penstock.model.answers import Answer, Refused
from penstock.model.client import Cancelable
from penstock.model.commands import Command
from penstock.model.happening import Happening
from penstock.model.values import Stage


class Peer(Protocol):
    """What a conversation may ask of the shell it lives in."""

    access: Access  # Of the client. A conversation in which the client shows a token sets it.
    dialect: str

    @property
    def address(self) -> str:
        """Of the client."""

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        """Send one frame, or one line without its end. Text is UTF-8."""

    def keep_back(self, size: int) -> None:
        """So many bytes more, or fewer, are kept in replies that must wait for earlier ones."""

    def close(self, reason: str) -> None:
        """End the connection. The client gets the reason if the protocol has room for it."""

    def submit(
        self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None:
        """Carry out a command, and call `reply` with the answer once it is as durable as asked. What is returned
        waits for a message; cancelled, it is not answered."""

    def refusal(self, command: Command) -> Refused | None:
        """Why the client may not send a command; None if it may."""

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        """Call when everything decided so far has reached the stage."""

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        """Call once when the queue has a ready message; at once if it has one now. The queue need not exist yet."""

    def follow(self, queue: int, sequence: int, report: Callable[[Happening], None]) -> Cancelable:
        """Report each later event of a message, when it is durable, up to its last."""

    def waiting(self, queue: str) -> int:
        """How many clients wait for a message of this queue."""

    def wait_refused(self) -> Refused | None:
        """Why the client may not wait for one queue more, if it may not."""

    def after(self, seconds: float, callback: Callable[[], None]) -> Cancelable:
        """Call when this long has passed."""


class Conversation(Protocol):
    """One connection's side of a dialect."""

    def opened(self) -> None: ...

    def received(self, frame: bytes, *, binary: bool = False) -> None:
        """A whole frame or line has arrived. Never raises, whatever is in it."""

    def settle(self) -> None:
        """Carry out what came together: that was all of it. Also called when the client reads again."""

    def closed(self) -> None:
        """The connection is gone."""
