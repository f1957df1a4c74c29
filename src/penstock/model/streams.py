"""Streams: where their pieces come from, and where they go. A piece is bytes, or a value that is rendered later."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Sink(Protocol):
    """Where the pieces of a stream go: the shell's side of it."""

    def give(self, data: Any) -> None:
        """The piece that was asked for; an empty one asks to be asked again."""

    def end(self) -> None:
        """There are no more pieces."""

    def fail(self) -> None:
        """There are more pieces, but they cannot be read: the client must not take what it has for the whole."""

    def cut_off(self) -> None:
        """The client has not taken what it was given, and others need the room."""


class Source(Protocol):
    """Where the pieces of a stream come from. It is asked for one at a time, when the client has taken the last."""

    def pull(self, sink: Sink) -> None:
        """Make one call to the sink, soon: after this call has returned."""

    def finish(self) -> None:
        """The broker is about to stop: end now if you would not end by yourself."""

    def close(self) -> None:
        """The client is gone or has everything. Called once."""


class Flow(NamedTuple):
    """An answer that goes on: its pieces are values, or bytes."""

    source: Source
    head: Any = None  # A value that is known before the first piece.
