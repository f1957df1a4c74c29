"""Batches of stream processors, each of which counts exactly once and as a whole, whatever crashes.

The rows of a batch are staged, in parts that may be tried more than once. A commit names the parts that count. Then
the rows enter their queues step by step; each step is a decision that also records the progress, so that a crash
loses and repeats nothing. The last batch of each query is remembered, so that a repeated batch is recognised.

Staged rows stay in the log as their sender has written them. Only their positions are in memory.

In a store with several shards, one has all of this. It sends rows for queues of other shards there, and each of them
records how far it has taken a batch, together with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.engine.rows import Columns
from penstock.model.values import Nanos, Position


class Chunk(NamedTuple):
    """Where staged rows are in the log."""

    position: Position
    size: int
    rows: int


class StagedBatch(msgspec.Struct):
    """A batch that is not committed yet."""

    query: str
    batch: int
    expires_at: Nanos = 0
    parts: dict[str, list[Chunk]] = {}


class Admission(msgspec.Struct):
    """A committed batch whose rows are not all in their queues yet, and its progress."""

    query: str
    batch: int
    chunks: list[Chunk]
    chunk: int = 0
    row: int = 0

    @property
    def rows_left(self) -> int:
        return sum(chunk.rows for chunk in self.chunks[self.chunk :]) - self.row


Progress = tuple[int, int, int]  # A batch, and the chunk and the row to continue from.


class Staging:
    def __init__(self) -> None:
        self.committed: dict[str, int] = {}  # The last batch of each query; the query that committed last comes last.
        self.batches: dict[tuple[str, int], StagedBatch] = {}
        self.admissions: list[Admission] = []  # In the order of their commits.
        self.taken: dict[str, Progress] = {}  # What queries of another shard have sent here; the latest comes last.
        self.chunks = 0
        self.bytes = 0

    def stands_at(self, query: str, batch: int, at: tuple[int, int]) -> bool:
        """Whether this batch is the next to be admitted, and its progress is exactly this."""
        first = self.admissions[0] if self.admissions else None
        return first is not None and (first.query, first.batch, (first.chunk, first.row)) == (query, batch, at)

    def is_committed(self, query: str, batch: int) -> bool:
        return self.committed.get(query, -1) >= batch

    def forget(self, query: str, batch: int) -> None:
        for chunks in self.batches.pop((query, batch)).parts.values():
            self.release(chunks)

    def release(self, chunks: list[Chunk]) -> None:
        self.chunks -= len(chunks)
        self.bytes -= sum(chunk.size for chunk in chunks)

    # Snapshots

    @property
    def facts(self) -> StagingFacts:
        batches = list(self.batches.values())
        return StagingFacts(list(self.committed.items()), batches, self.admissions, list(self.taken.items()))

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        """The state for a snapshot. Positions are also a column, for counting what is still live in the log."""
        if self.committed or self.batches or self.taken:
            positions = [chunk.position for chunk in self.all_chunks()]
            yield "staging", msgspec.json.encode(self.facts), (np.array(positions, dtype=np.uint64),)

    def restore(self, facts: bytes) -> None:
        decoded = decode_json(facts, StagingFacts)
        self.committed = dict(decoded.committed)
        self.batches = {(batch.query, batch.batch): batch for batch in decoded.batches}
        self.admissions = decoded.admissions
        self.taken = dict(decoded.taken)
        chunks = list(self.all_chunks())
        self.chunks, self.bytes = len(chunks), sum(chunk.size for chunk in chunks)

    def all_chunks(self) -> Iterator[Chunk]:
        """The chunks of all rows that are not in their queues yet."""
        for batch in self.batches.values():
            for chunks in batch.parts.values():
                yield from chunks
        for admission in self.admissions:
            yield from admission.chunks[admission.chunk :]


class StagingFacts(msgspec.Struct, omit_defaults=True):
    """The state of staging as it is written to a snapshot."""

    committed: list[tuple[str, int]]
    batches: list[StagedBatch]
    admissions: list[Admission]
    taken: list[tuple[str, Progress]] = []
