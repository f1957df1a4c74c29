"""Batches of stream processors, which are to count once and whole, whatever crashes in between.

The rows of a batch are staged, in parts that may be tried more than once. A commit names the parts that count, and
with it the batch is decided: its rows enter their queues step by step, each step a decision that also notes how far
it has come, so that a crash in between loses nothing and doubles nothing. Of each query the last batch is remembered:
what comes again is known.

Staged rows stay in the log, as their sender has written them. What is in memory is where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.engine.rows import Columns
from penstock.errors import Reason
from penstock.limits import STAGED_CHUNKS_MAX, STAGED_QUERIES_MAX
from penstock.model.answers import Decision, Done, StagedDescription, refuse
from penstock.model.commands import CommitBatch, DescribeStaged, DropStaged, StageRows
from penstock.model.events import Admitted, BatchCommitted, Event, Staged, Unstaged
from penstock.model.values import Nanos, Position

_DONE = Decision((), Done())


class Chunk(NamedTuple):
    """Where rows are in the log."""

    position: Position
    size: int
    rows: int


class StagedBatch(msgspec.Struct):
    """A batch that nobody has committed yet."""

    query: str
    batch: int
    expires_at: Nanos = 0
    parts: dict[str, list[Chunk]] = {}


class Admission(msgspec.Struct):
    """A committed batch whose rows are not all in their queues yet, and where it stands."""

    query: str
    batch: int
    chunks: list[Chunk]
    chunk: int = 0
    row: int = 0

    @property
    def rows_left(self) -> int:
        return sum(chunk.rows for chunk in self.chunks[self.chunk :]) - self.row


class Staging:
    def __init__(self) -> None:
        self.committed: dict[str, int] = {}  # By query, its last batch; who has committed last is last.
        self.batches: dict[tuple[str, int], StagedBatch] = {}
        self.admissions: list[Admission] = []  # In the order of their commits.
        self.chunks = 0
        self.bytes = 0

    # Decide

    def stage(
        self, command: StageRows, now: Nanos, queues: Iterable[str], is_channel: Callable[[str], bool]
    ) -> Decision:
        if self._is_committed(command.query, command.batch):
            return _DONE
        batch = self.batches.get((command.query, command.batch))
        there = len(batch.parts.get(command.part, ())) if batch else 0
        if command.chunk < there:
            return _DONE
        if command.chunk > there:
            return refuse(Reason.NOT_STAGED, f"part {command.part} goes on with chunk {there}, not {command.chunk}")
        if self.bytes + len(command.data) > command.bytes_max or self.chunks >= STAGED_CHUNKS_MAX:
            return refuse(Reason.STAGING_FULL)
        missing = command.queues.difference(queues)
        if missing:
            return refuse(Reason.NO_QUEUE, min(missing))
        channels = [root for root in command.roots if is_channel(root)]
        if channels:
            return refuse(Reason.IS_CHANNEL, min(channels))
        what = (command.query, command.batch, command.part, command.chunk, command.rows)
        return Decision((Staged(now, *what, now + command.lifetime_ns, command.data),), Done())

    def commit(self, command: CommitBatch, now: Nanos) -> Decision:
        if self._is_committed(command.query, command.batch):
            return _DONE
        batch = self.batches.get((command.query, command.batch))
        for part, chunks in command.parts:
            there = len(batch.parts.get(part, ())) if batch else 0
            if there != chunks:
                return refuse(Reason.NOT_STAGED, f"part {part} has {there} chunks of {chunks}")
        parts = tuple(part for part, chunks in command.parts if chunks)
        return Decision((BatchCommitted(now, command.query, command.batch, parts),), Done())

    def drop(self, command: DropStaged, now: Nanos) -> Decision:
        if command.query:
            late = [self.batches[each] for each in [(command.query, command.batch)] if each in self.batches]
        else:
            late = [batch for batch in self.batches.values() if batch.expires_at <= now]
        events: list[Event] = [Unstaged(now, batch.query, batch.batch) for batch in late]
        return Decision(events, Done())

    def describe(self, command: DescribeStaged) -> Decision:
        admitting = sum(each.rows_left for each in self.admissions if each.query == command.query)
        staged = [each.parts.values() for each in self.batches.values() if each.query == command.query]
        rows = sum(chunk.rows for parts in staged for chunks in parts for chunk in chunks)
        return Decision((), StagedDescription(self.committed.get(command.query), admitting, rows))

    def stands_at(self, query: str, batch: int, at: tuple[int, int]) -> bool:
        """Is this the batch whose turn it is, and has it come just as far?"""
        first = self.admissions[0] if self.admissions else None
        return first is not None and (first.query, first.batch, (first.chunk, first.row)) == (query, batch, at)

    def _is_committed(self, query: str, batch: int) -> bool:
        return self.committed.get(query, -1) >= batch

    # Evolve

    def staged(self, event: Staged, position: Position) -> None:
        place = event.query, event.batch
        batch = self.batches.get(place)
        if batch is None:
            batch = self.batches[place] = StagedBatch(*place)
        batch.expires_at = event.expires_at
        batch.parts.setdefault(event.part, []).append(Chunk(position, len(event.data), event.rows))
        self.chunks += 1
        self.bytes += len(event.data)

    def batch_committed(self, event: BatchCommitted, _: Position) -> None:
        batch = self.batches.get((event.query, event.batch))
        chunks = [chunk for part in event.parts for chunk in batch.parts.pop(part)] if batch else []
        for place in [place for place in self.batches if place[0] == event.query and place[1] <= event.batch]:
            self._forget(*place)
        if chunks:
            self.admissions.append(Admission(event.query, event.batch, chunks))
        self.committed.pop(event.query, None)
        self.committed[event.query] = event.batch
        if len(self.committed) > STAGED_QUERIES_MAX:
            del self.committed[next(iter(self.committed))]

    def admitted(self, event: Admitted, _: Position) -> None:
        admission = self.admissions[0]
        assert (admission.query, admission.batch) == (event.query, event.batch), "batches are admitted in order"
        self._release(admission.chunks[admission.chunk : event.chunk])
        admission.chunk, admission.row = event.chunk, event.row
        if event.chunk == len(admission.chunks):
            del self.admissions[0]

    def unstaged(self, event: Unstaged, _: Position) -> None:
        self._forget(event.query, event.batch)

    def _forget(self, query: str, batch: int) -> None:
        for chunks in self.batches.pop((query, batch)).parts.values():
            self._release(chunks)

    def _release(self, chunks: list[Chunk]) -> None:
        self.chunks -= len(chunks)
        self.bytes -= sum(chunk.size for chunk in chunks)

    # Snapshots

    @property
    def facts(self) -> StagingFacts:
        return StagingFacts(list(self.committed.items()), list(self.batches.values()), self.admissions)

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        """Positions once more as a column, for whoever counts what is still alive in the log."""
        if self.committed or self.batches:
            positions = [chunk.position for chunk in self.all_chunks()]
            yield "staging", msgspec.json.encode(self.facts), (np.array(positions, dtype=np.uint64),)

    def restore(self, facts: bytes) -> None:
        decoded = msgspec.json.decode(facts, type=StagingFacts)
        self.committed = dict(decoded.committed)
        self.batches = {(batch.query, batch.batch): batch for batch in decoded.batches}
        self.admissions = decoded.admissions
        chunks = list(self.all_chunks())
        self.chunks, self.bytes = len(chunks), sum(chunk.size for chunk in chunks)

    def all_chunks(self) -> Iterator[Chunk]:
        """Of rows that are not in their queues yet."""
        for batch in self.batches.values():
            for chunks in batch.parts.values():
                yield from chunks
        for admission in self.admissions:
            yield from admission.chunks[admission.chunk :]


class StagingFacts(msgspec.Struct):
    """All that is known of staged rows, as it is written to a snapshot."""

    committed: list[tuple[str, int]]
    batches: list[StagedBatch]
    admissions: list[Admission]
