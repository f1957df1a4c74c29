"""Not reading from a client for a while: what all shells do with one that is not to send more yet."""

from __future__ import annotations

import asyncio


class Pausing:
    """A connection that can stop reading. Its class has the two attributes."""

    __slots__ = ()

    _transport: asyncio.Transport | None
    _paused: bool

    def _pause(self, wanted: bool) -> None:
        """A client that does not read its answers, or asks faster than it can be answered, is not read from."""
        if self._transport and wanted != self._paused:
            self._paused = wanted  # type: ignore[misc]
            if wanted:
                self._transport.pause_reading()
            elif not self._transport.is_closing():
                self._transport.resume_reading()
