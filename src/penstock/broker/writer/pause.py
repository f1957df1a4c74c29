"""A pause of the commits of a process: while it lasts none begins, so each log ends where it ends."""

from __future__ import annotations

from collections.abc import Callable


class Pause:
    def __init__(self, begun: Callable[[], None]) -> None:
        """`begun`: called when the commits that were under way have ended."""
        self.begun = begun
        self.has_begun = False
