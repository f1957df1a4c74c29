"""Batches of a stream processor: what rows are for, and committing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.model.commands import CommitBatch
from penstock.model.queries import Act


def roots_of(topics: frozenset[str]) -> frozenset[str]:
    """The queues that rows with these topics are for."""
    return frozenset(topic.partition(".")[0] for topic in topics)


class CommitStaged(Act, frozen=True):
    """As `CommitBatch`, but answered when all rows are in their queues, durably."""

    waits_for_log: ClassVar[bool] = False  # The answer says it.
    query: str
    batch: int
    parts: Sequence[tuple[str, int]]

    def needs(self) -> CommitBatch:
        return CommitBatch(self.query, self.batch, self.parts)
