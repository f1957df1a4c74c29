"""When commits begin: the logs of all shards of a process are committed in rounds.

While a round is under way, all shards collect. The next one begins at the end of the turn in which its last log is on
the disk, with every log that has something to write. So a process with several shards makes batches as large as one
with a single shard. Each answer still waits for its own log alone, and a log that fails leaves its round.
"""

from __future__ import annotations

from typing import Protocol

from penstock.server.writer.scheduler import Scheduler


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
        self.under_way: set[Member] = set()  # Those whose logs are being written.
        self._is_due = False
        self._scheduler = scheduler

    def flush_soon(self) -> None:
        """When this turn has ended: begin a round, unless one is under way then."""
        if not self._is_due:
            self._is_due = True
            self._scheduler.soon(self._flush)

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self.ended(member)

    def ended(self, member: Member) -> None:
        """Its log is on the disk, or has failed."""
        self.under_way.discard(member)
        if not self.under_way and not all(each.is_idle for each in self.members):
            # At the end of this turn, so that what the answered clients send next can still join the batch.
            self.flush_soon()

    def _flush(self) -> None:
        self._is_due = False
        for member in self.members:
            if member.flush_is_due or not self.under_way:
                member.decide()
        if not self.under_way:
            self.under_way.update(member for member in self.members if member.begin())
