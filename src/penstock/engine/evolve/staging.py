"""Batches of stream processors that are staged, committed, admitted to queues and dropped."""

from __future__ import annotations

from penstock.engine.staging import Admission, Chunk, StagedBatch
from penstock.engine.state import EngineState
from penstock.limits import STAGED_QUERIES_MAX
from penstock.model.events import Admitted, BatchCommitted, Staged, Unstaged
from penstock.model.values import Position


def staged(state: EngineState, event: Staged, position: Position) -> None:
    staging = state.staging
    key = event.query, event.batch
    batch = staging.batches.get(key)
    if batch is None:
        batch = staging.batches[key] = StagedBatch(*key)
    batch.expires_at = event.expires_at
    batch.parts.setdefault(event.part, []).append(Chunk(position, len(event.data), event.rows))
    staging.chunks += 1
    staging.bytes += len(event.data)


def batch_committed(state: EngineState, event: BatchCommitted, _: Position) -> None:
    staging = state.staging
    batch = staging.batches.get((event.query, event.batch))
    chunks = [chunk for part in event.parts for chunk in batch.parts.pop(part)] if batch else []
    for key in [key for key in staging.batches if key[0] == event.query and key[1] <= event.batch]:
        staging.forget(*key)
    if chunks:
        staging.admissions.append(Admission(event.query, event.batch, chunks))
    staging.committed.pop(event.query, None)
    staging.committed[event.query] = event.batch
    if len(staging.committed) > STAGED_QUERIES_MAX:
        del staging.committed[next(iter(staging.committed))]


def admitted(state: EngineState, event: Admitted, _: Position) -> None:
    staging = state.staging
    if not staging.admissions:
        _taken(state, event)
        return
    admission = staging.admissions[0]
    assert (admission.query, admission.batch) == (event.query, event.batch), "batches are admitted in order"
    staging.release(admission.chunks[admission.chunk : event.chunk])
    admission.chunk, admission.row = event.chunk, event.row
    if event.chunk == len(admission.chunks):
        del staging.admissions[0]


def _taken(state: EngineState, event: Admitted) -> None:
    """The batch is staged in another shard."""
    taken = state.staging.taken
    taken.pop(event.query, None)
    taken[event.query] = event.batch, event.chunk, event.row
    if len(taken) > STAGED_QUERIES_MAX:
        del taken[next(iter(taken))]


def unstaged(state: EngineState, event: Unstaged, _: Position) -> None:
    state.staging.forget(event.query, event.batch)
