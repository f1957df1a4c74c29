"""Not reading from a client for a while: what all shells do with one that is not to send more yet."""

from __future__ import annotations

import asyncio


class Pausing:
    """A connection that can stop reading, and that keeps what it has read and not handled yet. Its class has the
    attributes."""

    __slots__ = ()

    _transport: asyncio.Transport | None
    _paused: bool
    _parked: bytes  # What was read and is not handled yet, from `_parked_at` on. Nothing more is read meanwhile.
    _parked_at: int

    def _pause(self, wanted: bool) -> None:
        """A client that does not read its answers, or asks faster than it can be answered, is not read from."""
        if self._transport and wanted != self._paused:
            self._paused = wanted  # type: ignore[misc]
            if wanted:
                self._transport.pause_reading()
            elif not self._transport.is_closing():
                self._transport.resume_reading()

    def _park(self, data: bytes) -> None:
        self._parked = self._forget_parked() + data  # type: ignore[misc]

    def _next_part(self, size: int) -> bytes:
        """Take so much of what is parked."""
        at = self._parked_at
        part = self._parked[at : at + size]
        self._parked_at = at + size  # type: ignore[misc]
        if at + size >= len(self._parked):
            self._forget_parked()
        return part

    def _forget_parked(self) -> bytes:
        """What was left of it."""
        rest = self._parked[self._parked_at :]
        self._parked, self._parked_at = b"", 0  # type: ignore[misc]
        return rest
