"""Answers that clients have not read yet: one limit for all connections of the broker.

If a client does not read its answers, nothing more is read from it, and no answers are made for it. Answers to its
earlier requests must still be kept. If that is too much for all connections together, the one with the most is
closed.
"""

from __future__ import annotations

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """A connection whose client does not read."""

    def abort(self) -> None:
        """Close the connection, and throw away what is not sent."""


class Unread:
    """What all connections hold. Each reports it when it is much, and whenever that changes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.closed = 0  # Connections that were closed because of it.
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}

    def note(self, holder: Holder, size: int) -> None:
        """A connection holds this much now."""
        self.bytes += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
            if self.bytes > self._bytes_max:
                self._close_greediest()

    def _close_greediest(self) -> None:
        while self.bytes > self._bytes_max:
            greediest = max(self._held, key=self._held.__getitem__)
            size = self._held[greediest]
            self.note(greediest, 0)
            self.closed += 1
            logger.warning("unread_answers_dropped", extra={"bytes": size, "limit": self._bytes_max})
            greediest.abort()
