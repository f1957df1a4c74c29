"""When commits begin: the logs of all shards of a process are committed in rounds.

While a round is under way, all shards collect. The next one begins at the end of the turn in which its last log is on
the disk, with every log that has something to write. So a process with several shards makes batches as large as one
with a single shard. Each answer still waits for its own log alone, and a log that fails leaves its round.

A pause is a round in which nothing is written: while it lasts, all logs end where they end, and clients wait as they
do for a slow disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.broker.writer.port import Pause
from penstock.broker.writer.scheduler import Scheduler


class Member(Protocol):
    """The group commit of a shard."""

    flush_is_due: bool  # It wants to decide what was collected, whether a round is under way or not.

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for the disk."""

    def decide(self) -> None:
        """Decide what was collected."""

    def begin(self) -> bool:
        """Begin to write what was decided. False if there is nothing to write."""


class Rounds:
    def __init__(self, scheduler: Scheduler) -> None:
        self.members: list[Member] = []
        self.under_way: set[Member | Pause] = set()  # Those whose logs are being written, or pauses that last.
        self._pauses: list[Pause] = []  # Those that last, and those that wait for the end of a round.
        self._is_due = False
        self._scheduler = scheduler

    def flush_soon(self) -> None:
        """When this turn has ended: begin a round, unless one is under way then."""
        if not self._is_due:
            self._is_due = True
            self._scheduler.soon(self._flush)

    def pause(self, begun: Callable[[], None]) -> Pause:
        """Begin no round until `resume`, and call `begun` when none is under way."""
        is_free = not self.under_way or any(each.has_begun for each in self._pauses)
        pause = Pause(begun)
        self._pauses.append(pause)
        if is_free:
            self._begin_pauses()
        return pause

    def resume(self, pause: Pause) -> bool:
        """End a pause. Whether it had begun and has lasted until now."""
        if pause not in self._pauses:
            return False
        self._pauses.remove(pause)
        if pause.has_begun:
            self.ended(pause)
        return pause.has_begun

    def _begin_pauses(self) -> None:
        waiting = [pause for pause in self._pauses if not pause.has_begun]
        self.under_way.update(waiting)
        for pause in waiting:
            pause.has_begun = True
            pause.begun()

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self.ended(member)

    def ended(self, member: Member | Pause) -> None:
        """Its log is on the disk, or has failed; or a pause is over."""
        self.under_way.discard(member)
        if self.under_way:
            return
        if self._pauses:
            self._begin_pauses()
            return
        for each in self.members:
            if not each.is_idle:
                # At the end of this turn, so that what the answered clients send next can still join the batch.
                self.flush_soon()
                return

    def _flush(self) -> None:
        self._is_due = False
        for member in self.members:
            if member.flush_is_due or not self.under_way:
                member.decide()
        if self.under_way:
            return
        for member in self.members:
            if member.begin():
                self.under_way.add(member)
