"""When each of several queues was last served, as those who publish to it see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.support.waiting import wait_until

SECONDS_MAX = 120.0


class Served:
    def __init__(self, queues: Sequence[str]) -> None:
        self._sent_at = dict.fromkeys(queues, 0.0)  # When the newest request was sent that was acknowledged.
        self._heard_at = dict.fromkeys(queues, time.monotonic())  # When something was last acknowledged.
        self._silence = 0.0  # The longest one of a queue since somebody asked.

    def hear(self, queue: str, sent_at: float) -> None:
        heard_at = time.monotonic()
        self._silence = max(self._silence, heard_at - self._heard_at[queue])
        self._sent_at[queue] = max(self._sent_at[queue], sent_at)
        self._heard_at[queue] = heard_at

    def since(self, moment: float) -> float:
        """Wait until a message of each queue is acknowledged that was sent later; the seconds since the moment."""
        wait_until(lambda: min(self._sent_at.values()) > moment, "every queue is served", SECONDS_MAX)
        return time.monotonic() - moment

    def longest_silence(self, happens: Callable[[], object]) -> float:
        """For how many seconds nothing of a queue was acknowledged, at most, while something happens and until every
        queue is served after it."""
        self._silence = 0.0
        happens()
        self.since(time.monotonic())
        return self._silence
